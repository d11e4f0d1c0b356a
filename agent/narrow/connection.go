// SPDX-License-Identifier: Apache-2.0

package narrow

import "time"

const (
	// gain is how much more a connection must get by one path to stay there, and gainApart by
	// several. gainLossless is the former where the other paths lose packets: a connection
	// stands still again and again for what was lost, which few looks may not have seen, so it
	// may even get a little less. gainGuessed is the former where nothing told that the path gives
	// more: another one may give more still, and would not be looked for.
	gain, gainApart, gainLossless, gainGuessed = 1.15, 1.05, 0.9, 3
	// hardly is the part of what a connection got by several paths below which a few looks at
	// what it gets by one are enough.
	hardly = 0.8
	// grown is how much the receiver's window must have grown for another try before its
	// time.
	grown = 1.5

	// settling is how many looks are not judged after a change: the programs take it over
	// within a slice of time, and what is under way on the other path must come in. judged
	// is how many are then.
	settling, judged = 2, 2
	// few is how many looks must agree on what a path delivers, soon is how many are enough where
	// little is at stake, and recent is of how many a
	// connection's rate is the average: one in which it stands still for 200 ms, until TCP
	// repeats what a path lost, counts. long is how many must have been where nothing else
	// says that its paths differ too much.
	few, soon, recent, long = 4, 5, 8, 15
	// steady is of how many looks a connection's rate is the average where it does not plainly
	// get too little: one that stands still now and then may still get more by several paths,
	// and among many connections the rate of one rises and falls by chance.
	steady = 30

	firstRest, longestRest = time.Second, 5 * time.Minute
	// restTogether is how long the subflows of a connection share a path, at first. Where the
	// paths are alike, it was a moment's trouble that brought them together.
	restTogether = 4 * time.Second
)

// order is what is to be done with a connection's subflows.
type order int

const (
	nothing order = iota
	share         // they leave by the connection's path, but for those that keep theirs
	part          // each leaves by its own
)

// arrangement is by which paths a connection's subflows leave, and why. By the zero one each leaves
// by its own.
type arrangement struct {
	shared bool // subflows share a path
	path   uint8
	// keeps are the paths, a bit each, whose subflows stay there: only those that carry little
	// beside the others are given up.
	keeps uint8

	losses   bool    // other paths lose packets
	buffered bool    // it is for a send buffer that is full, not for a window
	guessed  bool    // nothing tells what it would give
	bursts   bool    // it is for bursts, which are late on another path
	sure     bool    // it is known what the path gives
	cheap    bool    // little is lost where it gives no more
	several  bool    // more than one other path would be given up
	refuted  bool    // one path alone gave no more
	plainly  bool    // to share the path was right, and not by a small difference
	others   float64 // what the subflows on the paths that are given up move at their best
}

func (a *arrangement) order() order {
	if a.shared {
		return share
	}
	return part
}

// connection is one whose subflows send much over several paths. Its arrangement is the one that it
// has now. The other one is what it had before, or tried in vain: a try that gives no more
// leads back there.
type connection struct {
	arrangement
	other   arrangement
	trying  bool // the arrangement, to see whether it gives more
	version int  // of the pod's plan

	seen     time.Time
	subflows map[ends]*history
	peak     float64         // the fastest that any of them was of late
	widest   uint64          // the receiver's window was of late: what waits there takes from it
	alone    map[uint8]shown // by the paths that all shared

	// Since the arrangement began: the looks, the average rate of the last of them, and how wide
	// the receiver's window was then.
	begun  time.Time // zero until anything is tried
	looks  int
	rate   average
	usual  average // the same over more looks
	window uint64
	limits limits
	before float64 // the rate by the other arrangement
	gave   float64 // the rate in the last try
	less   bool    // the rate fell below the other one's
	stood  bool    // still, at the last look of a try: the next one has a part of that time
	// told says that to share a path was right for an earlier connection, and the subflows are to begin
	// so; trusting that they did, and misled that they got much less by it.
	told, trusting, misled bool
	rivals                 []rival // that were not tried since all share a path

	again  time.Time     // when another try is due
	rest   time.Duration // that goes before the next one
	partAt time.Time     // when to give up a part of the paths may be tried again
}

// hasSettled tells whether the subflows share a path, or leave by their own ones, until something
// speaks for another try.
func (c *connection) hasSettled(shared bool) bool { return !c.trying && c.shared == shared }

// adopt has the subflows share a path, as they did for an earlier agent, or those of an earlier
// connection did.
func (c *connection) adopt(now time.Time, path, keeps uint8) {
	c.begin(arrangement{shared: true, path: path, keeps: keeps}, false, now)
	c.again, c.rest = now.Add(restTogether), restTogether
}

