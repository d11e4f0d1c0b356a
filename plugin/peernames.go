// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"maps"
	"net/netip"
	"slices"
)

// peerNames are pods by their addresses, as whoever talks to them sees them. Agents that are
// asked name their own; for the others' there are the plans.
type peerNames struct {
	names map[netip.Addr]string
	// before are those of the last look, which hold until they are looked for again.
	before map[netip.Addr]string
	// lookedFor are addresses that were looked for since the last look: one that has no name
	// is none of a pod that a policy selects.
	lookedFor map[netip.Addr]bool
	// wanted gets something when there is an address to look for.
	wanted chan struct{}
}

func newPeerNames() peerNames {
	names := peerNames{wanted: make(chan struct{}, 1)}
	names.begin()
	return names
}

// begin has all looked for anew: addresses go from one pod to another.
func (n *peerNames) begin() {
	n.names, n.before, n.lookedFor = map[netip.Addr]string{}, n.names, map[netip.Addr]bool{}
}

func (n *peerNames) of(address netip.Addr) string {
	if name, known := n.names[address]; known || !n.unknown(address) {
		return name
	}
	return n.before[address]
}

func (n *peerNames) add(plan *planSketch) {
	for i := range plan.Spec.Endpoints {
		pod := &plan.Spec.Endpoints[i]
		for _, text := range pod.Addresses {
			if address, err := netip.ParseAddr(text); err == nil {
				n.names[address] = pod.Namespace + "/" + pod.Name
			}
		}
	}
}

func (n *peerNames) unknown(address netip.Addr) bool {
	_, known := n.names[address]
	return !known && !n.lookedFor[address]
}

// want tells where a peer has no name yet.
func (n *peerNames) want(subflows []Subflow) {
	for i := range subflows {
		if n.unknown(subflows[i].peerAddress) {
			select {
			case n.wanted <- struct{}{}:
			default:
			}
			return
		}
	}
}

// namePeers looks for the names that are missing.
func (t *topper) namePeers(ctx context.Context) error {
	addresses, several := t.namesMissing()
	if len(addresses) == 0 {
		return nil
	}
	plans, err := t.plans.having(ctx, addresses, several)
	t.mutex.Lock()
	defer t.mutex.Unlock()
	for i := range plans {
		t.names.add(&plans[i])
	}
	for _, address := range addresses {
		t.names.lookedFor[address] = true
	}
	t.wake()
	return wrap(err, "looking for the names of peers")
}

// namesMissing are the addresses to look for. Pods have several each where the agents' have.
func (t *topper) namesMissing() (addresses []netip.Addr, several bool) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	missing := map[netip.Addr]bool{}
	for _, node := range t.nodes {
		for i := range node.subflows {
			if address := node.subflows[i].peerAddress; t.names.unknown(address) {
				missing[address] = true
			}
		}
	}
	for _, agent := range t.agents {
		several = several || len(agent.Status.PodIPs) > 1
	}
	return slices.Collect(maps.Keys(missing)), several
}
