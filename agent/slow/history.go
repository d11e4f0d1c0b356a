// SPDX-License-Identifier: Apache-2.0

package slow

import (
	"slices"
	"time"

	"braid.dev/braid/agent/datapath"
	"braid.dev/braid/bpf/uplink"
)

const (
	// window is how long ago connections may have begun that have not ended.
	window = 16 * time.Second
	// somewhat lies between two moments that are remembered: there may be thousands of pairs.
	somewhat = 500 * time.Millisecond
)

// counts are how many had begun and ended on a path.
type counts struct{ begun, ended uint32 }

// moment is when there were so many.
type moment struct {
	at time.Time
	on [uplink.MaxPaths]counts
}

// ended are the connections that had ended on all paths.
func (m *moment) ended() (sum float64) {
	for _, on := range m.on {
		sum += float64(on.ended)
	}
	return sum
}

func momentOf(at time.Time, seen *datapath.Lasting) moment {
	m := moment{at: at}
	for i, on := range seen.On {
		m.on[i] = counts{on.Begun, on.Ended}
	}
	return m
}

// history are moments of the last window, each somewhat after the one before, and one before all.
type history []moment

func (h history) add(m moment) history {
	for len(h) > 1 && m.at.Sub(h[1].at) > window {
		h = h[1:]
	}
	if len(h) > 0 && m.at.Sub(h[len(h)-1].at) < somewhat {
		return h
	}
	return append(h, m)
}

// rate is how many connections ended in a second over so long, or somewhat longer, as far as is known, and how many
// these were.
func (h history) rate(now moment, over time.Duration) (perSecond, number float64) {
	for _, then := range slices.Backward(h) {
		passed := now.at.Sub(then.at)
		if passed > 0 {
			number = now.ended() - then.ended()
			perSecond = number / passed.Seconds()
		}
		if passed >= over {
			break
		}
	}
	return perSecond, number
}

// old tells how many of those that began on a path within the window are older than age, and how many of
// these at least have not ended.
func (h history) old(path int, age time.Duration, now moment) (begun, living float64) {
	for _, then := range h {
		if now.at.Sub(then.at) < age {
			break
		}
		begun = float64(then.on[path].begun - h[0].on[path].begun)
	}
	if begun == 0 {
		return 0, 0
	}
	return begun, max(0, begun-float64(now.on[path].ended-h[0].on[path].ended))
}