// look takes in how a connection's subflows are, and tells what to do.
func (c *connection) look(now time.Time, subflows []subflow, data backlog) order {
	rate, whole := c.advance(now, subflows)
	if c.told {
		c.told, c.trusting = false, true
		return share
	}
	if !whole {
		return nothing
	}
	c.looks++
	found := seen(subflows, data)
	found.late = c.isLate(subflows)
	c.limits.add(found)
	switch {
	case !c.hasSettled(false) && c.limits.isContent() && !c.areBursts(), c.bursts && (!c.trying && c.limits.isFull() || isPaced(subflows)):
		return c.startOver(now)
	case c.trying:
		return c.lookAtTry(now, rate, found)
	}
	c.add(rate)
	if c.shared {
		return c.lookTogether(now, subflows)
	}
	return c.lookApart(now, subflows)
}

// lookAtTry judges a try when enough was seen of it. A connection that stands still, or still has
// much wait, waits for what the other path lost.
func (c *connection) lookAtTry(now time.Time, rate float64, found sight) order {
	waits := rate == 0 || c.stood || found.stuck && c.shared
	c.stood = rate == 0
	if c.looks > settling && (!waits || c.looks > long) {
		c.add(rate)
	}
	if !c.hasSeenEnough() {
		return nothing
	}
	return c.judge(now)
}

// hasSeenEnough tells whether a try can be judged. Where a path loses packets, a connection may
// well do better by several until it stands still for one of them: that takes longer to see.
func (c *connection) hasSeenEnough() bool {
	switch {
	case c.rate.looks < judged:
		return false
	case c.isPlain():
		return true
	case c.shared && !c.losses && c.rate.value < hardly*c.before:
		return c.rate.looks >= few
	case !c.shared && c.other.losses && c.usual.value > c.before:
		return c.usual.looks >= steady
	}
	return c.rate.looks >= recent
}

func (c *connection) add(rate float64) {
	c.rate.add(rate, recent)
	c.usual.add(rate, steady)
}

// isPlain tells whether what a connection gets differs so much from before that few looks are
// enough.
func (c *connection) isPlain() bool {
	return c.before < plain*c.rate.value || c.rate.value < plain*c.before
}

// advance is at what rate the connection went on since the last look; false where that is
// not known of all subflows.
func (c *connection) advance(now time.Time, subflows []subflow) (rate float64, whole bool) {
	passed, before := now.Sub(c.seen).Seconds(), c.subflows
	c.seen, c.subflows, whole = now, make(map[ends]*history, len(subflows)), passed > 0
	c.peak -= c.peak / long
	c.widest = max(c.widest-c.widest/long, window(subflows))
	for i := range subflows {
		s := &subflows[i]
		h := before[s.ends]
		if h == nil {
			h, whole = &history{acked: s.acked, resent: s.resent}, false
		}
		h.note(s, passed)
		c.subflows[s.ends] = h
		c.peak = max(c.peak, h.moved)
		rate += h.moved
	}
	return rate, whole
}

// startOver has each subflow leave by its own path, and forgets what was seen: something else
// than the receiver's window decides what the connection gets, or may do so from now on.
func (c *connection) startOver(now time.Time) order {
	c.begin(arrangement{}, false, now)
	c.alone, c.rest, c.again = nil, firstRest, now.Add(firstRest)
	return part
}

// lookApart has the subflows try the best one's path where the receiver's window holds them
// back, and all of them together get less than that one alone would.
func (c *connection) lookApart(now time.Time, subflows []subflow) order {
	if len(subflows) < 2 || c.looks < soon || now.Before(c.again) {
		return nothing
	}
	if !c.limits.isHeld() {
		return c.lookAtBursts(now, subflows)
	}
	next, found := c.toShare(now, subflows)
	if some, isSome := c.toGiveUpSome(now, subflows); isSome && c.mayGiveUpSome(now) && !(found && next.cheap) {
		next, found = some, true
	}
	if !found {
		return nothing
	}
	c.rivals = nil
	if next.keeps == 0 {
		c.rivals = c.rivalsOf(now, next.path, subflows)
	}
	return c.try(now, next)
}

// try begins another arrangement, to see whether it gives more.
func (c *connection) try(now time.Time, next arrangement) order {
	before := c.rate.value
	if next.shared {
		before = max(before, c.usual.value)
	}
	c.begin(next, true, now)
	c.before = before
	return next.order()
}

