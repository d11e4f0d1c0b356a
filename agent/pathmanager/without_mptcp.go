// SPDX-License-Identifier: Apache-2.0

package pathmanager

import (
	"net/netip"
	"time"

	"braid.dev/braid/internal/mptcpnl"
)

const (
	// firstBlocked is how long no join to an address is tried after one that was answered
	// without MPTCP, at first; each further one doubles it.
	firstBlocked = 10 * time.Second
	mostBlocked  = time.Minute
	// mostBlockedPeers bounds what is remembered of them.
	mostBlockedPeers = 256
)

// blocked is an address to which joins do not get: something on the way takes their option,
// as the answers have none. To try again soon is of no use, and each attempt has the kernel
// send again what is under way on the connection's other subflows (__mptcp_close_ssk).
type blocked struct {
	wait  time.Duration
	until time.Time // then one connection tries for all
}

// wasAnsweredWithoutMPTCP: a further subflow closed before it was established, and by no error.
// A peer that resets it, or says nothing, is one.
func wasAnsweredWithoutMPTCP(event mptcpnl.SubflowEvent, record subflowRecord, c *connection) bool {
	return event.Error == 0 && record.state == subflowOpening && record.ends != ends{c.local, c.remote}
}

// block notes that a join to an address was answered without MPTCP.
func (t *tracker) block(peer netip.Addr, now time.Time) {
	b, known := t.blocked[peer]
	if !known && len(t.blocked) >= mostBlockedPeers {
		clear(t.blocked)
	}
	b.wait = min(max(firstBlocked, 2*b.wait), mostBlocked)
	b.until = now.Add(b.wait)
	t.blocked[peer] = b
}

// unblock: a join to an address was taken, so all connections may have theirs.
func (t *tracker) unblock(peer netip.Addr, now time.Time) {
	if _, known := t.blocked[peer]; !known {
		return
	}
	var others []*connection
	for _, c := range t.connections {
		if t.joinsAt(c) == peer && !c.delayed.waits {
			others = append(others, c)
		}
	}
	delete(t.blocked, peer)
	for _, c := range others {
		c.due, c.attempts = now, 0
		t.refresh(c)
	}
}

// joinsAt is the address to which the connection's next join goes. Of those that the kernel
// may choose it is one to which none gets.
func (t *tracker) joinsAt(c *connection) netip.Addr {
	if !c.byKernel {
		at, _, _ := t.peer(c)
		return at.Addr()
	}
	for _, announced := range c.announced {
		if _, known := t.blocked[announced.at.Addr()]; known {
			return announced.at.Addr()
		}
	}
	return c.remote.Addr()
}

// mayJoin is false while joins to the connection's peer are not tried. One that is true takes
// the turn: other connections wait for what becomes of it.
func (t *tracker) mayJoin(c *connection, now time.Time) bool {
	peer := t.joinsAt(c)
	b, known := t.blocked[peer]
	if known && c.attempts == 0 && !c.byKernel { // the next attempt may go to what the peer announces
		c.attempts++
		peer = t.joinsAt(c)
		b, known = t.blocked[peer]
	}
	if !known {
		return true
	}
	if now.Before(b.until) {
		c.due = b.until
		t.refresh(c)
		return false
	}
	b.until = now.Add(b.wait)
	t.blocked[peer] = b
	return true
}
