// SPDX-License-Identifier: Apache-2.0

package narrow

import (
	"math"
	"slices"
	"time"
)

// rival is a path that may give more than the one that is to be shared, and how much it promises.
type rival struct {
	path     uint8
	promises float64
}

// rivalsOf are those of which nothing shows that they are slow: their subflows move a good part of what
// the chosen one does, next to nothing waits there, and they lose nothing. While a slow path has the connection wait,
// the others' subflows send little, in pieces that a path's shaper lets by at once: TCP's word of
// their rates is then too high, or beyond belief, and which of them moves more is chance.
func (c *connection) rivalsOf(now time.Time, chosen uint8, subflows []subflow) (rivals []rival) {
	moves, waiting, losing := 0.0, 0.0, c.losing(subflows)
	for _, s := range subflows {
		h := c.subflows[s.ends]
		waiting = max(waiting, h.held)
		if s.path == chosen {
			moves = max(moves, h.peak)
		}
	}
	for _, s := range subflows {
		h := c.subflows[s.ends]
		if s.path == chosen || h.peak <= spare*moves || h.held >= spare*waiting || slices.Contains(losing, s.path) {
			continue
		}
		promises, _, sure := c.would(now, s.path, h, false)
		if !sure {
			promises = math.Inf(1)
		}
		rivals = append(rivals, rival{s.path, promises})
	}
	return rivals
}

// toRival is the one of them that promises most, each once, where a connection fills the path that is
// shared, and that gives less, or its bursts are late there.
func (c *connection) toRival() (next arrangement, found bool) {
	if c.keeps != 0 || c.looks < recent || !(c.limits.isFull() || c.bursts && c.limits.isMostlyLate()) {
		return next, false
	}
	best := -1
	for i, r := range c.rivals {
		if r.promises > gain*c.rate.value && (best < 0 || r.promises > c.rivals[best].promises) {
			best = i
		}
	}
	if best < 0 {
		return next, false
	}
	next = c.arrangement
	next.path, next.guessed, next.sure = c.rivals[best].path, false, false
	c.rivals = slices.Delete(c.rivals, best, best+1)
	return next, true
}
