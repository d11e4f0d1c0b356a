// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"net/netip"
	"time"
)

// Ends are those of a subflow.
type Ends struct{ Local, Remote netip.AddrPort }

// candidate is a subflow that a thin stream can take.
type candidate struct {
	Ends
	rtt   time.Duration
	acked uint64
	// first: the connection began with it.
	first bool
	// asked: the peer made it a backup, which nobody but the peer ends.
	asked bool
}

// thinBacklog is how much may wait of a thin stream, in bytes: what is more gains by further
// subflows.
const thinBacklog = 64 << 10

// A stream that has moved tries its first subflow again after firstWait: one that carries
// nothing tells nothing of its round trips. Each try in vain doubles that.
const (
	firstWait   = 5 * time.Second
	longestWait = 2 * time.Minute
	// fresh is after how many looks with acknowledgements the round-trip time is of today.
	fresh = 10
)

// stream is a thin one, which is on one subflow at a time.
type stream struct {
	away  Ends // where it moved to; the zero value while it did not
	until time.Time
	wait  time.Duration
	stale int    // so many looks until the first subflow's round-trip time counts
	acked uint64 // of the first subflow, at the last look
}

// choose returns the subflow that is to be used, by its index.
func (s *stream) choose(now time.Time, threshold time.Duration, of []candidate) int {
	home, away := homeOf(of), -1
	for i := range of {
		if of[i].Ends == s.away && i != home {
			away = i
		}
	}
	if away >= 0 && now.Before(s.until) {
		return away
	}
	if away >= 0 {
		s.stale, s.acked = fresh, of[home].acked
	}
	s.away = Ends{}
	if of[home].rtt <= threshold {
		s.settle(now)
	}
	best := leastRTT(of)
	if of[home].rtt <= threshold || !s.knows(&of[home]) || best == home {
		return home
	}
	s.away, s.wait = of[best].Ends, min(max(2*s.wait, firstWait), longestWait)
	s.until = now.Add(s.wait)
	return best
}

// settle notes that the first subflow is fast enough; after some time tries are early again.
func (s *stream) settle(now time.Time) {
	s.stale = 0
	if now.Sub(s.until) > 2*s.wait {
		s.wait = 0
	}
}

// knows tells whether the first subflow's round-trip time is of what it carries now.
func (s *stream) knows(home *candidate) bool {
	if s.stale > 0 && home.acked > s.acked {
		s.stale--
	}
	s.acked = home.acked
	return s.stale == 0
}

// homeOf is the subflow that the connection began with, or else the fastest one.
func homeOf(of []candidate) int {
	for i := range of {
		if of[i].first && !of[i].asked {
			return i
		}
	}
	return leastRTT(of)
}

func leastRTT(of []candidate) (best int) {
	for i := range of {
		if of[best].asked && !of[i].asked || of[best].asked == of[i].asked && of[i].rtt < of[best].rtt {
			best = i
		}
	}
	return best
}
