// SPDX-License-Identifier: Apache-2.0

package health

import (
	"cmp"
	"container/heap"
	"slices"
	"time"
)

// When a probe is lost, and when a path is dead or alive again.

// timeout is how long an answer may take.
func (t *target) timeout() time.Duration {
	if t.rtt == 0 {
		return firstTimeout
	}
	return min(t.rtt+max(shortestTimeout, 4*t.deviation), longestTimeout)
}

// examine looks at a probe whose deadline, or whose time in memory, has come.
func (t *tracker) examine(p *probe, now time.Duration) {
	switch {
	case t.probes[p.nonce] != p: // answered
	case p.target.gone:
		delete(t.probes, p.nonce)
	case now < p.deadline: // it was put off
	case p.overdue:
		t.giveUp(p, now)
	default:
		p.overdue = true
		t.await(p, now+memory)
		p.target.unjudged = append(p.target.unjudged, p)
		p.target.peer.waiting++
		t.judge(p.target.peer, now)
		t.hurry(p.target, now)
	}
}

// hurry probes a path that may be dead, and the others to the same peer, without
// which nothing could be said of it.
func (t *tracker) hurry(of *target, now time.Duration) {
	if of.state == Dead || of.hurries == 0 {
		return
	}
	of.hurries--
	for _, target := range append([]*target{of}, of.peer.targets...) {
		if !t.resting(target) {
			t.schedule(target, min(target.due, max(now, target.last+quick)))
		}
	}
}

// judge finds the probes that a peer would have answered.
func (t *tracker) judge(of *peer, now time.Duration) {
	for _, target := range of.targets {
		var open []*probe
		for _, p := range target.unjudged {
			switch proven := of.provenAt(target, p.sent); {
			case proven <= now:
				of.waiting--
				t.lost(p, now)
				continue
			case proven != never:
				heap.Push(&t.checks, event{at: proven, peer: of})
			}
			open = append(open, p)
		}
		target.unjudged = open
	}
}

// provenAt is when it is proven that the peer answered probes that were sent at a
// time, on another path than this; never if it is not.
func (p *peer) provenAt(on *target, sent time.Duration) time.Duration {
	earliest := never
	for _, other := range p.targets {
		if other != on {
			earliest = min(earliest, other.provenAt(sent))
		}
	}
	return earliest
}

// provenAt looks at the probes next to that time: that before it and that after it,
// or sent together with it, must have been answered, or the peer's agent may have
// been away.
func (t *target) provenAt(sent time.Duration) time.Duration {
	after, _ := slices.BinarySearchFunc(t.recent, sent-together, func(p *probe, sent time.Duration) int { return cmp.Compare(p.sent, sent) })
	if after == len(t.recent) || t.recent[after].answered == 0 || after > 0 && t.recent[after-1].answered == 0 {
		return never
	}
	return t.recent[after].answered + grace
}

func (t *tracker) lost(p *probe, now time.Duration) {
	of := p.target
	of.totals.lost++
	of.history = of.history<<1 | 1
	of.judged++
	p.lost = of.judged
	t.changes.figures = true
	if p.sent < of.answeredSent {
		return
	}
	of.answeredInARow = 0
	of.unansweredInARow++
	of.lostInARow++
	if of.lostInARow >= t.pacing.lostToDie && of.state != Dead {
		t.die(of, now)
	}
}

func (t *tracker) die(of *target, now time.Duration) {
	if of.state == Alive && of.revived > 0 && now-of.revived < relapse {
		of.needed = min(2*of.needed, mostToRevive)
	} else {
		of.needed = answeredToRevive
	}
	of.state, of.died, of.hurries, of.answeredInARow = Dead, now, 0, 0
	t.changes.state = true
	t.setLost(of, of.unresolved)
}

func (t *tracker) setLost(of *target, lost bool) {
	t.changes.lost = t.changes.lost || of.lost != lost
	of.lost = lost
}

// giveUp forgets a probe that was never answered. Where the peer answered on no path
// it says nothing about this one.
func (t *tracker) giveUp(p *probe, now time.Duration) {
	of := p.target
	delete(t.probes, p.nonce)
	if i := slices.Index(of.unjudged, p); i >= 0 {
		of.unjudged = slices.Delete(of.unjudged, i, i+1)
		of.peer.waiting--
		if p.sent > of.answeredSent && p.sent > of.peer.returned {
			of.unansweredInARow++
			of.answeredInARow = 0
		}
	}
	silent := of.state == Alive && of.unansweredInARow >= t.pacing.lostToDie && of.lostInARow < t.pacing.lostToDie
	if silent || of.state == Dead && now-of.peer.answeredAt > forgiven {
		of.forget()
		of.unansweredInARow = t.pacing.lostToDie
		t.changes.state = true
	}
}

// welcome makes a path alive that answers enough.
func (t *tracker) welcome(of *target, now time.Duration) {
	switch {
	case of.state == Unknown:
		of.state = Alive
		t.changes.state = true
	case of.state == Dead && of.answeredInARow >= of.needed:
		of.state, of.revived = Alive, now
		of.history, of.judged = 0, 0
		t.changes.state, t.changes.revived = true, append(t.changes.revived, of)
	case of.state == Dead:
		t.schedule(of, min(of.due, now+t.interval(of)))
	case of.differs():
		of.shown = of.sample()
		t.changes.figures = true
	}
	if of.state == Alive {
		of.unresolved = false
		t.setLost(of, false)
	}
}

// neighbourFailed says that the kernel cannot resolve an address. Half of what makes
// a path dead is proven so; the rest is asked for at once.
func (t *tracker) neighbourFailed(now time.Duration, which neighbour) {
	for _, of := range t.at[which] {
		t.unresolved(now, of)
	}
}

func (t *tracker) unresolved(now time.Duration, of *target) {
	of.unresolved = true
	if of.state == Dead {
		t.setLost(of, true)
		return
	}
	if t.resting(of) {
		return
	}
	of.lostInARow = max(of.lostInARow, t.pacing.lostToDie-1)
	of.hurries = max(of.hurries, 1)
	t.hurry(of, now)
}

// neighbourAnswered says that the kernel has just resolved an address: what probes lose
// there others may not.
func (t *tracker) neighbourAnswered(which neighbour) {
	for _, of := range t.at[which] {
		of.unresolved = false
		t.setLost(of, false)
	}
}
