// SPDX-License-Identifier: Apache-2.0

package health

import (
	"math/bits"
	"time"
)

const (
	// historyLength is the number of probes that the loss is taken from.
	historyLength = 64
	// fewest probes say something about loss.
	fewest = 10
	// noticed is the difference of a round-trip time that is worth telling of, as a
	// part of it, and least.
	noticed      = 10
	leastNoticed = 50 * time.Microsecond
)

func (t *target) loss() float64 {
	if t.judged < fewest {
		return 0
	}
	lost := bits.OnesCount64(t.history)
	return float64(lost) / float64(min(t.judged, historyLength))
}

// differs is true when the figures are no longer those that were shown.
func (t *target) differs() bool {
	return t.loss() != t.shown.Loss || t.distance.distant != t.shown.Distant || t.distance.known != t.shown.DistanceKnown ||
		(t.rtt-t.shown.RTT).Abs() > max(t.shown.RTT/noticed, leastNoticed)
}
