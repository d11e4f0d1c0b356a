// SPDX-License-Identifier: Apache-2.0

package health

import (
	"container/heap"
	"time"
)

// When probes are sent, and what else a tracker does at a time.

// event is something to do at a time, with one of the three. An event stays where it
// is when there is nothing to do any more.
type event struct {
	at     time.Duration
	target *target // to be probed, if it is still due then
	probe  *probe  // to be examined, if it is still waiting
	peer   *peer   // whose probes may be judged
}

// isOver is true of a probe that was answered meanwhile: nobody is to wake up for it.
func (e *event) isOver() bool { return e.probe != nil && e.probe.answered != 0 }

type events []event

func (e events) Len() int           { return len(e) }
func (e events) Less(i, j int) bool { return e[i].at < e[j].at }
func (e events) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)        { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	last := (*e)[len(*e)-1]
	(*e)[len(*e)-1] = event{}
	*e = (*e)[:len(*e)-1]
	return last
}

// reschedule has targets probed as often as they are to be. One that is no longer
// probed is unknown: what was known of it grows old.
func (t *tracker) reschedule(now time.Duration) {
	for _, target := range t.targets {
		switch {
		case t.resting(target):
			if target.due != never {
				t.drop(target)
				t.add(now, target.Target)
			}
		case target.due == never:
			t.schedule(target, now+t.phase(target))
		default:
			t.schedule(target, min(target.due, now+t.interval(target)))
		}
	}
}

func (t *tracker) resting(of *target) bool {
	return t.onlyHot && !of.Active && !(t.pacing.keepsDead && of.state == Dead)
}

// phase spreads first probes over the interval; those of active targets wait for
// nothing.
func (t *tracker) phase(of *target) time.Duration {
	if of.Active {
		return 0
	}
	return time.Duration(t.nonce() % uint64(t.pacing.idle))
}

func (t *tracker) interval(of *target) time.Duration {
	interval := t.pacing.idle
	if of.Active || of.state == Dead && of.answeredInARow > 0 {
		interval = t.pacing.active
	}
	return max(interval, of.asked)
}

func (t *tracker) schedule(of *target, at time.Duration) {
	if of.due != at {
		of.due = at
		heap.Push(&t.due, event{at: at, target: of})
	}
}

// next is when there is something to do.
func (t *tracker) next() time.Duration {
	next := never
	for len(t.checks) > 0 && t.checks[0].isOver() {
		heap.Pop(&t.checks)
	}
	if len(t.checks) > 0 {
		next = t.checks[0].at
	}
	if len(t.due) > 0 {
		next = min(next, max(t.due[0].at, t.tokenAt()))
	}
	return next
}

// mostAtOnce keeps answers from waiting while many probes are sent.
const mostAtOnce = 64

// advance judges what was not answered, and returns the probes to send now. All
// answers that came before now must have been given to answered. Each probe that is
// returned must be given to sentAt.
func (t *tracker) advance(now time.Duration) (toSend []*probe) {
	for len(t.checks) > 0 && t.checks[0].at <= now {
		check := heap.Pop(&t.checks).(event)
		if check.probe != nil {
			t.examine(check.probe, now)
		} else {
			t.judge(check.peer, now)
		}
	}
	t.refill(now)
	for len(t.due) > 0 && t.due[0].at <= now && t.tokens >= 1 && len(toSend) < mostAtOnce {
		due := heap.Pop(&t.due).(event)
		if due.target.gone || due.target.due != due.at {
			continue
		}
		if later := t.needless(due.target, now); later > now {
			t.schedule(due.target, later)
			continue
		}
		t.tokens--
		toSend = append(toSend, t.probe(due.target, now))
	}
	return toSend
}

// needless is until when a probe would say nothing that flows have not said; not after now where it
// is to be sent. Flows stand in for the probes of all paths to a peer or of none: what is lost on one
// path is judged by what is answered on another.
func (t *tracker) needless(of *target, now time.Duration) time.Duration {
	if t.heard == nil || !of.Active || of.Judged {
		return now
	}
	if of.peer.recentAsOf != now { // its other targets are due then, too
		of.peer.recentUntil, of.peer.recentAsOf = t.recentUntil(of.peer, now), now
	}
	return min(of.peer.recentUntil, of.last+t.pacing.heard)
}

// recentUntil is when an answer to a flow is so old on one of the peer's paths that a probe would have to
// be sent now for its own to come as soon as with the usual interval.
func (t *tracker) recentUntil(of *peer, now time.Duration) time.Duration {
	until := never
	for _, target := range of.targets {
		ago := t.heard(target.Peer, target.Path)
		if ago < 0 || target.state != Alive || len(target.unjudged) > 0 || target.unansweredInARow > 0 || target.lostInARow > 0 {
			return now
		}
		until = min(until, now-ago+t.pacing.active-target.rtt)
	}
	return until
}

// refill adds the tokens of the time that has passed: each probe takes one.
func (t *tracker) refill(now time.Duration) {
	t.tokens = min(float64(t.pacing.burst), t.tokens+(now-t.counted).Seconds()*float64(t.pacing.rate))
	t.counted = now
}

// tokenAt is when a probe may be sent.
func (t *tracker) tokenAt() time.Duration {
	if t.tokens >= 1 {
		return t.counted
	}
	missing := (1 - t.tokens) / float64(t.pacing.rate)
	return t.counted + time.Duration(missing*float64(time.Second)) + time.Microsecond
}

func (t *tracker) probe(of *target, now time.Duration) *probe {
	p := &probe{target: of, nonce: t.nonce(), sent: now}
	t.probes[p.nonce] = p
	of.remember(p)
	of.totals.sent++
	t.schedule(of, now+t.interval(of))
	t.join(of.peer, now)
	return p
}

// join has the other paths to the peer probed together with this one, if they are to
// be soon: what is lost on one is judged by what is answered on another.
func (t *tracker) join(of *peer, now time.Duration) {
	for _, other := range of.targets {
		if other.due > now && other.due-now < t.interval(other)/2 {
			t.schedule(other, now)
		}
	}
}
