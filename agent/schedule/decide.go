// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"cmp"
	"slices"
	"time"
)

// subflow is what is known of one subflow of a connection when a decision is made.
type subflow struct {
	rtt       time.Duration
	variation time.Duration
	window    uint64 // congestion window, in bytes
	resting   bool   // a backup since an earlier decision
}

// stay is by how much later a resting subflow's data may arrive before it is used
// again (beta of ECF), so that decisions do not flap.
const stay = 0.25

// earliestCompletionFirst tells which subflows rest: those over which a segment
// sent now would arrive later than the whole backlog does over the faster ones.
//
// It is the rule of ECF (Lim et al., CoNEXT 2017) in the form of eMPTCP's listing
// 5, applied to connections at intervals instead of to each segment.
func earliestCompletionFirst(backlog uint64, subflows []subflow) (resting []bool) {
	resting = make([]bool, len(subflows))
	order := make([]int, len(subflows))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(subflows[a].rtt, subflows[b].rtt) })
	var window float64 // of the subflows in use
	for n, i := range order {
		s := &subflows[i]
		if n > 0 && window > 0 {
			fastest := &subflows[order[0]]
			completion := fastest.rtt.Seconds() * (1 + float64(backlog)/window)
			resting[i] = completion < s.arrival(fastest)
		}
		if !resting[i] {
			window += float64(s.window)
		}
	}
	return resting
}

// arrival is how long a segment takes over the subflow, in seconds, with the
// margin that the measurements need.
func (s *subflow) arrival(fastest *subflow) float64 {
	arrival := (s.rtt + max(s.variation, fastest.variation)).Seconds()
	if s.resting {
		arrival *= 1 + stay
	}
	return arrival
}
