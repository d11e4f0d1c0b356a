// SPDX-License-Identifier: Apache-2.0

package pathmanager

import (
	"time"

	"braid.dev/braid/bpf/announcements"
	"braid.dev/braid/internal/mptcpnl"
)

// hushAfter is how long no connection that a peer began has lasted before the pod announces
// nothing any more.
const hushAfter = 30 * time.Second

// arrivals is whose turn it is to look whether connections last that say nothing.
var arrivals turns

// quiet is whether a pod announces its addresses. Its kernel would do so on each connection, by
// a worker, a packet and a timer. So they are announced once a connection lasts, on all that
// there are, until none has lasted for a while.
type quiet struct {
	watcher    Watcher // nil where addresses are always announced
	interfaces []int
	settings   Settings
	// arrived is told of a peer's connection, served of one that lasts.
	arrived, served chan struct{}
	begun           bool // it was decided how the pod is at first
	silent          bool
	lasted          time.Time // when it announced because of a connection that lasts
	found           *servedLook
	before          map[uint32]bool // what was found at the resync before
	looks           <-chan time.Time
	came            map[uint32]time.Time // since when connections were seen; zero for those of no concern
}

func (n *Namespace) newQuiet(settings Settings) *quiet {
	q := &quiet{settings: settings, arrived: make(chan struct{}, 1), served: make(chan struct{}, 1)}
	if n.mayBeSilent(settings) {
		q.watcher, q.interfaces = n.options.Watcher, n.options.Interfaces
	}
	return q
}

func (n *Namespace) mayBeSilent(settings Settings) bool {
	return settings.announces() && n.isTold(settings)
}

// announcingAtFirst is what holds until a follower has looked at the pod.
func (n *Namespace) announcingAtFirst(settings Settings) announcing {
	if n.mayBeSilent(settings) {
		return announcingAsBefore
	}
	return announcingAll
}

// announce says what is announced from now on, on all connections that there are.
func (n *Namespace) announce(what announcing) error {
	n.changes.Lock()
	defer n.changes.Unlock()
	n.announcing = what
	return n.apply()
}

// Leave has the pod announce its addresses while nobody can tell which of its connections last.
func (n *Namespace) Leave() error {
	n.calls.Lock()
	defer n.calls.Unlock()
	n.stopFollowing()
	if !n.changed() || n.announcing == announcingAll {
		return nil
	}
	n.pause = leavePause
	return n.announce(announcingAll)
}

// announces is true where the pod announces something of ours.
func (n *Namespace) announces() (bool, error) {
	n.changes.Lock()
	defer n.changes.Unlock()
	present, err := n.client.Endpoints()
	for _, endpoint := range present {
		if endpoint.Flags&mptcpnl.FlagSignal != 0 && n.isOurs(endpoint) {
			return true, nil
		}
	}
	return false, err
}

// servedLook is what a look finds of connections that peers began.
type servedLook struct {
	quiet  *quiet
	tokens map[uint32]bool
	joined bool // one of them has further subflows
}

func (q *quiet) look() *servedLook { return &servedLook{quiet: q, tokens: map[uint32]bool{}} }

func (l *servedLook) subflow(s *mptcpnl.Subflow) {
	if l.quiet.watcher == nil || s.Initiator || l.quiet.settings.staysInside(s.Local, s.Remote) {
		return
	}
	l.joined = l.joined || !s.First
	if len(l.tokens) < MostConnections {
		l.tokens[s.Token] = true
	}
}

// beginQuiet is after the first look. A pod that an earlier agent had announce goes on for a
// while; any other begins when one of its connections lasts.
func (f *follower) beginQuiet() error {
	if f.quiet.watcher == nil || f.quiet.begun {
		return nil
	}
	already, err := f.namespace.announces()
	if err != nil {
		return err
	}
	f.quiet.begun = true
	if already {
		return f.speak(time.Now())
	}
	return f.hush(time.Now())
}

// speak has the addresses announced.
func (f *follower) speak(now time.Time) error {
	f.quiet.unwatch()
	f.quiet.silent, f.quiet.lasted, f.quiet.before = false, now, nil
	return f.namespace.announce(announcingAll)
}

