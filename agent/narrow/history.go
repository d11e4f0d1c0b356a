// SPDX-License-Identifier: Apache-2.0

package narrow

import (
	"math"
	"net/netip"
	"time"
)

const (
	// lossy is the part of what a subflow moves that it must have sent again for its path to be
	// one that loses packets, and more how many times as large that part must be as that of
	// another subflow.
	lossy, more = 0.001, 4
)

// ends tell a subflow from the others of its namespace.
type ends struct{ local, remote netip.AddrPort }

// subflow is what is known of one that sends.
type subflow struct {
	ends
	path   uint8
	acked  uint64        // bytes, since it began
	rate   float64       // at which they were delivered while some were under way, in bytes a second
	rtt    time.Duration // smoothed
	least  time.Duration // the shortest of the last minutes
	window uint64        // of the receiver, in bytes
	queued uint64        // bytes that it took and the peer has not acknowledged
	resent uint64        // bytes that were sent again, since it began
	paced  bool          // a limit of its pace is what holds it back
	backup bool          // one end asked that it send only where no other subflow can
}

// shown is what a path gave when all subflows shared it.
type shown struct {
	rate float64
	at   time.Time
}

// history is what is remembered of a subflow.
type history struct {
	looks int
	acked uint64
	moved float64   // its rate since the last look
	peak  float64   // the fastest that it was of late
	rates []float64 // the last few

	resent      uint64
	bytes, lost float64 // of late: that it moved, and that it sent again
	held        float64 // that wait to be acknowledged, on the average of late
}

// note takes in how far a subflow is, after so many seconds.
func (h *history) note(s *subflow, passed float64) {
	h.looks++
	moved := float64(s.acked - h.acked)
	h.bytes += moved - h.bytes/long
	h.lost += float64(s.resent-h.resent) - h.lost/long
	h.held += (float64(s.queued) - h.held) / recent
	h.acked, h.resent, h.moved = s.acked, s.resent, moved/passed
	h.peak = max(h.peak-h.peak/long, h.moved)
	if h.moved > 0 || len(h.rates) == 0 { // else it is what was told before
		h.rates = append(h.rates[max(0, len(h.rates)-few+1):], s.rate)
	}
}

// drains is how many seconds its path needs for what waits there: none of a path that carries
// little because another one has the connection wait, and more than any of one that has let nothing
// through for a few looks.
func (h *history) drains() float64 {
	switch {
	case h.peak > 0:
		return h.held / h.peak
	case h.held > 0 && h.looks >= few:
		return math.Inf(1)
	}
	return 0
}

// loses tells whether a subflow's path loses packets.
func (h *history) loses() bool { return h.lost > lossy*h.bytes }

// losesMore tells whether a subflow's path loses packets, and that of another one, which moves
// about as much, does not, or much less.
func (h *history) losesMore(other *history) bool {
	return h.loses() && h.lost*other.bytes > more*other.lost*h.bytes && other.peak > plain*h.peak
}

// average is of the last few looks, or as many as there were.
type average struct {
	value float64
	looks int
}

func (a *average) add(rate float64, most int) {
	a.looks = min(a.looks+1, most)
	a.value += (rate - a.value) / float64(a.looks)
}
