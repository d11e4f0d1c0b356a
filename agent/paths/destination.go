// SPDX-License-Identifier: Apache-2.0

package paths

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// owner is whose an address is.
type owner struct {
	peer string
	path string // empty for an address that is on no path
}

// addressOwners finds the owner of a gateway.
type addressOwners map[netip.Addr]owner

// learn makes the owners anew from the peers, of which no two have one address. It
// keeps the addresses that routes use and a peer no longer mentions whose addresses
// nobody confirmed: a NIC that is set down loses its IPv6 addresses, and just then its
// owner must be known.
func (b addressOwners) learn(peers []Peer, inUse map[netip.Addr]bool) addressOwners {
	owners, confirmed := addressOwners{}, map[string]bool{}
	for _, peer := range peers {
		for _, path := range slices.Sorted(maps.Keys(peer.Paths)) {
			owners.claim(peer.Paths[path].Addresses, owner{peer.Name, path})
		}
		owners.claim(peer.Addresses, owner{peer.Name, ""})
		confirmed[peer.Name] = peer.Confirmed
	}
	for address, before := range b {
		now, mentioned := owners[address]
		forgotten := !mentioned && !confirmed[before.peer] || now.peer == before.peer && now.path == ""
		if inUse[address] && forgotten {
			owners[address] = before
		}
	}
	return owners
}

func (b addressOwners) claim(addresses []netip.Addr, by owner) {
	for _, address := range addresses {
		if _, taken := b[address]; !taken {
			b[address] = by
		}
	}
}

// peerOf is the one peer that all next hops belong to; empty if there is none.
func (b addressOwners) peerOf(hops []hop) (peer string) {
	for i, hop := range hops {
		of := b[hop.gateway].peer
		if i > 0 && of != peer {
			return ""
		}
		peer = of
	}
	return peer
}

// destination is what the main table last said of a prefix behind a peer.
type destination struct {
	peer string
	hops []hop
	// missing: the main table has lost it, because a path was down.
	missing bool
	// broken: the path was down at either end, or the NIC went down just after the
	// route was read. A route that vanishes next is not taken as removed on purpose.
	broken bool
	// end: it is a peer's own address, and no route but an overlay sends to it.
	end bool
}

func (d *Detours) gateways() map[netip.Addr]bool {
	inUse := map[netip.Addr]bool{}
	for _, destination := range d.known {
		for _, hop := range destination.hops {
			inUse[hop.gateway] = true
		}
	}
	return inUse
}

// adopt reads what an earlier agent left. Its routes that are in the main table
// are known by them, also if the peer's NIC has lost the address, unless a controller
// says which addresses the peer has; of those that are not, the NIC is known by the
// metric. A detour to a peer's own address was made for an overlay: whether there is one
// still, remember finds out.
func (d *Detours) adopt(v *view) {
	for _, route := range v.seen.ours {
		if route.Type != unix.RTN_UNICAST {
			continue
		}
		prefix, _ := destinationOf(route)
		peer := d.owners.peerOf(hopsOf(route))
		if peer == "" || isWide(prefix) {
			continue
		}
		if usual, ok := v.seen.main[prefix]; ok {
			if !v.peers[peer].Confirmed {
				d.adoptGateways(v, usual, peer)
			}
			continue
		}
		if known := d.known[prefix]; known != nil && known.peer == peer { // by its Handover
			known.missing = true
			continue
		}
		end := prefix.IsSingleIP() && d.owners[prefix.Addr()].peer == peer
		d.known[prefix] = &destination{peer: peer, hops: []hop{{index: route.Priority}}, missing: true, end: end}
	}
}

func (d *Detours) adoptGateways(v *view, usual netlink.Route, peer string) {
	for _, hop := range hopsOf(usual) {
		if hop.gateway.IsValid() {
			d.owners.claim([]netip.Addr{hop.gateway}, owner{peer, v.pathOf[hop.index]})
		}
	}
}

// remember notes the routes to peers, and which of them are missing and why.
func (d *Detours) remember(v *view) {
	ends := v.ends()
	for prefix, known := range d.known {
		if known.end && ends[prefix] != known.peer || !v.routed(prefix, known) && !v.misses(known) {
			delete(d.known, prefix)
		}
	}
	for prefix, route := range v.seen.main {
		hops := hopsOf(route)
		peer := d.owners.peerOf(hops)
		if peer == "" || isWide(prefix) || v.encapsulates(route, hops) {
			delete(d.known, prefix)
			continue
		}
		d.known[prefix] = v.examine(peer, hops)
	}
	d.rememberEnds(v, ends)
}

// routed: the main table still has a route to what is known.
func (v *view) routed(prefix netip.Prefix, known *destination) bool {
	_, ok := v.seen.main[prefix]
	return ok || known.end && v.hopsTo(prefix.Addr()) != nil
}

// plan gives each destination that is missing or broken, and can be reached by
// another path, a detour; sorted by destination.
func (d *Detours) plan(v *view) (plan []wanted) {
	for prefix, known := range d.known {
		via, broken := v.broken(known)
		if !broken {
			continue
		}
		from := v.path(via)
		ways := v.ways(known.peer, from, familyOf(prefix.Addr()))
		if len(ways) > 0 {
			plan = append(plan, wanted{Detour{Destination: prefix, Peer: known.peer, From: from}, via.index, ways})
		}
	}
	slices.SortFunc(plan, func(a, b wanted) int { return a.Destination.Compare(b.Destination) })
	return plan
}
