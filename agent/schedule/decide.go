// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"cmp"
	"slices"
	"time"
)

// subflow is what is known of one subflow of a connection when a decision is made.
type subflow struct {
	// delay is one way, without queues.
	delay time.Duration
	// rate at which it delivers, in bytes a second; infinite while it never met its
	// limit, so that it is tried.
	rate float64
	// resting is true for a backup since an earlier decision.
	resting bool
}

// gain is the part by which a resting subflow must let the backlog arrive earlier
// to be used again, so that decisions do not flap.
const gain = 0.1

// earliestCompletionFirst tells which subflows rest: those with whose help the
// backlog would be at the peer later than without, because what they carry is
// longer under way. The fastest one is always used.
//
// It is the rule of ECF (Lim et al., CoNEXT 2017), which eMPTCP's listing 5
// applies to connections at intervals. Those compare round trips; here the slower
// subflow's rate counts too, as the kernel gives each subflow its share of the data.
func earliestCompletionFirst(backlog uint64, subflows []subflow) (resting []bool) {
	resting = make([]bool, len(subflows))
	order := make([]int, len(subflows))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(subflows[a].delay, subflows[b].delay) })
	var rate float64 // of those in use
	var completion float64
	for n, i := range order {
		s := &subflows[i]
		with := float64(backlog)/(rate+s.rate) + s.delay.Seconds()
		threshold := with
		if s.resting {
			threshold *= 1 + gain
		}
		if resting[i] = n > 0 && completion < threshold; resting[i] {
			continue
		}
		rate += s.rate
		completion = with
	}
	return resting
}
