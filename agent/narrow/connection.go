// SPDX-License-Identifier: Apache-2.0

package narrow

import (
	"net/netip"
	"slices"
	"time"
)

const (
	// short is the part of what the best path alone delivers below which a connection over
	// several paths is taken for one that its receiver's window holds back.
	short = 0.9
	// gain is how much more a connection must get by one path to stay there, and gainApart by
	// several. gainLossless is the former where the other paths lose packets: a connection
	// stands still again and again for what was lost, which few looks may not have seen, so it
	// may even get a little less.
	gain, gainApart, gainLossless = 1.15, 1.05, 0.9
	// lossy is the part of what a subflow moves that it must have sent again for its path to be
	// one that loses packets, and more how many times as large that part must be as that of
	// another subflow.
	lossy, more = 0.001, 4
	// plain is the part of what the best path alone delivers below which it takes no long look
	// to see that a connection gets too little, and the part of what it gets after a change
	// below which it got too little before.
	plain = 0.5
	// hardly is the part of what a connection got by several paths below which a few looks at
	// what it gets by one are enough.
	hardly = 0.8
	// enough is the part of what a path was seen to give the whole connection with which that
	// is content by several. known is how long that is believed.
	enough = 0.97
	known  = 30 * time.Second
	// credible is how many times what any subflow moves TCP's word of a path's rate may be to
	// be believed, and certain is what is believed in the end where it is more.
	credible, certain = 10, 2
	// near is the part of the longest round trip that another one may be for its path to be
	// believed much more of in a few looks.
	near = 0.25
	// spare is the part of what the best path alone delivers up to which all others together
	// are given up for a try after a few looks: no more is at stake then.
	spare = 0.25
	// good is the good part of a window that the slowest path lets be filled where it holds
	// the connection back.
	good = 0.25
	// filled is the part of a window that is under way where it holds the connection back: the
	// rest may be less than a piece that TCP sends at once. stuck is the part of which either
	// has come by one path and waits for what another one carries, or was sent again on
	// another path.
	filled, stuck = 2.0 / 3, 1.0 / 3
	// seldom is of how many looks one at least must find that, and more than one in all.
	seldom = 5
	// idle is the part of a window below which what waits to be sent or acknowledged tells of
	// an application that wants no more.
	idle = 0.25
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

// state is by how many paths a connection's subflows go.
type state int

const (
	apart       state = iota // each by its own
	tryTogether              // by one, to see whether that gives more
	together                 // by one
	tryApart                 // each by its own, to see whether that gives more
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
	window uint64        // of the receiver, in bytes
	queued uint64        // bytes that it took and the peer has not acknowledged
	resent uint64        // bytes that were sent again, since it began
	paced  bool          // a limit of its pace is what holds it back
}

// backlog is what an application has written and the peer has not acknowledged as data of the
// connection, in bytes, and the part of it that was sent.
type backlog struct{ all, underWay uint64 }

// order is what is to be done with a connection's subflows.
type order int

const (
	nothing order = iota
	share         // all leave by the connection's path
	part          // each leaves by its own
)

// connection is one whose subflows send much over several paths.
type connection struct {
	state state
	path  uint8 // the one that is shared, or was last

	seen     time.Time
	subflows map[ends]*history
	peak     float64          // the fastest that any of them was of late
	widest   uint64           // the receiver's window was of late: what waits there takes from it
	alone    map[uint8]proven // by the paths that all shared

	// Since the state began: the looks, the average rate of the last of them, and how wide the
	// receiver's window was then.
	begun  time.Time
	looks  int
	rate   average
	usual  average // the same over more looks
	window uint64
	before float64 // the rate in the state before
	less   bool    // the rate fell below that one
	losses bool    // of other paths are why one is tried
	stood  bool    // still, at the last look of a try: the next one has a part of that time
	// plainly says that the try to share a path was right, and not by a small difference; told
	// that an earlier connection's was, and the subflows are to begin so.
	plainly, told bool
	limits        limits

	again time.Time     // when another try is due
	rest  time.Duration // that goes before the next one
}

// proven is what a path gave when all subflows shared it.
type proven struct {
	rate float64
	at   time.Time
}

// history is what is remembered of a subflow.
type history struct {
	acked uint64
	moved float64   // its rate since the last look
	peak  float64   // the fastest that it was of late
	rates []float64 // the last few

	resent      uint64
	bytes, lost float64 // of late: that it moved, and that it sent again
}

// note takes in how far a subflow is, after so many seconds.
func (h *history) note(s *subflow, passed float64) {
	moved := float64(s.acked - h.acked)
	h.bytes += moved - h.bytes/long
	h.lost += float64(s.resent-h.resent) - h.lost/long
	h.acked, h.resent, h.moved = s.acked, s.resent, moved/passed
	h.peak = max(h.peak-h.peak/long, h.moved)
	if h.moved > 0 || len(h.rates) == 0 { // else it is what was told before
		h.rates = append(h.rates[max(0, len(h.rates)-few+1):], s.rate)
	}
}

// losesMore tells whether a subflow's path loses packets, and that of another one, which moves
// about as much, does not, or much less.
func (h *history) losesMore(other *history) bool {
	return h.lost > lossy*h.bytes && h.lost*other.bytes > more*other.lost*h.bytes && other.peak > plain*h.peak
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

// adopt is a connection of which an earlier agent said that its subflows share a path.
func adopt(now time.Time) *connection {
	return &connection{state: together, begun: now, again: now.Add(restTogether), rest: restTogether}
}

// look takes in how a connection's subflows are, and tells what to do.
func (c *connection) look(now time.Time, subflows []subflow, data backlog) order {
	rate, whole := c.advance(now, subflows)
	if c.told {
		c.told = false
		return share
	}
	if !whole {
		return nothing
	}
	c.looks++
	found := seen(subflows, data)
	c.limits.add(found)
	if c.state != apart && c.limits.isContent() {
		return c.startOver(now)
	}
	switch c.state {
	case apart:
		c.add(rate)
		return c.lookApart(now, subflows)
	case together:
		c.add(rate)
		return c.lookTogether(now, subflows)
	}
	// A connection that stands still, or still has much wait, waits for what the other path lost.
	waits := rate == 0 || c.stood || found.stuck && c.state == tryTogether
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
	case c.state == tryTogether && !c.losses && c.rate.value < hardly*c.before:
		return c.rate.looks >= few
	case c.state == tryApart && c.losses && c.usual.value > c.before:
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
	c.begin(apart, now)
	c.alone, c.rest, c.again = nil, firstRest, now.Add(firstRest)
	return part
}

// lookApart has the subflows try the best one's path where the receiver's window holds them
// back, and all of them together get less than that one alone would.
func (c *connection) lookApart(now time.Time, subflows []subflow) order {
	if len(subflows) < 2 || c.looks < soon || now.Before(c.again) || !c.limits.isNarrow() {
		return nothing
	}
	losing := c.losing(subflows)
	path, delivers := c.best(now, subflows, losing)
	losses := len(losing) > 0
	if c.rate.value >= delivers || c.looks < long && !losses && !waits(subflows, delivers) {
		return nothing
	}
	if c.others(path, subflows) > spare*delivers && !c.hasShown(delivers, losses) {
		return nothing
	}
	c.path = path
	before := max(c.rate.value, c.usual.value)
	c.begin(tryTogether, now)
	c.before, c.losses = before, losses
	return share
}

// losing are the paths that lose packets where another one, which moves about as much, does not.
func (c *connection) losing(subflows []subflow) (paths []uint8) {
	for _, s := range subflows {
		for _, other := range subflows {
			if s.path != other.path && c.subflows[s.ends].losesMore(c.subflows[other.ends]) {
				paths = append(paths, s.path)
				break
			}
		}
	}
	return paths
}

// others is what the subflows on other paths move, at their best of late.
func (c *connection) others(path uint8, subflows []subflow) (moved float64) {
	for _, s := range subflows {
		if s.path != path {
			moved += c.subflows[s.ends].peak
		}
	}
	return moved
}

// hasShown tells whether a connection gets less than its best path delivers for so long that it
// is no chance: half a second where it plainly does, or where another path loses packets, else
// two.
func (c *connection) hasShown(delivers float64, losses bool) bool {
	plainly := c.rate.value < plain*delivers && c.limits.isMostlyStuck()
	if c.looks >= recent && (plainly || losses && c.usual.value < delivers) {
		return true
	}
	return c.usual.looks >= steady && c.usual.value < delivers
}

// lookTogether has them try their own paths when that is due, or the connection gets less than
// it did by them.
func (c *connection) lookTogether(now time.Time, subflows []subflow) order {
	if c.window == 0 {
		c.window = c.widest
	}
	less := c.gotLess() && now.Sub(c.begun) > c.rest/8
	wider := float64(window(subflows)) >= grown*float64(c.window)
	if now.Before(c.again) && !less && !wider {
		return nothing
	}
	c.prove(now, c.rate.value)
	c.begin(tryApart, now)
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
	tried, rate, before, needed := c.state, c.rate.value, c.before, gain
	switch {
	case tried == tryApart && !c.limits.isFull():
		return c.startOver(now)
	case tried == tryApart && c.losses:
		rate, needed = c.usual.value, gainApart
	case tried == tryApart:
		needed = gainApart
	case c.losses:
		needed = gainLossless
	}
	better := rate > needed*before
	next, back, least := apart, part, firstRest
	if better == (tried == tryTogether) {
		next, back, least = together, share, restTogether
	}
	if tried == tryTogether && c.looks <= long {
		c.prove(now, rate)
	}
	c.begin(next, now)
	c.plainly = better && (c.losses || before < plain*rate)
	if better {
		// Where a small gain was enough, a small loss later is no reason to go back.
		c.rest, c.again, c.before = least, now.Add(least), before*needed/gain
		return nothing
	}
	c.rest = min(max(2*c.rest, least), longestRest)
	c.again, c.before = now.Add(c.rest), rate
	return back
}

// begin begins a state. What the connection got in the one before is remembered.
func (c *connection) begin(next state, now time.Time) {
	c.before, c.rate, c.usual = c.rate.value, average{}, average{}
	c.state, c.begun, c.looks, c.window, c.less = next, now, 0, c.widest, false
	c.limits = limits{}
}

func (c *connection) prove(now time.Time, rate float64) {
	if c.alone == nil {
		c.alone = map[uint8]proven{}
	}
	c.alone[c.path] = proven{rate, now}
}

// best is the path that would give the connection most, and what it should get by several at
// least. One whose subflow stands still is none, nor is one that is losing packets. A path of
// which it is not sure what it gives counts where none that is sure gives more than several do.
func (c *connection) best(now time.Time, subflows []subflow, losing []uint8) (path uint8, least float64) {
	var most [2]float64
	var paths [2]uint8
	var leasts [2]float64
	longest := longestTrip(subflows)
	for _, s := range subflows {
		h, i := c.subflows[s.ends], 0
		would, part, sure := c.would(now, s.path, h, s.rtt.Seconds() < near*longest.Seconds())
		if !sure {
			i = 1
		}
		moves := h.moved > 0
		if len(losing) > 0 { // which all may stand still for
			part, moves = enough, moves || c.isStill()
		}
		if moves && would > most[i] && !slices.Contains(losing, s.path) {
			paths[i], most[i], leasts[i] = s.path, would, part*would
		}
	}
	if c.rate.value < leasts[0] {
		return paths[0], leasts[0]
	}
	return paths[1], leasts[1]
}

// isStill tells whether no subflow has moved since the last look.
func (c *connection) isStill() bool {
	for _, h := range c.subflows {
		if h.moved > 0 {
			return false
		}
	}
	return true
}

// would is what a path gives alone, and which part of it is enough by several. Where it was
// not seen, TCP's word counts. Where a path's shaper lets pieces by at once, a subflow that
// sends little delivers much faster than it could for long: so the least of the last few
// counts, and it is not sure if it is far from what any of them moves. Where answers take much
// longer on another path it is that one that lets this subflow send little.
func (c *connection) would(now time.Time, path uint8, h *history, isNear bool) (rate, part float64, sure bool) {
	if alone, ok := c.alone[path]; ok && now.Sub(alone.at) < known {
		return alone.rate, enough, true
	}
	rate = slices.Min(h.rates)
	switch {
	case rate <= credible*c.peak:
		return rate, short, true
	case isNear:
		return credible * c.peak, short, false
	case c.looks < long:
		return 0, short, false
	}
	return certain * c.peak, short, false
}

// waits tells whether a path that delivers so fast fills a good part of the receiver's window
// until data on the slowest path is acknowledged. What waits to be sent there comes on top.
func waits(subflows []subflow, delivers float64) bool {
	return longestTrip(subflows).Seconds()*delivers > good*float64(window(subflows))
}

// longestTrip is the round trip of the slowest subflow.
func longestTrip(subflows []subflow) (longest time.Duration) {
	for _, s := range subflows {
		longest = max(longest, s.rtt)
	}
	return longest
}

// window is the receiver's: each subflow knows it as of its last acknowledgement.
func window(subflows []subflow) (widest uint64) {
	for _, s := range subflows {
		widest = max(widest, s.window)
	}
	return widest
}
