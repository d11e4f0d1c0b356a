// SPDX-License-Identifier: Apache-2.0

package paths

import (
	"maps"
	"net/netip"
	"slices"
	"time"
)

// believed is how long an earlier agent's word counts that a path is lost, where the probes of
// this one have not shown it to be alive: the kernel asks for a hardware address for 3 s by its
// defaults, after which they show that it is lost.
const believed = 10 * time.Second

// Memory is what one agent leaves to the next: the kernel shows it no more once a NIC has been
// set down, and probes show it only after some time.
type Memory struct {
	// Routes to other nodes that the main table has, or lost with a NIC, by their destinations.
	Routes []RememberedRoute `json:"routes,omitempty"`
	// Lost are the paths of State.Lost.
	Lost map[string]map[string]bool `json:"lost,omitempty"`
}

// RememberedRoute is what the main table last said of a destination.
type RememberedRoute struct {
	Destination netip.Prefix `json:"destination"`
	// Peer is the node that the destination is behind.
	Peer string          `json:"peer"`
	Hops []RememberedHop `json:"hops"`
	// Missing says that the main table had lost the route, because a path was down.
	Missing bool `json:"missing,omitempty"`
	// End says that the destination is the node's own address, which an overlay sends to.
	End bool `json:"end,omitempty"`
}

// RememberedHop is a next hop: an address, unless the destination is on the link, and the index
// of the interface.
type RememberedHop struct {
	Gateway netip.Addr `json:"gateway,omitzero"`
	Index   int        `json:"index"`
}

// Recall takes over what an earlier agent remembered, which the next Apply compares with the
// kernel's routes. It is to be called before the first one. What makes no sense is left out.
func (d *Detours) Recall(memory Memory) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, route := range memory.Routes {
		if !route.Destination.IsValid() || isWide(route.Destination) || len(route.Hops) == 0 {
			continue
		}
		known := &destination{peer: route.Peer, missing: route.Missing, end: route.End}
		for _, next := range route.Hops {
			known.hops = append(known.hops, hop{gateway: next.Gateway, index: next.Index})
		}
		d.known[route.Destination] = known
	}
	d.recalled = memory.Lost
}

// Doubts is how long from now on Apply goes by what Recall was told of lost paths; 0 where it does
// not, or not any more. The time begins with the first Apply. It is to be called again at the end.
func (d *Detours) Doubts() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case len(d.recalled) == 0:
		return 0
	case d.believedUntil.IsZero():
		return believed
	}
	return max(0, d.believedUntil.Sub(d.now()))
}

// Memory is what the next agent is to be told, as of the last Apply.
func (d *Detours) Memory() Memory {
	d.mu.Lock()
	defer d.mu.Unlock()
	memory := Memory{Lost: d.lost}
	for _, prefix := range slices.SortedFunc(maps.Keys(d.known), netip.Prefix.Compare) {
		known := d.known[prefix]
		route := RememberedRoute{Destination: prefix, Peer: known.peer, Missing: known.missing, End: known.end}
		for _, h := range known.hops {
			route.Hops = append(route.Hops, RememberedHop{Gateway: h.gateway, Index: h.index})
		}
		memory.Routes = append(memory.Routes, route)
	}
	return memory
}

// judge adds to the lost paths those of which an earlier agent said so and this one does not
// know better yet.
func (d *Detours) judge(state *State) {
	now := d.now()
	if d.believedUntil.IsZero() {
		d.believedUntil = now.Add(believed)
	}
	if !now.Before(d.believedUntil) {
		d.recalled = nil
	}
	lost := map[string]map[string]bool{}
	for _, peer := range state.Peers {
		paths := maps.Clone(state.Lost[peer.Name])
		for path := range d.recalled[peer.Name] {
			switch {
			case state.Alive[peer.Name][path]:
				delete(d.recalled[peer.Name], path)
			case paths == nil:
				paths = map[string]bool{path: true}
			default:
				paths[path] = true
			}
		}
		if len(paths) > 0 {
			lost[peer.Name] = paths
		}
	}
	maps.DeleteFunc(d.recalled, func(_ string, paths map[string]bool) bool { return len(paths) == 0 })
	d.lost, state.Lost = lost, lost
}
