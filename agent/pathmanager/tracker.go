// SPDX-License-Identifier: Apache-2.0

package pathmanager

import (
	"net/netip"
	"time"

	"braid.dev/braid/agent/pathmanager/mptcpnl"
	"braid.dev/braid/api/v1alpha1"
)

const (
	// firstBackoff is how soon a closed subflow is opened again.
	firstBackoff = 100 * time.Millisecond
	// maxBackoff is how often it is tried where that fails again and again.
	maxBackoff = 10 * time.Second
	// announceGrace is how long the kernel may take to open the subflows of a new
	// connection to announced addresses, before it is helped.
	announceGrace = time.Second
)

// tracker knows the connections that the pod began, and which of them lack
// subflows. It does nothing itself.
type tracker struct {
	settings      Settings
	announcesIPv6 bool // see capabilities; taken to hold for the peers too
	connections   map[uint32]*connection
}

// connection is one that the pod began.
type connection struct {
	token         uint32
	local, remote netip.AddrPort // of the first subflow
	subflows      map[ends]bool  // whether each is established; if not, it is about to be
	byKernel      bool           // the kernel's path manager is in charge
	attempts      int            // to open what is missing, since it was complete for long
	attempted     time.Time
	due           time.Time // when to look next
}

// ends are those of a subflow.
type ends struct{ local, remote netip.AddrPort }

func newTracker(settings Settings, announcesIPv6 bool) *tracker {
	return &tracker{settings: settings, announcesIPv6: announcesIPv6, connections: map[uint32]*connection{}}
}

// handle takes note of an event.
func (t *tracker) handle(event mptcpnl.Event, now time.Time) {
	switch event := event.(type) {
	case mptcpnl.ConnectionEvent:
		t.handleConnection(event, now)
	case mptcpnl.SubflowEvent:
		t.handleSubflow(event, now)
	}
}

func (t *tracker) handleConnection(event mptcpnl.ConnectionEvent, now time.Time) {
	switch event.Kind {
	case mptcpnl.ConnectionClosed:
		delete(t.connections, event.Token)
	case mptcpnl.ConnectionEstablished:
		if event.ServerSide || t.connections[event.Token] != nil {
			return
		}
		c := t.add(event.Token, event.Local, event.Remote)
		c.subflows[ends{event.Local, event.Remote}] = true
		if t.settings.Manager == v1alpha1.SubflowManagerKernel {
			t.leaveToKernel(c, now)
		}
	}
}

func (t *tracker) add(token uint32, local, remote netip.AddrPort) *connection {
	c := &connection{token: token, local: local, remote: remote, subflows: map[ends]bool{}}
	t.connections[token] = c
	return c
}

// leaveToKernel notes that the kernel's path manager is in charge, and leaves
// time to the peer's announcements, where these can come.
func (t *tracker) leaveToKernel(c *connection, now time.Time) {
	c.byKernel, c.due = true, now
	if c.remote.Addr().Is4() || t.announcesIPv6 {
		c.due = now.Add(announceGrace)
	}
}

func (t *tracker) handleSubflow(event mptcpnl.SubflowEvent, now time.Time) {
	c := t.connections[event.Token]
	if c == nil {
		return
	}
	key := ends{event.Local, event.Remote}
	switch event.Kind {
	case mptcpnl.SubflowEstablished:
		c.subflows[key] = true
	case mptcpnl.SubflowClosed:
		if c.subflows[key] {
			c.closed(now)
		}
		delete(c.subflows, key)
	}
}

// closed plans the next attempt. One that comes long after the last begins anew
// with a short backoff.
func (c *connection) closed(now time.Time) {
	if now.Sub(c.attempted) > maxBackoff {
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
func (c *connection) attempt(now time.Time) {
	c.attempted = now
	c.due = now.Add(backoff(c.attempts))
	c.attempts++
}

// missing is how many subflows a connection lacks, beyond those established and,
// if so wanted, those about to be. The kernel counts further subflows only, so
// it opens none for a first one that closed.
func (t *tracker) missing(c *connection, withPending bool) int {
	have, wanted := 0, t.settings.Count
	for key, established := range c.subflows {
		if c.byKernel && key == (ends{c.local, c.remote}) {
			continue
		}
		if established || withPending {
			have++
		}
	}
	if c.byKernel {
		wanted--
	}
	return max(0, wanted-have)
}

// due lists the connections that lack subflows and whose time has come.
func (t *tracker) due(now time.Time) (due []*connection) {
	for _, c := range t.connections {
		if t.missing(c, false) > 0 && !c.due.After(now) {
			due = append(due, c)
		}
	}
	return due
}

// next is when due will list something, and false while nothing is missing.
func (t *tracker) next() (next time.Time, ok bool) {
	for _, c := range t.connections {
		if t.missing(c, false) > 0 && (!ok || c.due.Before(next)) {
			next, ok = c.due, true
		}
	}
	return next, ok
}

// replace takes over what socket diagnostics found: events may have been lost,
// and connections may be older than the agent. Who is in charge of such a
// connection was decided when it began, and shows when it is tried.
func (t *tracker) replace(connections []mptcpnl.Connection, subflows []mptcpnl.Subflow) {
	before := t.connections
	t.connections = map[uint32]*connection{}
	byToken := map[uint32][]mptcpnl.Subflow{}
	for _, subflow := range subflows {
		byToken[subflow.Token] = append(byToken[subflow.Token], subflow)
	}
	for _, found := range connections {
		c := before[found.Token]
		if c == nil && !begunHere(byToken[found.Token]) {
			continue
		}
		if c == nil {
			c = t.add(found.Token, found.Local, found.Remote)
		}
		t.connections[c.token] = c
		c.subflows = map[ends]bool{}
		for _, subflow := range byToken[c.token] {
			c.subflows[ends{subflow.Local, subflow.Remote}] = subflow.Established
		}
	}
}

// begunHere tells whether this host began the connection. The first subflow says
// so; where that is closed, any other does, because only the host that began the
// connection opens subflows.
func begunHere(subflows []mptcpnl.Subflow) bool {
	here := false
	for _, subflow := range subflows {
		if subflow.First {
			return subflow.Initiator
		}
		here = here || subflow.Initiator
	}
	return here
}
