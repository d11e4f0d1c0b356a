// SPDX-License-Identifier: Apache-2.0

package paths

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
)

// view is the state and the kernel's routes, ready for decisions.
type view struct {
	seen   *snapshot
	owners addressOwners
	peers  map[string]Peer
	lost   map[string]map[string]bool // paths by peers, as State has them
	dead   map[string]map[string]bool
	paths  map[string]int  // interface of each path that is up here
	narrow map[string]bool // paths that are up and yet not usable
	pathOf map[int]string  // path of each interface that has one
	// addresses are this node's on each such interface.
	addresses map[int]map[netip.Addr]bool
}

func newView(state State, seen *snapshot, owners addressOwners) *view {
	v := &view{
		seen: seen, owners: owners, peers: map[string]Peer{}, lost: state.Lost, dead: state.Dead,
		paths: map[string]int{}, narrow: map[string]bool{}, pathOf: map[int]string{},
		addresses: map[int]map[netip.Addr]bool{},
	}
	for _, peer := range state.Peers {
		v.peers[peer.Name] = peer
	}
	for _, path := range state.Paths {
		if path.Index == 0 {
			continue
		}
		v.pathOf[path.Index] = path.Name
		v.addresses[path.Index] = addressesOf(path.NIC)
		v.narrow[path.Name] = path.Up && !path.Usable
		if seen.up[path.Index] {
			v.paths[path.Name] = path.Index
		}
	}
	return v
}

func addressesOf(nic NIC) map[netip.Addr]bool {
	addresses := map[netip.Addr]bool{}
	for _, prefix := range nic.Addresses {
		addresses[prefix.Addr()] = true
	}
	return addresses
}

// path is the one that a next hop is on: the peer's, or else this node's.
func (v *view) path(h hop) string {
	if path := v.owners[h.gateway].path; path != "" {
		return path
	}
	return v.pathOf[h.index]
}

// works: the interface is up, the peer's NIC on that path is not known to be down, and
// nothing says that all is lost in between.
func (v *view) works(peer string, h hop) bool {
	if !v.seen.up[h.index] {
		return false
	}
	name := v.path(h)
	path, known := v.peers[peer].Paths[name]
	return (!known || path.Up) && !v.lost[peer][name]
}

// encapsulates: the route's packets leave inside of others, as those of an overlay do. A
// detour would send them bare.
func (v *view) encapsulates(route netlink.Route, hops []hop) bool {
	return route.Encap != nil || slices.ContainsFunc(hops, func(h hop) bool { return v.seen.tunnel[h.index] })
}

// misses: a destination that the main table has no longer is still wanted, for it
// was not removed on purpose. It notes so.
func (v *view) misses(known *destination) bool {
	if _, present := v.peers[known.peer]; !present {
		return false
	}
	reason := known.missing || known.broken || slices.ContainsFunc(known.hops, func(h hop) bool {
		return v.seen.wasDown(h.index) || !v.works(known.peer, h)
	})
	known.missing = reason
	return reason
}

// examine describes a destination that is in the main table.
func (v *view) examine(peer string, hops []hop) *destination {
	found := &destination{peer: peer, hops: hops}
	_, broken := v.broken(found)
	found.broken = broken || slices.ContainsFunc(hops, func(h hop) bool { return v.seen.after.has(h.index) })
	return found
}

// broken returns the next hop that does not work: packets that take it are lost.
// For a missing destination it is the first.
func (v *view) broken(known *destination) (hop, bool) {
	if known.missing {
		return known.hops[0], true
	}
	for _, h := range known.hops {
		leftOut := h.dead && len(known.hops) > 1
		if !leftOut && !v.works(known.peer, h) {
			return h, true
		}
	}
	return hop{}, false
}

// ways lists how a peer can be reached: by the paths that are up at both ends and not
// lost, in the order of their names from the usual one on, and round. Both ends so choose
// alike. The usual path itself comes first: if it works, only the route in the
// main table is missing. Paths that are not usable are better than none, and those that
// are dead come last.
func (v *view) ways(peer, from string, family int) []way {
	var usable, narrow, dead []way
	names := slices.Sorted(maps.Keys(v.paths))
	start, _ := slices.BinarySearch(names, from)
	for i := range names {
		name := names[(start+i)%len(names)]
		switch by := v.waysBy(name, peer, family); {
		case v.dead[peer][name]:
			dead = append(dead, by...)
		case v.narrow[name]:
			narrow = append(narrow, by...)
		default:
			usable = append(usable, by...)
		}
	}
	return slices.Concat(usable, narrow, dead)
}

// waysBy lists the peer's addresses of a family on one path, or the routers that lead there,
// if it is up there and not lost.
func (v *view) waysBy(name, peer string, family int) (ways []way) {
	path := v.peers[peer].Paths[name]
	if !path.Up || v.lost[peer][name] {
		return nil
	}
	for _, address := range path.Addresses {
		if familyOf(address) == family {
			ways = append(ways, way{name, path.NextHop(address), v.paths[name]})
		}
	}
	return ways
}
