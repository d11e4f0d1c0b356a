// SPDX-License-Identifier: Apache-2.0

package narrow

import (
	"maps"
	"slices"
	"time"
)

const (
	// mostOutcomes is how many are remembered.
	mostOutcomes = 1024
	// valid is how long one is.
	valid = longestRest
)

// outcome is what a connection between two addresses found out plainly: that with so small a
// window it gets more by this path alone. The next ones begin so: many do not last until they
// have seen it for themselves.
type outcome struct {
	path   uint8
	window uint64
	until  time.Time
}

// suits tells whether an outcome is for connections with such subflows.
func (l *outcome) suits(now time.Time, subflows []subflow) bool {
	has := slices.ContainsFunc(subflows, func(s subflow) bool { return s.path == l.path })
	return has && now.Before(l.until) && float64(window(subflows)) < grown*float64(l.window)
}

// outcomes are those of all pairs of addresses.
type outcomes map[addresses]*outcome

// begin is a new connection's state.
func (l outcomes) begin(now time.Time, of addresses, subflows []subflow) *connection {
	known := l[of]
	if known == nil || !known.suits(now, subflows) {
		return &connection{}
	}
	c := adopt(now)
	c.path, c.window, c.told = known.path, known.window, true
	return c
}

// learn takes in what a look at a connection that was in this state found.
func (l outcomes) learn(now time.Time, of addresses, before state, c *connection) {
	known, wide := l[of], c.widest
	switch {
	case before == tryTogether && c.state == together && c.plainly:
		if known == nil {
			l.makeRoom(now)
		} else if now.Before(known.until) && known.path == c.path {
			wide = max(wide, known.window)
		}
		l[of] = &outcome{c.path, wide, now.Add(valid)}
	case known == nil || float64(wide) >= grown*float64(known.window):
	case (before == tryTogether || before == tryApart) && c.state == apart:
		delete(l, of)
	}
}

// makeRoom forgets what is no longer valid, or anything.
func (l outcomes) makeRoom(now time.Time) {
	if len(l) < mostOutcomes {
		return
	}
	maps.DeleteFunc(l, func(_ addresses, known *outcome) bool { return !now.Before(known.until) })
	for of := range l {
		if len(l) < mostOutcomes {
			return
		}
		delete(l, of)
	}
}
