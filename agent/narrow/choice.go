// SPDX-License-Identifier: Apache-2.0

package narrow

import (
	"cmp"
	"slices"
	"time"
)

const (
	// short is the part of what the best path alone delivers below which a connection over
	// several paths is taken for one that its receiver's window holds back.
	short = 0.9
	// plain is the part of what the best path alone delivers below which it takes no long look
	// to see that a connection gets too little, and the part of what it gets after a change
	// below which it got too little before.
	plain = 0.5
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
)

// mayGiveUpSome tells whether it is worth a try. A small window most often has room for one path alone.
func (c *connection) mayGiveUpSome(now time.Time) bool {
	return !now.Before(c.partAt) && (c.looks >= long || !c.limits.isNarrow())
}

// toGiveUpSome gives up the paths that carry little beside several others, or lose packets that the connection
// waits for, where these promise more than the connection gets.
func (c *connection) toGiveUpSome(now time.Time, subflows []subflow) (next arrangement, is bool) {
	losing := c.holdingUp(subflows)
	best := c.fastest(subflows, losing)
	next = arrangement{shared: true, path: best.path, cheap: true, losses: len(losing) > 0, buffered: !c.limits.isNarrow()}
	fastest, promised, givesUp := c.subflows[best.ends], 0.0, false
	for _, s := range subflows {
		h := c.subflows[s.ends]
		if slices.Contains(losing, s.path) || h.peak <= spare*fastest.peak && h.drains() > fastest.drains() {
			givesUp = true
			next.others += h.peak
			continue
		}
		if s.path != best.path {
			next.keeps |= 1 << s.path
		}
		rate, _, sure := c.would(now, s.path, h, false)
		if !sure {
			rate = h.peak
		}
		promised += rate
	}
	return next, givesUp && next.keeps != 0 && c.rate.value < short*promised
}

// holdingUp are the paths that lose packets where the connection waits for what another one carries in every
// second look.
func (c *connection) holdingUp(subflows []subflow) (paths []uint8) {
	if c.looks < recent || !c.limits.isMostlyStuck() {
		return nil
	}
	return c.losing(subflows)
}

// fastest is the subflow that moves most, of those that are on none of these paths if there are any.
func (c *connection) fastest(subflows []subflow, losing []uint8) subflow {
	return slices.MaxFunc(subflows, func(a, b subflow) int {
		switch on := slices.Contains(losing, a.path); {
		case on == slices.Contains(losing, b.path):
			return cmp.Compare(c.subflows[a.ends].peak, c.subflows[b.ends].peak)
		case on:
			return -1
		}
		return 1
	})
}

// givesUpLittle tells whether the other paths carry little beside what this one gives.
func (a *arrangement) givesUpLittle(rate float64) bool { return a.others <= spare*rate }

// toShare is the path that promises more than all of them give, if one does. The send buffer grows
// with what all paths carry: where that is what is full, several good paths are not given up, but for
// those that lose so much that the others stand still meanwhile, as behind a policer.
func (c *connection) toShare(now time.Time, subflows []subflow) (next arrangement, found bool) {
	losing := c.losing(subflows)
	path, delivers, sure := c.best(now, subflows, losing)
	losses := len(losing) > 0
	guesses := c.rate.value >= delivers || c.looks < long && !losses && !waits(subflows, delivers)
	if guesses {
		path, found = c.starved(now, subflows)
	}
	next = arrangement{shared: true, path: path, losses: losses && !guesses, guessed: guesses, sure: sure && !guesses, several: len(subflows) > 2, others: c.elsewhere(path, subflows)}
	next.cheap, next.buffered = guesses || next.givesUpLittle(delivers), !c.limits.isNarrow()
	if guesses {
		return next, found && !losses
	}
	mayCostMuch := !next.buffered || losses && c.limits.isMostlyStuck()
	return next, next.cheap || mayCostMuch && c.hasShown(delivers, losses)
}

// starved is the path of a subflow whose data is acknowledged at once while another one, which moves
// more, has the connection wait. TCP tells nothing of its rate that could be believed: it
// sends too little.
func (c *connection) starved(now time.Time, subflows []subflow) (path uint8, is bool) {
	if c.looks < recent || !c.limits.isMostlyStuck() {
		return 0, false
	}
	var free, slow *history
	for _, s := range subflows {
		h := c.subflows[s.ends]
		if slow == nil || h.held > slow.held {
			slow = h
		}
		if c.mayGuess(now, s.path) && (free == nil || h.held < free.held) {
			free, path = h, s.path
		}
	}
	return path, free != nil && free.held < spare*slow.held && free.bytes < slow.bytes
}

// mayGuess tells whether it is not known what a path gives, and it was not guessed in vain the last
// time.
func (c *connection) mayGuess(now time.Time, path uint8) bool {
	_, known := c.proven(now, path)
	return !known && !(c.other.guessed && c.other.path == path)
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

// elsewhere is what the subflows on other paths move, at their best of late.
func (c *connection) elsewhere(path uint8, subflows []subflow) (moved float64) {
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

// toShareAll is the best path for all, where those that were not given up still hold each other back.
func (c *connection) toShareAll(now time.Time, subflows []subflow) (next arrangement, found bool) {
	if c.keeps == 0 || c.refuted || c.looks < recent || !c.limits.isNarrow() {
		return next, false
	}
	next, found = c.toShare(now, subflows)
	return next, found && next.sure
}

// prove takes in what the path gives that all share.
func (c *connection) prove(now time.Time, rate float64) {
	if c.keeps != 0 || c.bursts {
		return
	}
	if c.alone == nil {
		c.alone = map[uint8]shown{}
	}
	c.alone[c.path] = shown{rate, now}
}

// proven is what a path was seen to give the whole connection of late.
func (c *connection) proven(now time.Time, path uint8) (rate float64, is bool) {
	alone, is := c.alone[path]
	return alone.rate, is && now.Sub(alone.at) < known
}

// best is the path that would give the connection most, and what it should get by several at
// least. One whose subflow stands still is none, nor is one that is losing packets. A path of
// which it is not sure what it gives counts where none that is sure gives more than several do.
// Where nothing tells two of them apart, it is the one whose subflow moves more.
func (c *connection) best(now time.Time, subflows []subflow, losing []uint8) (path uint8, least float64, sure bool) {
	var most, peaks, leasts [2]float64
	var paths [2]uint8
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
		better := would > most[i] || would == most[i] && h.peak > peaks[i]
		if moves && better && !slices.Contains(losing, s.path) {
			paths[i], most[i], peaks[i], leasts[i] = s.path, would, h.peak, part*would
		}
	}
	if c.rate.value < leasts[0] {
		return paths[0], leasts[0], true
	}
	return paths[1], leasts[1], false
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
	if alone, known := c.proven(now, path); known {
		return alone, enough, true
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
