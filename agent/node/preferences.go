// SPDX-License-Identifier: Apache-2.0

package node

import (
	"slices"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/bpf/uplink"
)

// MaxClasses is the number of classes of preferences that a node can have.
const MaxClasses = uplink.MaxClasses

// Preferences are the distinct preferences of the node's endpoints; nil where a class
// is free. One that stays keeps its class, because endpoints in the kernel refer to
// it.
type Preferences [MaxClasses]*Preference

// Preference says which paths are good enough to be preferred.
type Preference struct {
	v1alpha1.PlanPreference
	// Paths that endpoints of the class prefer.
	Paths map[v1alpha1.PathName]bool
}

// withoutWeight is what says which paths are good.
func withoutWeight(p v1alpha1.PlanPreference) v1alpha1.PlanPreference {
	p.Weight = v1alpha1.DefaultPreferenceWeight
	return p
}

// assign gives each preference of these endpoints a class. Those that find none free
// share the last one.
func (p *Preferences) assign(endpoints []v1alpha1.PlanEndpoint) (after Preferences) {
	var fresh []v1alpha1.PlanPreference
	for i := range endpoints {
		if endpoints[i].Preference == nil {
			continue
		}
		wanted := withoutWeight(*endpoints[i].Preference)
		if known := p.find(wanted); known >= 0 {
			after[known] = newPreference(wanted)
		} else if !slices.Contains(fresh, wanted) {
			fresh = append(fresh, wanted)
		}
	}
	for _, wanted := range fresh {
		if free := slices.Index(after[:], nil); free >= 0 {
			after[free] = newPreference(wanted)
		}
	}
	for i := range endpoints {
		if class, _ := after.Class(&endpoints[i]); after[class] != nil {
			for _, path := range endpoints[i].Preferred {
				after[class].Paths[path] = true
			}
		}
	}
	return after
}

func newPreference(preference v1alpha1.PlanPreference) *Preference {
	return &Preference{PlanPreference: preference, Paths: map[v1alpha1.PathName]bool{}}
}

// find returns the class of a preference, or -1.
func (p *Preferences) find(preference v1alpha1.PlanPreference) int {
	return slices.IndexFunc(p[:], func(known *Preference) bool { return known != nil && known.PlanPreference == preference })
}

// Class of an endpoint; exact is false where it is another preference's.
func (p *Preferences) Class(endpoint *v1alpha1.PlanEndpoint) (class int, exact bool) {
	if endpoint.Preference == nil {
		return 0, true
	}
	if known := p.find(withoutWeight(*endpoint.Preference)); known >= 0 {
		return known, true
	}
	return len(p) - 1, false
}

// List is without gaps; classes says which they are of.
func (p *Preferences) List() (preferences []v1alpha1.PlanPreference, classes []int) {
	for class, known := range p {
		if known != nil {
			preferences, classes = append(preferences, known.PlanPreference), append(classes, class)
		}
	}
	return preferences, classes
}
