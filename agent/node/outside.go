// SPDX-License-Identifier: Apache-2.0

package node

import (
	"net/netip"
	"slices"

	"braid.dev/braid/agent/paths"
)

// Outside is a range of addresses outside of the cluster. To the programs it is a peer like
// another node, whose addresses on the paths are those of the paths' gateways.
type Outside struct {
	Peer
	Destination netip.Prefix
}

// outsideOf names them as no node can be called.
func outsideOf(led []paths.Outside) (all []Outside) {
	for _, outside := range led {
		peer := paths.Peer{Name: "outside " + outside.Destination.String(), Paths: map[string]paths.PeerPath{}}
		for path, gateway := range outside.Gateways {
			peer.Paths[path] = paths.PeerPath{Addresses: []netip.Addr{gateway.Address}, Up: gateway.Answers}
		}
		all = append(all, Outside{Peer{Peer: peer}, outside.Destination})
	}
	return all
}

// Steered are all that packets are steered to by number: the other nodes, and what leads out
// of the cluster.
func (m *Model) Steered() []Peer {
	all := slices.Clone(m.Peers)
	for i := range m.Outside {
		all = append(all, m.Outside[i].Peer)
	}
	return all
}

// OutsideOf are the model's destinations outside that an endpoint's connections may have.
func (m *Model) OutsideOf(endpoint *Endpoint) (all []Outside) {
	named := paths.Prefixes(endpoint.Outside)
	for _, outside := range m.Outside {
		if slices.Contains(named, outside.Destination) {
			all = append(all, outside)
		}
	}
	return all
}
