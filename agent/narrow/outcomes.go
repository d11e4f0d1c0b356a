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
	keeps  uint8 // paths whose subflows stay there
	window uint64
	// least is the rate of a connection below which the path is no longer what it was.
	least float64
	until time.Time
}

// suits tells whether an outcome is for connections with such subflows.
func (l *outcome) suits(now time.Time, subflows []subflow) bool {
	has := slices.ContainsFunc(subflows, func(s subflow) bool { return s.path == l.path })
	return has && now.Before(l.until) && float64(window(subflows)) < grown*float64(l.window)
}

// outcomes are those of all pairs of addresses.
type outcomes map[addresses]*outcome

// tell has a connection begin by the path by which an earlier one plainly got more, once one of its
// subflows sends much there. One that has gone on for longer knows better itself.
func (l outcomes) tell(now time.Time, of addresses, c *connection, subflows []subflow) {
	known := l[of]
	if !c.begun.IsZero() || c.looks >= long || known == nil || !known.suits(now, subflows) {
		return
	}
	c.adopt(now, known.path, known.keeps)
	c.window, c.before, c.told = known.window, known.least, true
}

// learn takes in what a look at a connection found, which may have been trying something until then.
func (l outcomes) learn(now time.Time, of addresses, wasTrying bool, c *connection) {
	known, wide := l[of], c.widest
	switch {
	case wasTrying && c.hasSettled(true) && c.plainly:
		if known == nil {
			l.makeRoom(now)
		} else if now.Before(known.until) && known.path == c.path && known.keeps == c.keeps {
			wide = max(wide, known.window)
		}
		l[of] = &outcome{c.path, c.keeps, wide, max(c.before, plain*c.gave), now.Add(valid)}
	case known == nil || float64(wide) >= grown*float64(known.window):
	case (wasTrying || c.misled) && c.hasSettled(false):
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
