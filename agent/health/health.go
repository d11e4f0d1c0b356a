// SPDX-License-Identifier: Apache-2.0

// Package health tells which paths to which nodes work, how long their round trips
// are and what they lose. Agents probe each other over each path with small UDP
// packets: a Prober asks, a Responder on every node answers. A Judge says which
// paths are as good as a preference asks.
//
// What it says must never make things worse. A path is dead only by comparison: it
// left three probes in a row without an answer while another path to the same node
// answered probes sent after them. So a node whose agent is away, older, or not
// allowed to answer has no dead paths, and neither has anybody while this agent or
// its machine is held up.
package health

import (
	"cmp"
	"net/netip"
	"time"
)

// Target is one path to one peer.
type Target struct {
	// Peer is the name of the other node, Path that of the path.
	Peer, Path string
	// Interface is the index of this node's NIC on the path.
	Interface int
	// Local is this node's address on the path, Remote the peer's.
	Local, Remote netip.Addr
	// Other is an address of the peer on the path that is not probed, of the other version
	// of IP, if there is one: the kernel resolves each by itself.
	Other netip.Addr
	// Routed: there may be routers on the path. Router is the one that leads to Remote; unset
	// where that is on the NIC's own link.
	Routed bool
	Router netip.Addr
	// Active targets, towards peers that flows go to, are probed often.
	Active bool
	// Judged: preferences compare the path's round trips and losses with those of others. So it is
	// probed as often where flows show that it works.
	Judged bool
	// Size of the largest packets that pods send there, in bytes with the IP header; 0 where it
	// is not known. Whether these arrive is probed too.
	Size int
}

// State of a path to a peer.
type State uint8

const (
	// Unknown is that of a peer that does not answer, or is not probed. Nothing speaks against
	// the path.
	Unknown State = iota
	// Alive is that of a path on which probes are answered.
	Alive
	// Dead is that of a path on which probes stay without an answer, while those on
	// another path to the same peer do not.
	Dead
)

func (s State) String() string {
	return [...]string{"unknown", "alive", "dead"}[s]
}

// Sample is what is known of one path to one peer.
type Sample struct {
	State State
	// RTT is the smoothed round-trip time, without what the probes waited in this
	// node's own queue and for the peer's agent; 0 while it is not known.
	RTT time.Duration
	// Loss is the share of the last 64 probes that was lost, from 0 to 1. Probes
	// that a dead path lost do not count once it is alive again.
	Loss float64
	// Probed is true where enough probes were sent to expect an answer.
	Probed bool
	// Answers is true where one of the last three of them was answered.
	Answers bool
	// Distant is true of a path by which a packet and its answer take much longer than by the best one to the
	// same peer, with what waits in the queues of both. DistanceKnown is false
	// before there were enough answers to tell.
	Distant, DistanceKnown bool
	// LosesLarge is true of a path that is dead for no other reason than that packets of
	// Target.Size are lost there, while the peer answers such ones on another path.
	LosesLarge bool
	// Lost is true of a path that was dead while the kernel, too, asked in vain for the
	// peer's hardware address there: no packet gets through, whatever filters let pass.
	// It stays until a probe is answered again, or the kernel's question is.
	Lost bool
}

type pair struct{ peer, path string }

// View is what was known at one moment. The zero View knows nothing.
type View struct {
	samples map[pair]Sample
}

// Sample is what is known of a path to a peer.
func (v View) Sample(peer, path string) Sample { return v.samples[pair{peer, path}] }

// Set changes one sample, for tests of those who use views.
func (v *View) Set(peer, path string, sample Sample) {
	if v.samples == nil {
		v.samples = map[pair]Sample{}
	}
	v.samples[pair{peer, path}] = sample
}

// Dead lists the dead paths of each peer that has some.
func (v View) Dead() map[string]map[string]bool {
	return v.those(func(s *Sample) bool { return s.State == Dead })
}

// Alive lists the paths of each peer that answer.
func (v View) Alive() map[string]map[string]bool {
	return v.those(func(s *Sample) bool { return s.State == Alive })
}

// Distant tells of each path to a peer whether it is distant; not of those of which that is not known.
func (v View) Distant() map[string]map[string]bool {
	known := v.those(func(s *Sample) bool { return s.DistanceKnown })
	for peer, paths := range known {
		for path := range paths {
			paths[path] = v.Sample(peer, path).Distant
		}
	}
	return known
}

// Lost lists the lost paths of each peer that has some.
func (v View) Lost() map[string]map[string]bool {
	return v.those(func(s *Sample) bool { return s.Lost })
}

func (v View) those(are func(*Sample) bool) map[string]map[string]bool {
	found := map[string]map[string]bool{}
	for of, sample := range v.samples {
		if !are(&sample) {
			continue
		}
		if found[of.peer] == nil {
			found[of.peer] = map[string]bool{}
		}
		found[of.peer][of.path] = true
	}
	return found
}

func compareTargets(a, b Target) int {
	return cmp.Or(cmp.Compare(a.Peer, b.Peer), cmp.Compare(a.Path, b.Path))
}
