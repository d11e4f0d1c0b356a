// SPDX-License-Identifier: Apache-2.0

package pathmanager

import (
	"net/netip"
	"time"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/mptcpnl"
)

// lookPause is how long no look is taken after one, in times of what it took: a look
// goes through the sockets of all namespaces, however many of them are a tenant's.
const lookPause = 10

// lookPace lets a part of the time be spent on looking, whatever a pod does.
type lookPace struct{ next time.Time }

func (p *lookPace) allows(now time.Time) bool { return !now.Before(p.next) }

// spent notes a look that began then.
func (p *lookPace) spent(begin time.Time) {
	now := time.Now()
	p.next = now.Add(lookPause * now.Sub(begin))
}

// look takes over what socket diagnostics find: events may have been lost, and
// connections may be older than the agent. It is told of all subflows first and then
// of all connections, and keeps no more of them than there is room for.
type look struct {
	tracker *tracker
	now     time.Time
	found   map[uint32]*sighting
	// served are connections that peers began.
	served    map[uint32]struct{}
	room      int // for connections that are not known
	unmanaged int64
}

// sighting is what a look found of one connection's subflows.
type sighting struct {
	subflows         []sightedSubflow
	first, begunHere bool
}

type sightedSubflow struct {
	ends
	established bool
	remoteID    uint8
}

func (t *tracker) look(now time.Time) *look {
	t.looks++
	return &look{tracker: t, now: now, found: map[uint32]*sighting{}, served: map[uint32]struct{}{}, room: t.share.left()}
}

func (l *look) subflow(s *mptcpnl.Subflow) {
	seen := l.sighting(s)
	if seen == nil {
		return
	}
	// The first subflow says who began the connection; where that is closed, any other
	// does, because only the host that began the connection opens subflows.
	if s.First || !seen.first {
		seen.begunHere = s.Initiator || seen.begunHere && !s.First
	}
	seen.first = seen.first || s.First
	if len(seen.subflows) < mostSubflows {
		seen.subflows = append(seen.subflows, sightedSubflow{ends{s.Local, s.Remote}, s.Established, s.RemoteID})
	}
}

// sighting is that of the subflow's connection; nil where it is not to be managed, or
// there is no room.
func (l *look) sighting(s *mptcpnl.Subflow) *sighting {
	if seen := l.found[s.Token]; seen != nil {
		return seen
	}
	if l.tracker.connections[s.Token] == nil && !l.isCandidate(s) {
		return nil
	}
	seen := &sighting{}
	l.found[s.Token] = seen
	return seen
}

func (l *look) isCandidate(s *mptcpnl.Subflow) bool {
	if l.tracker.settings.staysInside(s.Local, s.Remote) {
		return false
	}
	if s.First && !s.Initiator {
		if len(l.served) < MostConnections {
			l.served[s.Token] = struct{}{}
		}
		return false
	}
	_, served := l.served[s.Token]
	switch {
	case !s.Initiator || served || !s.First && len(l.served) == MostConnections:
		return false // not begun here, or nobody knows
	case l.room == 0:
		if s.First {
			l.unmanaged++
		}
		return false
	}
	l.room--
	return true
}

func (l *look) connection(found *mptcpnl.Connection) {
	t, seen := l.tracker, l.found[found.Token]
	c := t.connections[found.Token]
	if c == nil {
		if seen == nil || !seen.begunHere {
			return
		}
		if !t.share.take() {
			l.unmanaged++
			return
		}
		c = t.takeOver(found, seen, l.now)
	}
	c.look = t.looks
	if seen == nil {
		seen = &sighting{}
	}
	t.replaceSubflows(c, seen.subflows, l.now)
	t.refresh(c)
}

// end forgets the connections that the look did not find.
func (l *look) end() {
	for token, c := range l.tracker.connections {
		if c.look != l.tracker.looks {
			l.tracker.forget(token)
		}
	}
	l.tracker.share.unmanaged.Store(l.unmanaged)
}

// takeOver adds a connection that was not known. With more than its first subflow
// it got its subflows before, and with reopen Never gets no more. Who is in charge of it
// was decided when it began, and shows when it is tried.
func (t *tracker) takeOver(found *mptcpnl.Connection, seen *sighting, now time.Time) *connection {
	c := t.add(found.Token, found.Local, found.Remote)
	if len(seen.subflows) == 1 && seen.first {
		t.delay(c, now)
		t.remember(c, now)
	} else {
		c.complete = t.settings.Reopen == v1alpha1.ReopenNever
	}
	return c
}

func (t *tracker) replaceSubflows(c *connection, found []sightedSubflow, now time.Time) {
	before := c.subflows
	c.subflows = make(subflows, 0, len(found))
	for _, f := range found {
		known, _ := before.get(f.ends)
		switch {
		case !f.established:
			c.subflows.set(subflowRecord{ends: f.ends, state: subflowOpening})
		case known.state == subflowEstablished && !known.since.IsZero():
			c.subflows.set(known)
		default:
			c.established(f.ends, now)
		}
		if _, known := c.findAnnounced(f.remoteID); !known && f.remoteID != 0 {
			c.announce(f.remoteID, f.remote)
		}
	}
	for _, s := range before {
		if _, still := c.subflows.get(s.ends); !still && s.state != subflowOpening && t.settings.Reopen == v1alpha1.ReopenNever {
			c.subflows.set(subflowRecord{ends: s.ends, state: subflowClosed})
		}
	}
}

// announcerLook is what a look finds for an announcer: the connections that peers began.
type announcerLook struct {
	announcer *announcer
	found     map[uint32]*served
	room      int
}

// served is one of these: its end here, and those of the pod's addresses that have
// subflows.
type served struct {
	local  netip.AddrPort
	joined map[netip.Addr]bool
	begun  bool // by the peer, for sure
	living bool
}

func (a *announcer) look() *announcerLook {
	return &announcerLook{announcer: a, found: map[uint32]*served{}, room: a.share.left()}
}

func (l *announcerLook) subflow(s *mptcpnl.Subflow) {
	if len(l.announcer.own) == 0 || l.announcer.settings.staysInside(s.Local, s.Remote) {
		return
	}
	seen, isFirst := l.found[s.Token], s.First && !s.Initiator
	if seen == nil {
		if l.announcer.known[s.Token] == nil {
			if !isFirst || l.room == 0 {
				return
			}
			l.room--
		}
		seen = &served{joined: map[netip.Addr]bool{}}
		l.found[s.Token] = seen
	}
	if isFirst {
		seen.local, seen.begun = s.Local, true
	}
	if s.Established && len(seen.joined) < mostSubflows {
		seen.joined[s.Local.Addr()] = true
	}
}

func (l *announcerLook) connection(c *mptcpnl.Connection) {
	if seen := l.found[c.Token]; seen != nil {
		seen.living = true
	}
}

func (l *announcerLook) end(now time.Time) {
	for token, seen := range l.found {
		if seen.living && seen.begun {
			l.announcer.add(token, seen.local, now)
		}
	}
	for token, c := range l.announcer.known {
		seen := l.found[token]
		if seen == nil || !seen.living {
			l.announcer.forget(token)
		} else if !now.Before(c.again) {
			l.announcer.repeat(token, c, seen.joined, now)
		}
	}
}
