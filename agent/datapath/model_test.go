// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"slices"

	"braid.dev/braid/agent/node"
	"braid.dev/braid/agent/node/nodetest"
)

type (
	// State of a node, of which its agent's builder makes the model.
	State    = nodetest.State
	Path     = nodetest.Path
	Peer     = nodetest.Peer
	PeerPath = nodetest.PeerPath
	Endpoint = nodetest.Endpoint
)

// without is the state without a path, as while its NIC is gone.
func without(s State, path string) State {
	s.Paths = slices.DeleteFunc(slices.Clone(s.Paths), func(p Path) bool { return p.Name == path })
	return s
}

func nextHops(s State) map[neighbour]bool {
	model := &node.Model{}
	for _, path := range s.Paths {
		model.Paths = append(model.Paths, node.Path{Name: path.Name, Interface: path.Interface, Up: path.Up})
	}
	for _, peer := range s.Peers {
		model.Peers = append(model.Peers, node.Peer{Peer: peer})
	}
	return neighboursOf(model.NICs(), model.Peers)
}
