// SPDX-License-Identifier: Apache-2.0

package health

import (
	"net/netip"

	"braid.dev/braid/agent/node"
	"braid.dev/braid/agent/paths"
)

// targetsOf are the paths that are up at both ends, with the largest packets that their NICs send.
func targetsOf(model *node.Model) (targets []Target) {
	for _, path := range model.Paths {
		if !path.Up {
			continue
		}
		for _, peer := range model.Peers {
			there := peer.Paths[path.Name]
			if local, remote, ok := ends(path.Found, there); ok && there.Up {
				targets = append(targets, Target{
					Peer: peer.Name, Path: path.Name, Interface: path.Interface, Local: local, Remote: remote,
					Other: otherThan(remote, there.Addresses), Routed: path.Found.Routed, Router: there.Routers[remote], Size: path.Found.MTU,
				})
			}
		}
	}
	return targets
}

// ends are addresses of one family: the first of the peer's that this node has one
// for, and of this node's the one of that network, or else the first.
func ends(here paths.Path, there paths.PeerPath) (local, remote netip.Addr, ok bool) {
	for _, remote := range there.Addresses {
		for _, own := range here.Addresses {
			if own.Addr().Is4() != remote.Is4() {
				continue
			}
			if own.Contains(remote) {
				return own.Addr(), remote, true
			}
			if !local.IsValid() {
				local = own.Addr()
			}
		}
		if local.IsValid() {
			return local, remote, true
		}
	}
	return local, remote, false
}

// otherThan is the first address of the other version of IP; unset where there is none.
func otherThan(address netip.Addr, all []netip.Addr) netip.Addr {
	for _, other := range all {
		if other.Is4() != address.Is4() {
			return other
		}
	}
	return netip.Addr{}
}

func listenersOf(model *node.Model) (listeners []Listener) {
	for _, path := range model.Paths {
		if !path.Up {
			continue
		}
		for _, address := range path.Found.Addresses {
			listeners = append(listeners, Listener{Interface: path.Interface, Address: address.Addr(), Routed: path.Found.Routed})
		}
	}
	return listeners
}
