// SPDX-License-Identifier: Apache-2.0

package pathmanager

import (
	"net/netip"
	"slices"
	"sync/atomic"

	"braid.dev/braid/agent/crowd"
	"braid.dev/braid/internal/room"
)

const (
	// MostConnections is how many connections the agent manages on a node, about half
	// a kilobyte each. A pod alone gets a third of them, and tenants share fairly.
	MostConnections = 98304
	// mostSubflows bounds what is remembered of one connection: no policy asks for more.
	mostSubflows = maxCount
	// mostAnnounced bounds the addresses of a peer, and mostRefused the pairs with them.
	mostAnnounced = 8
	mostRefused   = 16
)

// share is a pod's part of the room for connections. Without a room it has no bound.
type share struct {
	room   *room.Room
	crowd  *crowd.Room
	owners []string // the tenant and the pod
	counts *Counts
	taken  int
	// unmanaged is how many connections found no room, as far as is known.
	unmanaged atomic.Int64
}

// Counts are what the pods of a tenant did, for metrics.
type Counts struct {
	// Unmanaged connections found no room, Rescued ones waited for room on the paths and stood
	// still. EventsLost is how often the kernel dropped events, because more came than were received.
	Unmanaged, Rescued, EventsLost atomic.Uint64
	// waiting is how many connections are looked at until they have moved enough.
	waiting atomic.Int64
}

func (s *share) take() bool {
	if s.room != nil && !s.room.Take(s.owners...) {
		s.unmanaged.Add(1)
		s.counts.Unmanaged.Add(1)
		return false
	}
	s.taken++
	return true
}

func (s *share) give(places int) {
	s.taken -= places
	if s.room != nil {
		s.room.Give(places, s.owners...)
	}
}

// left is how many connections the pod may have more.
func (s *share) left() int {
	if s.room == nil {
		return MostConnections
	}
	return s.room.Left(s.owners...)
}

// staysInside tells whether a connection ends where it begins: it has no path through
// the node's NICs, so nothing is to be managed, and it takes no room.
func (s Settings) staysInside(local, remote netip.AddrPort) bool {
	address := remote.Addr().Unmap()
	return address.IsLoopback() || address == local.Addr().Unmap() || slices.Contains(s.Addresses, address)
}
