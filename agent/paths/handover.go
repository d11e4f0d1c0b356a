// SPDX-License-Identifier: Apache-2.0

package paths

import (
	"maps"
	"net/netip"
	"slices"
	"time"
)

// unconfirmedFor is how long a path counts as lost that was lost to an earlier agent, while the
// probes of this one have not shown it to be alive: the kernel asks for a hardware address for 3 s
// by its defaults, after which they show that it is lost.
const unconfirmedFor = 10 * time.Second

// Handover is what one agent leaves to the next: the kernel does not show it once a NIC has been
// set down, and probes show it only after some time.
type Handover struct {
	// Routes to other nodes that the main table has, or lost with a NIC, by their destinations.
	Routes []HandoverRoute `json:"routes,omitempty"`
	// Lost are the paths of State.Lost.
	Lost map[string]map[string]bool `json:"lost,omitempty"`
}

// HandoverRoute is what the main table last said of a destination.
type HandoverRoute struct {
	Destination netip.Prefix `json:"destination"`
	// Peer is the node that the destination is behind.
	Peer string        `json:"peer"`
	Hops []HandoverHop `json:"hops"`
	// Missing says that the main table had lost the route, because a path was down.
	Missing bool `json:"missing,omitempty"`
	// End says that the destination is the node's own address, which an overlay sends to.
	End bool `json:"end,omitempty"`
}

// HandoverHop is a next hop: an address, unless the destination is on the link, and the index
// of the interface.
type HandoverHop struct {
	Gateway netip.Addr `json:"gateway,omitzero"`
	Index   int        `json:"index"`
}

// Equal is true of what says the same.
func (h Handover) Equal(other Handover) bool {
	return slices.EqualFunc(h.Routes, other.Routes, HandoverRoute.equal) &&
		maps.EqualFunc(h.Lost, other.Lost, func(a, b map[string]bool) bool { return maps.Equal(a, b) })
}

func (r HandoverRoute) equal(other HandoverRoute) bool {
	return r.Destination == other.Destination && r.Peer == other.Peer && r.Missing == other.Missing && r.End == other.End &&
		slices.Equal(r.Hops, other.Hops)
}

// TakeOver takes over what an earlier agent knew, which the next Apply compares with the
// kernel's routes. It is to be called before the first one. What makes no sense is left out.
func (d *Detours) TakeOver(from Handover) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, route := range from.Routes {
		if !route.Destination.IsValid() || isWide(route.Destination) || len(route.Hops) == 0 {
			continue
		}
		known := &destination{peer: route.Peer, missing: route.Missing, end: route.End}
		for _, next := range route.Hops {
			known.hops = append(known.hops, hop{gateway: next.Gateway, index: next.Index})
		}
		d.known[route.Destination] = known
	}
	d.unconfirmed = from.Lost
}

// Unconfirmed is how long from now on paths count as lost for the word of an earlier agent alone;
// 0 where none does. The time begins with the first Apply, which is to be called again at its end.
func (d *Detours) Unconfirmed() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case len(d.unconfirmed) == 0:
		return 0
	case d.unconfirmedUntil.IsZero():
		return unconfirmedFor
	}
	return max(0, d.unconfirmedUntil.Sub(d.now()))
}

// Handover is what the next agent is to be told, as of the last Apply.
func (d *Detours) Handover() Handover {
	d.mu.Lock()
	defer d.mu.Unlock()
	left := Handover{Lost: d.lost}
	for _, prefix := range slices.SortedFunc(maps.Keys(d.known), netip.Prefix.Compare) {
		known := d.known[prefix]
		route := HandoverRoute{Destination: prefix, Peer: known.peer, Missing: known.missing, End: known.end}
		for _, h := range known.hops {
			route.Hops = append(route.Hops, HandoverHop{Gateway: h.gateway, Index: h.index})
		}
		left.Routes = append(left.Routes, route)
	}
	return left
}

// addUnconfirmed adds to the lost paths those that were lost to an earlier agent, and of which this
// one does not know better yet.
func (d *Detours) addUnconfirmed(state *State) {
	now := d.now()
	if d.unconfirmedUntil.IsZero() {
		d.unconfirmedUntil = now.Add(unconfirmedFor)
	}
	if !now.Before(d.unconfirmedUntil) {
		d.unconfirmed = nil
	}
	lost := map[string]map[string]bool{}
	for _, peer := range state.Peers {
		d.forgetAlive(peer.Name, state.Alive[peer.Name])
		paths := map[string]bool{}
		maps.Copy(paths, state.Lost[peer.Name])
		maps.Copy(paths, d.unconfirmed[peer.Name])
		if len(paths) > 0 {
			lost[peer.Name] = paths
		}
	}
	d.lost, state.Lost = lost, lost
}

// forgetAlive has paths to a peer that answer not be lost any more.
func (d *Detours) forgetAlive(peer string, alive map[string]bool) {
	maps.DeleteFunc(d.unconfirmed[peer], func(path string, _ bool) bool { return alive[path] })
	if len(d.unconfirmed[peer]) == 0 {
		delete(d.unconfirmed, peer)
	}
}
