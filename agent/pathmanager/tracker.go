// SPDX-License-Identifier: Apache-2.0

package pathmanager

import (
	"container/list"
	"net/netip"
	"time"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/mptcpnl"
)

const (
	// firstBackoff is how soon a closed subflow is opened again.
	firstBackoff = 100 * time.Millisecond
	// maxBackoff is how often it is tried where that fails again and again.
	maxBackoff = 10 * time.Second
	// lasting is how old a subflow becomes where opening it was worth it.
	lasting = time.Second
	// announceGrace is how long the kernel may take to open the subflows of a new
	// connection to announced addresses, before it is helped.
	announceGrace = time.Second
)

// tracker knows the connections that the pod began, and which of them lack
// subflows. It does nothing itself. Of connections beyond the pod's share it knows
// nothing: they stay as they began.
type tracker struct {
	settings      Settings
	announcesIPv6 bool // see capabilities; taken to hold for the peers too
	connections   map[uint32]*connection
	queue         queue         // of those that lack something
	delaying      int           // how many connections are looked at, see OpenAfter
	held          list.List     // of those that wait for room on the paths, in their order
	heldUntil     time.Time     // when to look next whether there is room
	turn          *list.Element // of those whose turn it is to be looked at, see rescue
	rescued       int
	looks         uint32
	share         *share
	blocked       map[netip.Addr]blocked // by the addresses of peers
	// seen is since when connections are there, as far as it is known, that began while nobody
	// listened.
	seen map[uint32]time.Time
}

func newTracker(settings Settings, announcesIPv6 bool, share *share) *tracker {
	settings.OpenAfter = settings.waits()
	return &tracker{settings: settings, announcesIPv6: announcesIPv6, connections: map[uint32]*connection{}, share: share, blocked: map[netip.Addr]blocked{}, seen: map[uint32]time.Time{}}
}

// handle takes note of an event.
func (t *tracker) handle(event mptcpnl.Event, now time.Time) {
	switch event := event.(type) {
	case mptcpnl.ConnectionEvent:
		t.handleConnection(event, now)
	case mptcpnl.SubflowEvent:
		t.handleSubflow(event, now)
	case mptcpnl.AddressEvent:
		t.handleAddress(event)
	}
}

func (t *tracker) handleConnection(event mptcpnl.ConnectionEvent, now time.Time) {
	switch event.Kind {
	case mptcpnl.ConnectionClosed:
		t.forget(event.Token)
	case mptcpnl.ConnectionEstablished:
		if event.ServerSide || t.connections[event.Token] != nil || t.settings.staysInside(event.Local, event.Remote) || !t.share.take() {
			return
		}
		c := t.add(event.Token, event.Local, event.Remote)
		c.deniesFirst = event.DenyJoinInitial
		c.established(ends{event.Local, event.Remote}, now)
		if t.settings.Manager == v1alpha1.SubflowManagerKernel {
			t.leaveToKernel(c, now)
		}
		t.delay(c, now)
		t.refresh(c)
	}
}

func (t *tracker) add(token uint32, local, remote netip.AddrPort) *connection {
	c := &connection{token: token, local: local, remote: remote, place: -1}
	t.connections[token] = c
	return c
}

func (t *tracker) forget(token uint32) {
	if c := t.connections[token]; c != nil {
		t.release(c)
		t.leaveRescued(c)
		t.queue.remove(c)
		delete(t.connections, token)
		t.share.give(1)
	}
}

// handleAddress takes note of what the peer announces.
func (t *tracker) handleAddress(event mptcpnl.AddressEvent) {
	c := t.connections[event.Token]
	if c == nil {
		return
	}
	if event.Kind == mptcpnl.AddressRemoved {
		c.withdraw(event.ID)
	} else {
		c.announce(event.ID, event.Address)
	}
	t.refresh(c)
}

// leaveToKernel notes that the kernel's path manager is in charge, and leaves
// time to the peer's announcements, where these can come.
func (t *tracker) leaveToKernel(c *connection, now time.Time) {
	c.byKernel, c.due = true, now
	if c.remote.Addr().Is4() || t.announcesIPv6 {
		c.due = now.Add(announceGrace)
	}
	t.refresh(c)
}

func (t *tracker) handleSubflow(event mptcpnl.SubflowEvent, now time.Time) {
	c := t.connections[event.Token]
	if c == nil {
		return
	}
	key := ends{event.Local, event.Remote}
	switch event.Kind {
	case mptcpnl.SubflowEstablished:
		c.established(key, now)
		if key != (ends{c.local, c.remote}) {
			t.unblock(event.Remote.Addr(), now)
		}
	case mptcpnl.SubflowClosed:
		if s, _ := c.subflows.get(key); wasAnsweredWithoutMPTCP(event, s, c) {
			t.block(event.Remote.Addr(), now)
		}
		t.close(c, key, now)
	}
	t.refresh(c)
}

// close takes note of a subflow that closed. One that is not to be opened again
// stays among the connection's.
func (t *tracker) close(c *connection, key ends, now time.Time) {
	s, _ := c.subflows.get(key)
	if s.state == subflowEstablished {
		c.closed(s, now)
	}
	if s.state != subflowOpening && t.settings.Reopen == v1alpha1.ReopenNever {
		c.subflows.set(subflowRecord{ends: key, state: subflowClosed})
	} else {
		c.subflows.remove(key)
	}
	if c.delayed.waits && !c.living() { // it cannot go on with what it has
		t.release(c)
		c.due = now.Add(firstBackoff)
	}
}

// closed plans the next attempt. Where the last one gave a subflow that lasted, or
// was long ago, the backoff begins anew.
func (c *connection) closed(s subflowRecord, now time.Time) {
	if now.Sub(s.since) >= lasting || now.Sub(c.attempted) > maxBackoff {
		c.attempts = 0
	}
	if due := now.Add(backoff(c.attempts)); due.After(c.due) {
		c.due = due
	}
}

// backoff doubles with each attempt.
func backoff(attempts int) time.Duration {
	if attempts > 10 {
		return maxBackoff
	}
	return min(firstBackoff<<attempts, maxBackoff)
}

// attempt notes that what is missing is being opened.
func (t *tracker) attempt(c *connection, now time.Time) {
	c.attempted = now
	c.due = now.Add(backoff(c.attempts))
	c.attempts++
	t.refresh(c)
}

// mayNotHelp is true while the kernel would open subflows also of connections that wait
// for room on the node's paths.
func (t *tracker) mayNotHelp() bool {
	return t.settings.OpenAfter != OpenAfter{} && t.share.crowd.IsBound()
}

// postpone has connections wait that are due.
func (t *tracker) postpone(due []*connection, until time.Time) {
	for _, c := range due {
		c.due = until
		t.refresh(c)
	}
}

// refresh puts the connection where it belongs in the queue; to be called after
// each change.
func (t *tracker) refresh(c *connection) {
	if t.connections[c.token] == c && c.delayed.held == nil && t.missing(c, false) > 0 {
		t.queue.put(c)
	} else {
		t.queue.remove(c)
	}
}

// due lists the connections that lack subflows and whose time has come.
func (t *tracker) due(now time.Time) []*connection { return t.queue.until(now) }

// next is when due will list something, and false while nothing is missing.
func (t *tracker) next() (next time.Time, ok bool) {
	next, ok = t.queue.first()
	if t.held.Len() > 0 && (!ok || t.heldUntil.Before(next)) {
		return t.heldUntil, true
	}
	return next, ok
}
