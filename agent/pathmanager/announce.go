// SPDX-License-Identifier: Apache-2.0

package pathmanager

import (
	"net/netip"
	"slices"
	"time"

	"braid.dev/braid/internal/mptcpnl"
)

// announcer tells the peers of the connections that they began of the pod's other
// addresses, for a full mesh. A peer whose agent does not listen just then never hears
// of an announcement, though its kernel acknowledges it: what leads to no subflow is
// announced again. Both agents learn at about the same time that a connection lasts, and the
// peer's may be the later one, so this is done soon for the first time.
type announcer struct {
	namespace *Namespace
	settings  Settings
	own       []mptcpnl.Endpoint
	known     map[uint32]*announced // by the connection's token
	pending   []announcement
	due       time.Time // of the first of these
	share     *share
	pace      *lookPace
}

// announced is a connection on which addresses were announced.
type announced struct {
	local   netip.AddrPort
	joined  map[netip.Addr]bool // those of our own to which events told of a subflow
	pending int
	pause   time.Duration // until those that led to no subflow are announced again
	again   time.Time
}

// announcement is one that is to be made.
type announcement struct {
	token    uint32
	endpoint mptcpnl.Endpoint
	port     uint16 // on which a socket must listen there
	tries    int
	made     bool // once
	due      time.Time
}

const (
	// announceTries is how often an announcement is tried: the kernel makes one at a
	// time on each connection.
	announceTries = 5
	// secondAfter is how long after the first announcement the second one is made.
	secondAfter = time.Second
	// firstPause is how soon a look has an address announced again that led to no subflow;
	// pauses double up to longestPause, because a peer may want none.
	firstPause   = resync / 2
	longestPause = 5 * time.Minute
)

func newAnnouncer(n *Namespace, settings Settings, share *share, pace *lookPace) *announcer {
	a := &announcer{namespace: n, settings: settings, known: map[uint32]*announced{}, share: share, pace: pace}
	if settings.fullMesh() {
		a.own = settings.own()
	}
	return a
}

func (a *announcer) handle(event mptcpnl.Event, now time.Time) {
	switch e := event.(type) {
	case mptcpnl.SubflowEvent:
		if c := a.known[e.Token]; c != nil && e.Kind == mptcpnl.SubflowEstablished && len(c.joined) < mostSubflows {
			c.joined[e.Local.Addr()] = true
		}
	case mptcpnl.ConnectionEvent:
		if e.Kind == mptcpnl.ConnectionClosed {
			a.forget(e.Token)
		} else if e.Kind == mptcpnl.ConnectionEstablished && e.ServerSide && !a.settings.staysInside(e.Local, e.Remote) {
			a.add(e.Token, e.Local, now)
		}
	}
}

func (a *announcer) add(token uint32, local netip.AddrPort, now time.Time) {
	if a.known[token] != nil || len(a.own) == 0 || !a.share.take() {
		return
	}
	c := &announced{local: local, joined: map[netip.Addr]bool{}, pause: firstPause, again: now.Add(firstPause)}
	a.known[token] = c
	a.plan(token, c, nil)
}

// plan has the pod's addresses announced on a connection, without that of its first
// subflow and those with subflows of their own.
func (a *announcer) plan(token uint32, c *announced, joined map[netip.Addr]bool) {
	for _, endpoint := range a.own {
		if endpoint.Address != c.local.Addr() && !joined[endpoint.Address] {
			endpoint.Flags = mptcpnl.FlagSignal
			a.wait(c, announcement{token: token, endpoint: endpoint, port: c.local.Port()})
		}
	}
}

func (a *announcer) wait(c *announced, p announcement) {
	if len(a.pending) == 0 || p.due.Before(a.due) {
		a.due = p.due
	}
	a.pending = append(a.pending, p)
	c.pending++
}

// forget leaves what is to be announced on the connection to announce.
func (a *announcer) forget(token uint32) {
	if a.known[token] != nil {
		delete(a.known, token)
		a.share.give(1)
	}
}

// repeat announces again what led to no subflow.
func (a *announcer) repeat(token uint32, c *announced, joined map[netip.Addr]bool, now time.Time) {
	c.pause = min(2*c.pause, longestPause)
	c.again = now.Add(c.pause)
	if c.pending == 0 {
		a.plan(token, c, joined)
	}
}

// next is when announce has something to do.
func (a *announcer) next() (next time.Time, ok bool) {
	if next = a.due; next.Before(a.pace.next) {
		next = a.pace.next
	}
	return next, len(a.pending) > 0
}

// announce makes the announcements that are due. Where no socket listens at the
// address, nothing is announced that would lead nowhere.
func (a *announcer) announce(now time.Time) error {
	if next, ok := a.next(); !ok || next.After(now) {
		return nil
	}
	a.dropJoined()
	if len(a.pending) == 0 {
		return nil
	}
	listening, err := a.listening()
	if err != nil {
		return err
	}
	pending := a.pending
	a.pending = nil
	for _, p := range pending {
		c := a.known[p.token]
		c.pending--
		switch {
		case p.due.After(now):
			a.wait(c, p)
		case listening[socket{p.endpoint.Address, p.port}]:
			a.try(c, p, now)
		}
	}
	return nil
}

// dropJoined has nothing announced again that led to a subflow, nor on connections that closed.
func (a *announcer) dropJoined() {
	a.pending = slices.DeleteFunc(a.pending, func(p announcement) bool {
		c := a.known[p.token]
		joined := c != nil && p.made && c.joined[p.endpoint.Address]
		if joined {
			c.pending--
		}
		return c == nil || joined
	})
}

// socket is where one is to listen.
type socket struct {
	address netip.Addr
	port    uint16
}

// listening looks which of those are there on which announcements wait: a pod can have
// any number of others.
func (a *announcer) listening() (map[socket]bool, error) {
	defer a.pace.spent(time.Now())
	wanted := map[socket]bool{}
	for _, p := range a.pending {
		wanted[socket{p.endpoint.Address, p.port}] = false
	}
	return wanted, a.namespace.diagnostics.EachListener(func(at netip.AddrPort) bool {
		for _, endpoint := range a.own {
			key := socket{endpoint.Address, at.Port()}
			if _, asked := wanted[key]; asked && listens(at, endpoint.Address) {
				wanted[key] = true
			}
		}
		return true
	})
}

// try makes an announcement, or plans to try again: the connection may be busy
// with another one. It may also be gone, or its kernel's path manager in charge.
func (a *announcer) try(c *announced, p announcement, now time.Time) {
	err := a.namespace.client.Announce(p.token, p.endpoint)
	if err == nil {
		if !p.made && c.pause == firstPause { // no look had it announced again yet
			p.made, p.due = true, now.Add(secondAfter)
			a.wait(c, p)
		}
		return
	}
	p.tries++
	if p.tries < announceTries {
		p.due = now.Add(firstBackoff << p.tries)
		a.wait(c, p)
		return
	}
	a.namespace.options.Log.V(1).Info("failed to announce an address", "address", p.endpoint.Address, "error", err.Error())
}

// listens tells whether a socket that listens at an address does so at another.
func listens(at netip.AddrPort, address netip.Addr) bool {
	everywhere := at.Addr().IsUnspecified() && (at.Addr().Is6() || address.Is4())
	return everywhere || at.Addr() == address
}