// hush has nothing be announced. Before that it has connections that last be told.
func (f *follower) hush(now time.Time) error {
	q := f.quiet
	q.silent, q.came = true, map[uint32]time.Time{}
	if !q.watch(announcements.TellsArrival, q.arrived) {
		return f.speak(now)
	}
	q.follow() // those that are there already
	return f.namespace.announce(announcingNothing)
}

// compareServed has nothing be announced once no connection has lasted for a while: one that is
// there at two looks lasts. To take an announcement back closes the subflows that came of it,
// so there must be none.
func (f *follower) compareServed(now time.Time) error {
	q := f.quiet
	if q.watcher == nil || !q.begun {
		return nil
	}
	lasts := q.found.joined
	for token := range q.found.tokens {
		lasts = lasts || q.before[token]
	}
	q.before = q.found.tokens
	switch {
	case q.silent && (lasts || !q.watch(announcements.TellsArrival, q.arrived)): // the program did not tell, or cannot any more
		return f.speak(now)
	case lasts:
		q.lasted = now
	case !q.silent && now.Sub(q.lasted) >= hushAfter:
		return f.hush(now)
	}
	return nil
}

// follow has connections be told that last, and looks soon what is there, and then what is still
// there: nobody tells of those that say nothing.
func (q *quiet) follow() {
	if !q.silent {
		return
	}
	q.watch(announcements.TellsServed, q.served)
	if q.settings.OpenAfter.Time > 0 && q.looks == nil {
		q.looks = time.After(firstLook)
	}
}

// lookAtArrived looks at the connections that have come, in turn with those of other pods.
func (f *follower) lookAtArrived() {
	looked := false
	wait := arrivals.take(func() {
		looked = true
		f.report(f.seeWhatLasts(time.Now()))
	})
	if !looked {
		f.quiet.looks = time.After(wait)
	}
}

// seeWhatLasts finds connections that are there for as long as announcements wait.
func (f *follower) seeWhatLasts(now time.Time) error {
	q, lasting := f.quiet, false
	there := map[uint32]time.Time{}
	err := f.namespace.diagnostics.EachConnection(func(c *mptcpnl.Connection) bool {
		since, known := q.came[c.Token]
		if !known {
			since = now
		}
		there[c.Token], lasting = since, lasting || q.isOld(since, now)
		return len(there) < MostConnections
	})
	q.came = there
	if err == nil && lasting {
		lasting, err = f.judge(now)
	}
	if lasting && err == nil {
		return f.speak(now)
	}
	f.lookAgainAtArrived()
	return err
}

func (q *quiet) isOld(since, now time.Time) bool {
	return !since.IsZero() && now.Sub(since) >= q.settings.OpenAfter.Time
}

// judge is true where a peer began one of those that last. The others are of no concern.
func (f *follower) judge(now time.Time) (lasts bool, err error) {
	q := f.quiet
	served := q.look()
	if err := f.namespace.diagnostics.EachSubflow(func(s *mptcpnl.Subflow) bool { served.subflow(s); return true }); err != nil {
		return false, err
	}
	for token, since := range q.came {
		switch {
		case !q.isOld(since, now):
		case served.tokens[token]:
			lasts = true
		default:
			q.came[token] = time.Time{}
		}
	}
	return lasts, nil
}

// lookAgainAtArrived looks again while there are connections that may last, and else when the next one
// comes. Of a pod that only connects nothing is to be told.
func (f *follower) lookAgainAtArrived() {
	q := f.quiet
	q.looks = nil
	for _, since := range q.came {
		if !since.IsZero() {
			q.looks = time.After(q.settings.OpenAfter.Time)
			return
		}
	}
	if !f.namespace.listens() {
		q.watcher.Unwatch(q.interfaces, announcements.TellsServed)
	}
	q.watch(announcements.TellsArrival, q.arrived)
}

func (q *quiet) watch(what uint32, told chan<- struct{}) bool {
	return q.watcher.Watch(q.interfaces, what, told)
}

func (q *quiet) unwatch() {
	q.looks = nil
	if q.silent {
		q.watcher.Unwatch(q.interfaces, announcements.TellsServed|announcements.TellsArrival)
	}
	for _, told := range []chan struct{}{q.arrived, q.served} {
		select {
		case <-told:
		default:
		}
	}
}
