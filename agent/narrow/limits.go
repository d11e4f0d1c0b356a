// SPDX-License-Identifier: Apache-2.0

package narrow

const (
	// filled is the part of a window that is under way where it holds the connection back: the
	// rest may be less than a piece that TCP sends at once. It is also the part of a send buffer
	// from which on the kernel has applications wait. stuck is the part of which either
	// has come by one path and waits for what another one carries, or was sent again on
	// another path.
	filled, stuck = 2.0 / 3, 1.0 / 3
	// seldom is of how many looks one at least must find that, and more than one in all.
	seldom = 5
	// idle is the part of a window below which what waits to be sent or acknowledged tells of
	// an application that wants no more.
	idle = 0.25
)

// backlog is what an application has written and the peer has not acknowledged as data of the
// connection, in bytes, and the part of it that was sent; and the memory that it takes, and may take.
type backlog struct{ all, underWay, used, buffer uint64 }

// isBuffered tells whether the application waits for room in its send buffer.
func (d *backlog) isBuffered() bool {
	return d.buffer > 0 && float64(d.used) >= filled*float64(d.buffer)
}

// sight is what one look finds of what holds a connection back.
type sight struct {
	full    bool // the receiver's window or the send buffer, and the application has more to send
	narrow  bool // the receiver's window is full
	stuck   bool // much of what these have room for waits for what another path carries
	content bool // the application, or a limit of a subflow's pace
	ample   bool // the application has more to send than the window has room for
	late    bool // what the subflow sends that moves most comes later than it would by another path
}

// seen is what a look finds. TCP's own account of how long windows held a subflow back does
// not tell: MPTCP gives a subflow no more than the window of the whole connection has room
// for.
func seen(subflows []subflow, data backlog) (found sight) {
	queued, room, buffered := uint64(0), float64(window(subflows)), data.isBuffered()
	for _, s := range subflows {
		queued += s.queued
		found.content = found.content || s.paced
	}
	found.content = found.content || !buffered && float64(data.all) < idle*room
	found.ample = float64(data.all) >= room
	found.narrow = !found.content && data.all > data.underWay && float64(data.underWay) > filled*room
	found.full = found.narrow || !found.content && buffered
	if buffered {
		room = min(room, float64(data.all))
	}
	waits := max(data.underWay, queued) - min(data.underWay, queued)
	found.stuck = found.full && float64(waits) > stuck*room
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

// isHeld tells whether the window or the send buffer is what holds the connection back, and has
// data wait for another path.
func (l *limits) isHeld() bool {
	full := count(l.last(), func(s sight) bool { return s.full })
	waiting := count(l.looks, func(s sight) bool { return s.stuck })
	return full >= few-1 && waiting > 1 && waiting*seldom >= len(l.looks)
}

// isNarrow tells whether that is the window.
func (l *limits) isNarrow() bool {
	return l.isHeld() && count(l.last(), func(s sight) bool { return s.narrow }) >= few-1
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
