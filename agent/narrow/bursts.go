// SPDX-License-Identifier: Apache-2.0

package narrow

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// Answers and the like are bursts, each of which ends before the next one begins. While nothing is under
// way the kernel takes the first of a connection's subflows for a burst, or for its beginning, however slow its
// path is. So a connection that began on a slow path waits for it each time, beside subflows on good ones that
// have nothing to send.

const (
	// longer is by how much a round trip must be longer than the shortest one of any of a connection's paths for
	// bursts to be late by it: twice as long, and by so much at least. Either the path is longer, or what is
	// sent waits there.
	longer = 5 * time.Millisecond
	// bearable is the part of its rate before with which a connection of bursts stays on a path where they
	// are not late.
	bearable = 0.9
)

// mayBeLate tells whether any of a connection's subflows that send much may have its bursts come late.
func (f *found) mayBeLate() bool {
	return slices.ContainsFunc(f.subflows, func(s subflow) bool { return s.rtt > longer || float64(s.resent) > lossy*float64(s.acked) })
}

// late are the subflows by which what is sent takes much longer than it would by another path, or is lost.
func (c *connection) late(subflows []subflow) (late []subflow) {
	shortest := time.Duration(0)
	for _, s := range subflows {
		if s.least > 0 && (shortest == 0 || s.least < shortest) {
			shortest = s.least
		}
	}
	for _, s := range subflows {
		if shortest > 0 && s.rtt > max(2*shortest, shortest+longer) || c.subflows[s.ends].loses() {
			late = append(late, s)
		}
	}
	return late
}

// isLate tells whether any of these has moved something since the last look.
func (c *connection) isLate(subflows []subflow) bool {
	return slices.ContainsFunc(c.late(subflows), func(s subflow) bool { return c.subflows[s.ends].moved > 0 })
}

// isPaced tells whether a limit holds any of them back, which may be for its path alone.
func isPaced(subflows []subflow) bool {
	return slices.ContainsFunc(subflows, func(s subflow) bool { return s.paced })
}

// areBursts tells whether it is bursts for which the subflows share a path, or try their own again.
func (c *connection) areBursts() bool { return c.bursts || c.trying && c.other.bursts }

// lookAtBursts has a connection try the path of another of its subflows where one is late.
func (c *connection) lookAtBursts(now time.Time, subflows []subflow) order {
	if c.looks < recent || isPaced(subflows) || c.limits.isMostlyFull() || !c.limits.isMostlyLate() {
		return nothing
	}
	others := c.inTime(subflows)
	if len(others) == 0 {
		return nothing
	}
	c.rivals = nil
	for _, path := range others[1:] {
		c.rivals = append(c.rivals, rival{path, math.Inf(1)})
	}
	return c.try(now, arrangement{shared: true, path: others[0], bursts: true})
}

// inTime are the paths of the subflows that are not late, the one with the shortest round trip first. One
// where bursts were as late the last time is not among them, nor is one of which TCP says that it delivers
// less than the whole connection moves.
func (c *connection) inTime(subflows []subflow) (paths []uint8) {
	late := c.late(subflows)
	isOn := func(path uint8) bool {
		return slices.ContainsFunc(late, func(s subflow) bool { return s.path == path })
	}
	for _, s := range slices.SortedFunc(slices.Values(subflows), func(a, b subflow) int { return cmp.Compare(a.least, b.least) }) {
		delivers := s.rate == 0 || s.rate >= c.rate.value
		if delivers && !isOn(s.path) && !slices.Contains(paths, s.path) && !(c.other.bursts && c.other.path == s.path) {
			paths = append(paths, s.path)
		}
	}
	return paths
}

// isBetter tells whether bursts are no longer late on the path that is tried, or much more goes by it.
func (c *connection) isBetter(rate float64) bool {
	return rate > gainGuessed*c.before || rate > bearable*c.before && !c.limits.isLateNow()
}

// isMostlyFull tells whether half of the last looks found the window or the send buffer full, or that there is
// more to send than bursts are.
func (l *limits) isMostlyFull() bool {
	looks := l.looks[max(0, len(l.looks)-recent):]
	return 2*count(looks, func(s sight) bool { return s.full || s.ample }) >= len(looks)
}

// isMostlyLate tells whether half of the last looks found what is sent late, and most of the last few.
func (l *limits) isMostlyLate() bool {
	looks := l.looks[max(0, len(l.looks)-recent):]
	return 2*count(looks, isLate) >= len(looks) && count(l.last(), isLate) >= few-1
}

// isLateNow tells whether more than one of the last few looks did.
func (l *limits) isLateNow() bool { return count(l.last(), isLate) > 1 }

func isLate(s sight) bool { return s.late }
