// SPDX-License-Identifier: Apache-2.0

package narrow

// sight is what one look finds of what holds a connection back.
type sight struct {
	full    bool // the receiver's window, and the application has more to send
	stuck   bool // much of that window waits for what another path carries
	content bool // the application, or a limit of a subflow's pace
}

// seen is what a look finds. TCP's own account of how long windows held a subflow back does
// not tell: MPTCP gives a subflow no more than the window of the whole connection has room
// for.
func seen(subflows []subflow, data backlog) (found sight) {
	queued, widest := uint64(0), float64(window(subflows))
	for _, s := range subflows {
		queued += s.queued
		found.content = found.content || s.paced
	}
	waits := max(data.underWay, queued) - min(data.underWay, queued)
	found.content = found.content || float64(data.all) < idle*widest
	found.full = !found.content && data.all > data.underWay && float64(data.underWay) > filled*widest
	found.stuck = found.full && float64(waits) > stuck*widest
	return found
}

// limits are what the last looks of a state found.
type limits struct {
	looks []sight // up to long
}

func (l *limits) add(found sight) {
	l.looks = append(l.looks[max(0, len(l.looks)-long+1):], found)
}

func count(looks []sight, is func(sight) bool) (found int) {
	for _, look := range looks {
		if is(look) {
			found++
		}
	}
	return found
}

// last are the last few looks.
func (l *limits) last() []sight { return l.looks[max(0, len(l.looks)-few):] }

// isNarrow tells whether the window is what holds the connection back, and has data wait for
// another path.
func (l *limits) isNarrow() bool {
	full := count(l.last(), func(s sight) bool { return s.full })
	waiting := count(l.looks, func(s sight) bool { return s.stuck })
	return full >= few-1 && waiting > 1 && waiting*seldom >= len(l.looks)
}

// isMostlyStuck tells whether it has data wait for another path in half of the looks.
func (l *limits) isMostlyStuck() bool {
	return 2*count(l.looks, func(s sight) bool { return s.stuck }) >= len(l.looks)
}

// isFull tells whether at least half of the last few looks found the window full.
func (l *limits) isFull() bool {
	return 2*count(l.last(), func(s sight) bool { return s.full }) >= len(l.last())
}

// isContent tells whether most of the last few looks found that something else than the
// window held the connection back.
func (l *limits) isContent() bool {
	return len(l.looks) >= few && count(l.last(), func(s sight) bool { return s.content }) >= few-1
}
