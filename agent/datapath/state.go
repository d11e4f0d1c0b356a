// SPDX-License-Identifier: Apache-2.0

// Package datapath loads the uplink half of the datapath, attaches it to the
// node's NICs and keeps its maps as the node's plan says. Everything it makes is
// pinned: the packets go on without the agent, and the next agent takes over
// what it finds.
package datapath

import (
	"fmt"
	"net/netip"

	"braid.dev/braid/agent/paths"
	"braid.dev/braid/api/v1alpha1"
)

// State is all that the datapath must know. A state without paths means that
// nothing is to be attached.
type State struct {
	// Paths are the node's NICs, one for each path.
	Paths []Path
	// Uplinks are the interface indexes of further NICs to attach to: those
	// that belong to no path, and yet carry routes to other nodes.
	Uplinks []int
	// Peers are the other nodes.
	Peers []Peer
	// Endpoints are the node's pods whose connections are spread.
	Endpoints []Endpoint
}

// Path is this node's NIC on one path.
type Path struct {
	Name string
	// Interface is the NIC's index, positive.
	Interface int
	// Up is false while the NIC cannot send: its subflows use other paths.
	Up bool
}

// Peer is another node, as agent/paths knows it.
type Peer = paths.Peer

// PeerPath is another node's NIC on one path.
type PeerPath = paths.PeerPath

// Endpoint is a pod whose connections are spread over paths.
type Endpoint struct {
	// Addresses of the pod, IPv4 and IPv6.
	Addresses []netip.Addr
	// Paths it may use, with a weight of 1 to 100 each.
	Paths []v1alpha1.PathWeight
	// Preferred are those of Paths that its subflows use while these are good;
	// where the connections began does not matter.
	Preferred []v1alpha1.PathName
	// Backup are those of Paths that are used only while no other can be.
	Backup []v1alpha1.PathName
	// Class says which paths are good: an index into PeerHealth.Good, below
	// MaxClasses.
	Class int
	// Share of the endpoint's subflows, in percent, that follows Preferred; 0 for
	// all of them.
	Share int32
	// SamePath places the further subflows of a connection on its first one's path.
	SamePath bool
	// Interface is the index of that by which the endpoint's packets come into the
	// node; 0 for unknown. What others send with its addresses then changes none of
	// its flows.
	Interface int
}

// MaxClasses is the number of classes of preferences that a node can have.
const MaxClasses = 8

// validate catches what the kernel's maps could not hold.
func (s *State) validate() error {
	if len(s.Paths) > v1alpha1.MaxPaths {
		return fmt.Errorf("%d paths: a node can use %d at most", len(s.Paths), v1alpha1.MaxPaths)
	}
	for _, path := range s.Paths {
		if path.Interface <= 0 {
			return fmt.Errorf("path %q has no interface", path.Name)
		}
		if len(path.Name) >= nameLength {
			return fmt.Errorf("path name %q is longer than %d bytes", path.Name, nameLength-1)
		}
	}
	for _, endpoint := range s.Endpoints {
		if endpoint.Class < 0 || endpoint.Class >= MaxClasses {
			return fmt.Errorf("endpoint %v is of class %d: there are %d", endpoint.Addresses, endpoint.Class, MaxClasses)
		}
		if endpoint.Share < 0 || endpoint.Share > 100 {
			return fmt.Errorf("endpoint %v prefers paths for %d percent of its subflows", endpoint.Addresses, endpoint.Share)
		}
	}
	return nil
}

// uplinks are the indexes of all NICs that get the programs, without repetition.
func (s *State) uplinks() map[int]bool {
	uplinks := map[int]bool{}
	for _, path := range s.Paths {
		uplinks[path.Interface] = true
	}
	for _, index := range s.Uplinks {
		uplinks[index] = true
	}
	return uplinks
}
