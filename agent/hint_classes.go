// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"slices"

	"braid.dev/braid/agent/datapath"
	"braid.dev/braid/api/v1alpha1"
)

// classes are the distinct preferences of the node's endpoints. One that stays keeps
// its index, because endpoints in the kernel refer to it.
type classes [datapath.MaxClasses]*class

type class struct {
	preference v1alpha1.PlanPreference
	paths      map[v1alpha1.PathName]bool // that endpoints of it prefer
}

// withoutWeight is what says which paths are good.
func withoutWeight(p v1alpha1.PlanPreference) v1alpha1.PlanPreference {
	p.Weight = v1alpha1.DefaultPreferenceWeight
	return p
}

// assign gives each preference of these endpoints a class. Those that find none free
// share the last one.
func (c classes) assign(endpoints []v1alpha1.PlanEndpoint) (after classes) {
	var fresh []v1alpha1.PlanPreference
	for i := range endpoints {
		if endpoints[i].Preference == nil {
			continue
		}
		wanted := withoutWeight(*endpoints[i].Preference)
		if known := c.find(wanted); known >= 0 {
			after[known] = newClass(wanted)
		} else if !slices.Contains(fresh, wanted) {
			fresh = append(fresh, wanted)
		}
	}
	for _, wanted := range fresh {
		if free := slices.Index(after[:], nil); free >= 0 {
			after[free] = newClass(wanted)
		}
	}
	for i := range endpoints {
		if at, _ := after.of(&endpoints[i]); after[at] != nil {
			for _, path := range endpoints[i].Preferred {
				after[at].paths[path] = true
			}
		}
	}
	return after
}

func newClass(preference v1alpha1.PlanPreference) *class {
	return &class{preference: preference, paths: map[v1alpha1.PathName]bool{}}
}

// find returns the class of a preference, or -1.
func (c *classes) find(preference v1alpha1.PlanPreference) int {
	return slices.IndexFunc(c[:], func(known *class) bool { return known != nil && known.preference == preference })
}

// of returns an endpoint's class; exact is false where it is another preference's.
func (c *classes) of(endpoint *v1alpha1.PlanEndpoint) (class int, exact bool) {
	if endpoint.Preference == nil {
		return 0, true
	}
	if known := c.find(withoutWeight(*endpoint.Preference)); known >= 0 {
		return known, true
	}
	return len(c) - 1, false
}

// list is without gaps; indexes says which classes they are.
func (c *classes) list() (preferences []v1alpha1.PlanPreference, indexes []int) {
	for i, known := range c {
		if known != nil {
			preferences, indexes = append(preferences, known.preference), append(indexes, i)
		}
	}
	return preferences, indexes
}