// lookTogether has them try another path that may give more, and their own ones when that is due, or
// the connection gets less than it did by them.
func (c *connection) lookTogether(now time.Time, subflows []subflow) order {
	if c.window == 0 {
		c.window = c.widest
	}
	less := c.gotLess() && now.Sub(c.begun) > c.rest/8
	if less && c.trusting {
		return c.leave(now)
	}
	if next, found := c.toShareAll(now, subflows); found {
		return c.try(now, next)
	}
	if next, found := c.toRival(); found {
		c.prove(now, c.rate.value)
		return c.try(now, next)
	}
	wider := float64(window(subflows)) >= grown*float64(c.window)
	if now.Before(c.again) && !less && !wider {
		return nothing
	}
	c.prove(now, c.rate.value)
	c.rivals = nil
	return c.try(now, arrangement{})
}

// leave has the subflows leave the path by which an earlier connection got much more.
func (c *connection) leave(now time.Time) order {
	c.prove(now, c.rate.value)
	c.begin(arrangement{}, false, now)
	c.rest, c.again, c.misled = firstRest, now.Add(firstRest), true
	return part
}

// gotLess tells whether the connection gets less than by its own paths, for all that was seen
// since that showed first.
func (c *connection) gotLess() bool {
	switch {
	case c.rate.looks < recent:
		return false
	case c.rate.value >= c.before:
		c.less = false
	case !c.less:
		c.less, c.rate = true, average{}
	default:
		return true
	}
	return false
}

// judge ends a try: the connection stays with what it tried, or goes back.
func (c *connection) judge(now time.Time) order {
	if !c.shared && !c.limits.isFull() && !c.other.bursts {
		return c.startOver(now)
	}
	rate, needed := c.rate.value, c.needed()
	if !c.shared && c.other.losses {
		rate = c.usual.value
	}
	better := rate > needed*c.before
	if c.bursts {
		better = c.isBetter(rate)
	}
	if c.shared && c.looks <= long && (better || !c.guessed) {
		c.prove(now, rate)
	}
	c.gave = rate
	if better {
		return c.stay(now, rate, needed)
	}
	return c.goBack(now, rate)
}

// needed is how many times what it got before a connection must get to stay with what it tries.
func (c *connection) needed() float64 {
	switch {
	case !c.shared:
		return gainApart
	case c.losses && !c.buffered && (!c.other.shared || c.other.keeps != 0): // else the other ones' losses are gone already
		return gainLossless
	case c.guessed:
		return gainGuessed
	}
	return gain
}

// stay has a connection keep what it tried. Where a small gain was enough, a small loss later is no
// reason to go back.
func (c *connection) stay(now time.Time, rate, needed float64) order {
	before, other := c.before, c.other
	c.begin(c.arrangement, false, now)
	c.other = other
	c.rest = c.leastRest()
	c.again = now.Add(c.rest)
	if c.bursts {
		c.before = 0 // who asks for less has it get less
		return nothing
	}
	c.plainly = c.plainly || (c.losses || before < plain*rate) && (!c.several || c.cheap)
	c.before = before * needed / gain
	return nothing
}

// goBack has a connection leave as it did before the try, and rest for longer than the last time.
// Where one path alone gave no more than several without the worst, these need not be judged
// anew. Where several did not, it is tried at once whether all share a path.
func (c *connection) goBack(now time.Time, rate float64) order {
	tried, rest := c.arrangement, c.rest
	c.begin(c.other, false, now)
	c.plainly = false // what was learned from it stays as it is
	if tried.shared && c.shared {
		c.refuted, c.before = true, 0
		c.rest, c.again = restTogether, now.Add(restTogether)
		return share
	}
	c.rest, c.before = min(max(2*rest, c.leastRest()), longestRest), rate
	c.again = now.Add(c.rest)
	if c.bursts {
		c.before = 0
	}
	if tried.bursts { // who sends at a rate of its own is not to be disturbed often
		c.rest = max(c.rest, restTogether)
		c.again = now.Add(c.rest)
	}
	if tried.keeps != 0 {
		c.partAt, c.again = c.again, now
	}
	return c.order()
}

func (c *connection) leastRest() time.Duration {
	if c.shared {
		return restTogether
	}
	return firstRest
}

// begin begins an arrangement. What the connection got by the one before is remembered.
func (c *connection) begin(next arrangement, trying bool, now time.Time) {
	c.other, c.arrangement, c.trying = c.arrangement, next, trying
	c.before, c.rate, c.usual = c.rate.value, average{}, average{}
	c.begun, c.looks, c.window, c.less = now, 0, c.widest, false
	c.trusting, c.misled = false, false
	c.limits = limits{}
}
