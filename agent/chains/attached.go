// SPDX-License-Identifier: Apache-2.0

package chains

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"k8s.io/apimachinery/pkg/types"

	"braid.dev/braid/api/v1alpha1"
)

// Attached is what is known of an endpoint that has a chain.
type Attached struct {
	UID types.UID
	// Name is namespace/name of the pod.
	Name string
	// Number is the endpoint's in the programs' keys.
	Number    uint32
	Interface int
	// Rules of its chain, as they are numbered in records: those of the model, or those
	// that it had before where the model's cannot be.
	Rules []v1alpha1.PlanRule
}

// list has no endpoint whose rules an earlier agent alone knew, or that is draining.
func (h *half) list() (all []Attached) {
	for uid, a := range h.endpoints {
		if len(a.rules) > 0 {
			all = append(all, Attached{UID: uid, Name: a.name, Number: a.record.Number, Interface: a.index(), Rules: a.rules})
		}
	}
	slices.SortFunc(all, func(a, b Attached) int { return cmp.Compare(a.Number, b.Number) })
	return all
}

func (c *Chains) publish(all []Attached) { c.attached.Store(&all) }

// Endpoints lists the endpoints that have a chain, by their numbers, without waiting
// for Apply. The list must not be changed.
func (c *Chains) Endpoints() []Attached { return *c.attached.Load() }

// Map opens one of the pinned maps by its name; nil while nothing is loaded. The
// caller closes it.
func (c *Chains) Map(name string) (*ebpf.Map, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.loaded.Is() || c.loaded.Value.maps[name] == nil {
		return nil, nil
	}
	opened, err := c.loaded.Value.maps[name].Clone()
	if err != nil {
		return nil, fmt.Errorf("opening the map %s: %w", name, err)
	}
	return opened, nil
}
