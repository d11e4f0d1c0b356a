// SPDX-License-Identifier: Apache-2.0

package pathmanager

import (
	"time"

	"braid.dev/braid/bpf/announcements"
	"braid.dev/braid/internal/mptcpnl"
)

// unheard is what is known of the connections of a pod whose subflows the agent opens, while nobody
// listens to its events. The packet program tells of those that move something. The agent
// looks for the others: those that the pod began have their subflows after a while, and those that
// peers began can be joined at any time, which the kernel refuses then.
type unheard struct {
	begun  chan uint32 // is told of a connection that begins
	time   time.Duration
	looks  <-chan time.Time
	served map[uint32]bool // found by the look before, begun by peers
}

func newUnheard(settings Settings) unheard {
	return unheard{begun: make(chan uint32, 1), time: settings.OpenAfter.Time}
}

// leaveAlone is right before nobody listens. Connections that have not lasted yet are looked at.
func (f *follower) leaveAlone() {
	r := f.rest
	if !r.opens {
		return
	}
	r.watcher.Watch(r.interfaces, announcements.TellsJoin|announcements.RefusesJoins, r.joined)
	for token, c := range f.tracker.connections {
		f.tracker.seen[token] = c.delayed.began
		f.tracker.forget(token)
	}
	f.lookAgainAtUnheard()
}

// servesLasting is true where a connection that a peer began is there at two looks.
func (f *follower) servesLasting(now time.Time) bool {
	if !f.rest.opens {
		return false
	}
	if f.pace.allows(now) { // else it has looked just now
		if err := f.look(); err != nil {
			f.report(err)
			return true
		}
	}
	return f.stillServes()
}

// stillServes compares what peers began with what they had at the look before.
func (f *follower) stillServes() (lasts bool) {
	if !f.rest.opens {
		return false
	}
	for token := range f.onDemand.found.tokens {
		lasts = lasts || f.rest.served[token]
	}
	f.rest.served = f.onDemand.found.tokens
	return lasts
}

// lookAtUnheard is true where a connection lasts. It looks in turn with those of other pods.
func (f *follower) lookAtUnheard() (lasts bool) {
	looked := false
	wait := arrivals.take(func() {
		looked = true
		var err error
		lasts, err = f.seeUnheard(time.Now())
		f.report(err)
	})
	if looked {
		f.lookAgainAtUnheard()
	} else {
		f.rest.looks = time.After(wait)
	}
	return lasts
}

// seeUnheard finds connections that are there for as long as they wait, or half of it where a peer
// began them and may join them after the same time.
func (f *follower) seeUnheard(now time.Time) (lasts bool, err error) {
	there, ages := map[uint32]time.Time{}, false
	err = f.namespace.diagnostics.EachConnection(func(c *mptcpnl.Connection) bool {
		since, known := f.tracker.seen[c.Token]
		if !known {
			since = now
		}
		there[c.Token] = since
		lasts, ages = lasts || now.Sub(since) >= f.rest.time, ages || now.Sub(since) >= f.rest.time/2
		return len(there) < MostConnections
	})
	f.tracker.seen = there
	if !lasts && ages && err == nil {
		lasts, err = f.isAnyServedSince(now.Add(-f.rest.time / 2))
	}
	return lasts && err == nil, err
}

func (f *follower) isAnyServedSince(since time.Time) (is bool, err error) {
	served := f.onDemand.look()
	err = f.namespace.diagnostics.EachSubflow(func(s *mptcpnl.Subflow) bool { served.subflow(s); return true })
	for token := range served.tokens {
		seen, known := f.tracker.seen[token]
		is = is || known && !seen.After(since)
	}
	return is, err
}

// lookAgainAtUnheard looks again while there are connections that may last, and else when the next one
// begins. Where time does not count there is nothing to look for.
func (f *follower) lookAgainAtUnheard() {
	r := f.rest
	switch {
	case r.time == 0:
	case len(f.tracker.seen) > 0:
		r.looks = time.After(r.time / 2)
	default:
		r.looks = nil
		r.watcher.Watch(r.interfaces, announcements.TellsBegun|announcements.TellsArrival, r.begun)
	}
}

// hasLasted notes that a connection gets its subflows when it is found.
func (t *tracker) hasLasted(token uint32, now time.Time) {
	if token != 0 {
		t.seen[token] = now.Add(-t.settings.OpenAfter.Time)
	}
}

// remember has a connection be as old as it was seen to be while nobody listened.
func (t *tracker) remember(c *connection, now time.Time) {
	since, known := t.seen[c.token]
	if known && c.delayed.waits && since.Before(c.delayed.began) {
		c.delayed.began = since
		c.due = t.nextLook(c, now)
	}
}
