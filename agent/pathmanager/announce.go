// SPDX-License-Identifier: Apache-2.0

package pathmanager

import (
	"net/netip"
	"slices"
	"time"

	"braid.dev/braid/agent/pathmanager/mptcpnl"
)

// announcer tells the peers of the connections that they began of the pod's other
// addresses, for a full mesh. A peer whose agent does not listen just then never hears
// of an announcement, though its kernel acknowledges it: what leads to no subflow is
// announced again.
type announcer struct {
	namespace *Namespace
	own       []mptcpnl.Endpoint
	known     map[uint32]*announced // by the connection's token
	pending   []announcement
}

// announced is a connection on which addresses were announced.
type announced struct {
	local netip.AddrPort
	pause time.Duration // until those that led to no subflow are announced again
	again time.Time
}

// announcement is one that is to be made.
type announcement struct {
	token    uint32
	endpoint mptcpnl.Endpoint
	port     uint16 // on which a socket must listen there
	tries    int
	due      time.Time
}

const (
	// announceTries is how often an announcement is tried: the kernel makes one at a
	// time on each connection.
	announceTries = 5
	// firstPause is how soon an address is announced again that led to no subflow;
	// pauses double up to longestPause, because a peer may want none.
	firstPause   = resync / 2
	longestPause = 5 * time.Minute
)

func newAnnouncer(n *Namespace, settings Settings) *announcer {
	a := &announcer{namespace: n, known: map[uint32]*announced{}}
	if settings.fullMesh() {
		a.own = settings.own()
	}
	return a
}

func (a *announcer) handle(event mptcpnl.Event, now time.Time) {
	e, ok := event.(mptcpnl.ConnectionEvent)
	switch {
	case !ok:
	case e.Kind == mptcpnl.ConnectionClosed:
		a.forget(e.Token)
	case e.Kind == mptcpnl.ConnectionEstablished && e.ServerSide:
		a.add(e.Token, e.Local, now)
	}
}

func (a *announcer) add(token uint32, local netip.AddrPort, now time.Time) {
	if a.known[token] != nil || len(a.own) == 0 {
		return
	}
	a.known[token] = &announced{local: local, pause: firstPause, again: now.Add(firstPause)}
	a.plan(token, local, nil)
}

// plan has the pod's addresses announced on a connection, without that of its first
// subflow and those with subflows of their own.
func (a *announcer) plan(token uint32, local netip.AddrPort, joined map[netip.Addr]bool) {
	for _, endpoint := range a.own {
		if endpoint.Address != local.Addr() && !joined[endpoint.Address] {
			endpoint.Flags = mptcpnl.FlagSignal
			a.pending = append(a.pending, announcement{token: token, endpoint: endpoint, port: local.Port()})
		}
	}
}

func (a *announcer) forget(token uint32) {
	delete(a.known, token)
	a.cancel(token)
}

// cancel drops the announcements that are to be made on a connection.
func (a *announcer) cancel(token uint32) {
	a.pending = slices.DeleteFunc(a.pending, func(p announcement) bool { return p.token == token })
}

// replace takes over what socket diagnostics found.
func (a *announcer) replace(connections []mptcpnl.Connection, subflows []mptcpnl.Subflow, now time.Time) {
	if len(a.own) == 0 {
		return
	}
	living := map[uint32]bool{}
	for _, c := range connections {
		living[c.Token] = true
	}
	joined := map[uint32]map[netip.Addr]bool{}
	for _, s := range subflows {
		if joined[s.Token] == nil {
			joined[s.Token] = map[netip.Addr]bool{}
		}
		joined[s.Token][s.Local.Addr()] = s.Established || joined[s.Token][s.Local.Addr()]
		if s.First && !s.Initiator && living[s.Token] {
			a.add(s.Token, s.Local, now)
		}
	}
	for token, c := range a.known {
		if !living[token] {
			a.forget(token)
		} else if !now.Before(c.again) {
			a.repeat(token, c, joined[token], now)
		}
	}
}

// repeat announces again what led to no subflow.
func (a *announcer) repeat(token uint32, c *announced, joined map[netip.Addr]bool, now time.Time) {
	c.pause = min(2*c.pause, longestPause)
	c.again = now.Add(c.pause)
	a.cancel(token)
	a.plan(token, c.local, joined)
}

// next is when announce has something to do.
func (a *announcer) next() (next time.Time, ok bool) {
	for _, p := range a.pending {
		if !ok || p.due.Before(next) {
			next, ok = p.due, true
		}
	}
	return next, ok
}

// announce makes the announcements that are due. Where no socket listens at the
// address, nothing is announced that would lead nowhere.
func (a *announcer) announce(now time.Time) error {
	if next, ok := a.next(); !ok || next.After(now) {
		return nil
	}
	listeners, err := a.namespace.diagnostics.Listeners()
	if err != nil {
		return err
	}
	pending := a.pending
	a.pending = nil
	for _, p := range pending {
		switch {
		case p.due.After(now):
			a.pending = append(a.pending, p)
		case !listens(listeners, p.endpoint.Address, p.port):
		default:
			a.try(p, now)
		}
	}
	return nil
}

// try makes an announcement, or plans to try again: the connection may be busy
// with another one. It may also be gone, or its kernel's path manager in charge.
func (a *announcer) try(p announcement, now time.Time) {
	err := a.namespace.client.Announce(p.token, p.endpoint)
	if err == nil {
		return
	}
	p.tries++
	if p.tries < announceTries {
		p.due = now.Add(firstBackoff << p.tries)
		a.pending = append(a.pending, p)
		return
	}
	a.namespace.options.Log.V(1).Info("failed to announce an address", "address", p.endpoint.Address, "error", err.Error())
}

// listens tells whether a socket listens at an address.
func listens(listeners []netip.AddrPort, address netip.Addr, port uint16) bool {
	return slices.ContainsFunc(listeners, func(l netip.AddrPort) bool {
		everywhere := l.Addr().IsUnspecified() && (l.Addr().Is6() || address.Is4())
		return l.Port() == port && (everywhere || l.Addr() == address)
	})
}
