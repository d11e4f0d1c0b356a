// SPDX-License-Identifier: Apache-2.0

package pathmanager

import (
	"time"

	"braid.dev/braid/bpf/announcements"
	"braid.dev/braid/internal/mptcpnl"
)

// stopAnnouncingAfter is how long no connection that a peer began has lasted before the pod announces
// nothing any more.
const stopAnnouncingAfter = 30 * time.Second

// arrivals is whose turn it is to look whether connections last that say nothing.
var arrivals turns

// onDemand is whether a pod announces its addresses. Its kernel would do so on each connection,
// by a worker, a packet and a timer. So they are announced once a connection lasts, on all that
// there are, until none has lasted for a while.
type onDemand struct {
	watcher    Watcher // nil where addresses are always announced
	interfaces []int
	settings   Settings
	// arrived is told of a peer's connection, served of one that lasts.
	arrived, served  chan uint32
	finds            bool // connections that peers began, as it looks
	begun            bool // it was decided how the pod is at first
	announcesNothing bool
	lasted           time.Time // when it announced because of a connection that lasts
	found            *servedLook
	before           map[uint32]bool // what was found at the resync before
	looks            <-chan time.Time
	seen             map[uint32]time.Time // since when connections were seen; zero for those of no concern
}

func (n *Namespace) newOnDemand(settings Settings) *onDemand {
	d := &onDemand{settings: settings, arrived: make(chan uint32, 1), served: make(chan uint32, 1), finds: n.isTold(settings)}
	if n.mayAnnounceOnDemand(settings) {
		d.watcher, d.interfaces = n.options.Watcher, n.options.Interfaces
	}
	return d
}

func (n *Namespace) mayAnnounceOnDemand(settings Settings) bool {
	return settings.announces() && n.isTold(settings)
}

// announcingAtFirst is what holds until a follower has looked at the pod.
func (n *Namespace) announcingAtFirst(settings Settings) announcing {
	if n.mayAnnounceOnDemand(settings) {
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
	onDemand *onDemand
	tokens   map[uint32]bool
	joined   bool // one of them has further subflows
}

func (d *onDemand) look() *servedLook { return &servedLook{onDemand: d, tokens: map[uint32]bool{}} }

func (l *servedLook) subflow(s *mptcpnl.Subflow) {
	if !l.onDemand.finds || s.Initiator || l.onDemand.settings.staysInside(s.Local, s.Remote) {
		return
	}
	l.joined = l.joined || !s.First
	if len(l.tokens) < MostConnections {
		l.tokens[s.Token] = true
	}
}

// beginOnDemand is after the first look. A pod that an earlier agent had announce goes on for a
// while; any other begins when one of its connections lasts.
func (f *follower) beginOnDemand() error {
	if f.onDemand.watcher == nil || f.onDemand.begun {
		return nil
	}
	already, err := f.namespace.announces()
	if err != nil {
		return err
	}
	f.onDemand.begun = true
	if already {
		return f.startAnnouncing(time.Now())
	}
	return f.stopAnnouncing(time.Now())
}

// startAnnouncing has the addresses announced.
func (f *follower) startAnnouncing(now time.Time) error {
	f.onDemand.unwatch()
	f.onDemand.announcesNothing, f.onDemand.lasted, f.onDemand.before = false, now, nil
	return f.namespace.announce(announcingAll)
}

// stopAnnouncing has nothing be announced. Before that it has connections that last be told.
func (f *follower) stopAnnouncing(now time.Time) error {
	d := f.onDemand
	d.announcesNothing, d.seen = true, map[uint32]time.Time{}
	if !d.watch(announcements.TellsArrival, d.arrived) {
		return f.startAnnouncing(now)
	}
	d.watchServed() // those that are there already
	return f.namespace.announce(announcingNothing)
}

// compareServed has nothing be announced once no connection has lasted for a while: one that is
// there at two looks lasts. To take an announcement back closes the subflows that came of it,
// so there must be none.
func (f *follower) compareServed(now time.Time) error {
	d := f.onDemand
	if d.watcher == nil || !d.begun {
		return nil
	}
	lasts := d.found.joined
	for token := range d.found.tokens {
		lasts = lasts || d.before[token]
	}
	d.before = d.found.tokens
	switch {
	case d.announcesNothing && (lasts || !d.watch(announcements.TellsArrival, d.arrived)): // the program did not tell, or cannot any more
		return f.startAnnouncing(now)
	case lasts:
		d.lasted = now
	case !d.announcesNothing && now.Sub(d.lasted) >= stopAnnouncingAfter:
		return f.stopAnnouncing(now)
	}
	return nil
}

// watchServed has connections be told that last, and looks soon what is there, and then what is still
// there: nobody tells of those that say nothing.
func (d *onDemand) watchServed() {
	if !d.announcesNothing {
		return
	}
	d.watch(announcements.TellsServed, d.served)
	if d.settings.OpenAfter.Time > 0 && d.looks == nil {
		d.looks = time.After(firstLook)
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
		f.onDemand.looks = time.After(wait)
	}
}

// seeWhatLasts finds connections that are there for as long as announcements wait.
func (f *follower) seeWhatLasts(now time.Time) error {
	d, lasting := f.onDemand, false
	there := map[uint32]time.Time{}
	err := f.namespace.diagnostics.EachConnection(func(c *mptcpnl.Connection) bool {
		since, known := d.seen[c.Token]
		if !known {
			since = now
		}
		there[c.Token], lasting = since, lasting || d.isOld(since, now)
		return len(there) < MostConnections
	})
	d.seen = there
	if err == nil && lasting {
		lasting, err = f.isAnyServed(now)
	}
	if lasting && err == nil {
		return f.startAnnouncing(now)
	}
	f.lookAgainAtArrived()
	return err
}

func (d *onDemand) isOld(since, now time.Time) bool {
	return !since.IsZero() && now.Sub(since) >= d.settings.OpenAfter.Time
}

// isAnyServed is true where a peer began one of those that last. The others are of no concern.
func (f *follower) isAnyServed(now time.Time) (lasts bool, err error) {
	d := f.onDemand
	served := d.look()
	if err := f.namespace.diagnostics.EachSubflow(func(s *mptcpnl.Subflow) bool { served.subflow(s); return true }); err != nil {
		return false, err
	}
	for token, since := range d.seen {
		switch {
		case !d.isOld(since, now):
		case served.tokens[token]:
			lasts = true
		default:
			d.seen[token] = time.Time{}
		}
	}
	return lasts, nil
}

// lookAgainAtArrived looks again while there are connections that may last, and else when the next one
// comes. Of a pod that only connects nothing is to be told.
func (f *follower) lookAgainAtArrived() {
	d := f.onDemand
	d.looks = nil
	for _, since := range d.seen {
		if !since.IsZero() {
			d.looks = time.After(d.settings.OpenAfter.Time)
			return
		}
	}
	if !f.namespace.listens() {
		d.watcher.Unwatch(d.interfaces, announcements.TellsServed)
	}
	d.watch(announcements.TellsArrival, d.arrived)
}

func (d *onDemand) watch(what uint32, told chan<- uint32) bool {
	return d.watcher.Watch(d.interfaces, what, told)
}

func (d *onDemand) unwatch() {
	d.looks = nil
	if d.announcesNothing {
		d.watcher.Unwatch(d.interfaces, announcements.TellsServed|announcements.TellsArrival)
	}
	for _, told := range []chan uint32{d.arrived, d.served} {
		select {
		case <-told:
		default:
		}
	}
}
