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
	addresses := t.namesMissing()
	if len(addresses) == 0 {
		return nil
	}
	names, err := t.plans.names(ctx)
	t.mutex.Lock()
	defer t.mutex.Unlock()
	maps.Copy(t.names.names, names)
	for _, address := range addresses {
		t.names.lookedFor[address] = true
	}
	t.wake()
	return wrap(err, "looking for the names of peers")
}

// namesMissing are the addresses to look for.
func (t *topper) namesMissing() []netip.Addr {
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
	return slices.Collect(maps.Keys(missing))
}
