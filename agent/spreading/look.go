// SPDX-License-Identifier: Apache-2.0

package spreading

import (
	"errors"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"braid.dev/braid/agent/datapath"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/agent/pathmanager/conntrack"
	"braid.dev/braid/internal/agentapi"
	"braid.dev/braid/internal/mptcpnl"
)

const (
	// mostSockets are looked at of one pod.
	mostSockets = 16384
	// mostKept are remembered of a node from one look to the next, shared by tenants and
	// pods, to know what they moved. Of the rest it is known that they are there.
	mostKept = 32768
	// mostPlaces are looked up for one pod and look.
	mostPlaces = 64
	// manyRetries in a row are no answer for three seconds at the least; a dead path is left
	// long before.
	manyRetries = 4
	// recent is how long ago a flow was used that still counts: the programs note the time
	// of the agent's last round.
	recent = time.Minute
	// afterlife is how long the kernel keeps what is left of a connection. What is older
	// than the first look at a pod may have been anything: its flows are not known.
	afterlife = time.Minute
)

// ends of a socket as its pod sees them.
type ends struct{ local, remote netip.AddrPort }

// carried is what a socket has sent and received.
type carried struct{ sent, received uint64 }

func (c carried) since(before carried) carried {
	if c.sent < before.sent || c.received < before.received {
		return c // other sockets with the same ends
	}
	return carried{c.sent - before.sent, c.received - before.received}
}

// keptSocket is what is kept of a socket from one look to the next.
type keptSocket struct {
	carried
	since time.Time // of the first look that saw it
}

// look is one look at one endpoint's sockets.
type look struct {
	endpoint *node.Endpoint
	begin    time.Time
	// before is what its sockets had carried at the last look; nil in the first.
	before map[ends]keptSocket
	// mature: all that is left of connections was there after the first look.
	mature bool
	// partly: before lacks sockets, for which there was no room.
	partly bool
	flows  *datapath.FlowTable
	atlas  *atlas
	// tracked are the ends of connections to Services, and of masqueraded ones, as others know
	// them; nil where nobody knows.
	tracked func(local, remote netip.AddrPort) (conntrack.Ends, bool, error)
	// keep is false where there is no room for one more socket.
	keep func() bool

	observed observation
	now      map[ends]keptSocket
	full     bool           // there was no room for all
	byToken  map[uint32]int // the place of a connection in observed
	spots    map[netip.AddrPort]spot
	onPath   map[string]*agentapi.PathTraffic
}

// run looks at the sockets in the endpoint's network namespace.
func (l *look) run() error {
	if l.observed.guest {
		return nil // its sockets are not the node's to see
	}
	l.now, l.byToken, l.spots, l.onPath = map[ends]keptSocket{}, map[uint32]int{}, map[netip.AddrPort]spot{}, map[string]*agentapi.PathTraffic{}
	diagnostics, err := mptcpnl.DialDiagnosticsAt(l.endpoint.Found.Path)
	if err != nil {
		return err
	}
	defer diagnostics.Close()
	left := mostSockets
	err = diagnostics.EachSocket(func(s *mptcpnl.Socket) bool {
		l.socket(s)
		left--
		return left > 0
	})
	err = errors.Join(err, l.announced(diagnostics))
	l.setAsideIdle()
	return err
}

// setAsideIdle leaves the connections that moved something.
func (l *look) setAsideIdle() {
	l.observed.connections = slices.DeleteFunc(l.observed.connections, func(c connection) bool {
		// What one subflow cannot deliver the others do, so they try too before all is lost.
		if c.bytes == 0 && c.silent == c.subflows && c.unanswered != nil {
			l.observed.unanswered = append(l.observed.unanswered, *c.unanswered)
		}
		return c.bytes == 0
	})
}

// announced notes the connections whose peers gave addresses for further subflows.
func (l *look) announced(diagnostics *mptcpnl.Diagnostics) error {
	if !slices.ContainsFunc(l.observed.connections, func(c connection) bool { return c.begunHere && c.subflows == 1 }) {
		return nil
	}
	return diagnostics.EachConnection(func(c *mptcpnl.Connection) bool {
		if at, known := l.byToken[c.Token]; known {
			l.observed.connections[at].announced = c.Announced > 0
		}
		return true
	})
}

// socket takes one socket in.
func (l *look) socket(s *mptcpnl.Socket) {
	if s.Opening {
		l.attempt(s)
		return
	}
	flow := l.flowOf(s)
	where, known := l.spotOf(s, flow)
	switch {
	case !known:
		l.attempt(s)
	case where.place == here:
	case s.Over && flow == nil && l.mature:
		l.observed.over = append(l.observed.over, connection{speaks: speaksTCP, place: where.place, tunnel: where.tunnel, kind: where.kind})
	case !s.Over:
		usable := l.atlas.usable(l.observed.open, where.peer)
		path := ""
		if flow != nil && !flow.Ended {
			path = carrier(flow.Carrier(), usable)
		}
		moved, since := l.moved(s)
		l.note(path, moved)
		c := l.connectionOf(s, where)
		c.common = len(usable)
		c.shared = c.shared || flow != nil && flow.Shared
		if !since.IsZero() {
			c.known, c.age = true, max(c.age, l.begin.Sub(since))
		}
		if path != "" && !slices.Contains(c.paths, path) {
			c.paths = append(c.paths, path)
		}
		c.subflows++
		if s.TCP.Retries >= manyRetries {
			c.silent, c.unanswered = c.silent+1, l.routeTo(s)
		}
		c.bytes += moved.sent + moved.received
		c.ever += s.TCP.SentBytes + s.TCP.ReceivedBytes
	}
}

// attempt notes a socket whose peer was never heard, or to which no route leads any more. A
// further subflow that is not answered is no loss to its connection.
func (l *look) attempt(s *mptcpnl.Socket) {
	if s.TCP.Retries < manyRetries || s.Multipath && s.Opening && !s.First {
		return
	}
	if route := l.routeTo(s); route != nil {
		l.observed.unanswered = append(l.observed.unanswered, *route)
	}
}

// routeTo is where the node's routes lead what a socket sends; nil where that is nowhere that
// a cluster network is to blame for.
func (l *look) routeTo(s *mptcpnl.Socket) *lost {
	where, err := l.atlas.find(l.translated(s).Addr())
	switch {
	case errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EHOSTUNREACH):
		return &lost{noRoute: true}
	case err != nil || where.place == here || where.place == elsewhere:
		return nil
	}
	return &lost{tunnel: where.tunnel, kind: where.kind}
}

// translated is a socket's other end as the node's routes know it.
func (l *look) translated(s *mptcpnl.Socket) netip.AddrPort {
	if l.tracked != nil && !s.Over {
		if ends, ok, err := l.tracked(s.Local, s.Remote); err == nil && ok {
			return ends.Remote
		}
	}
	return s.Remote
}

// flowOf is a socket's flow; nil where it has none, or that cannot be told. A connection to
// a Service has the Service's address for the pod and a backend's for the uplinks, and one that is
// masqueraded has the node's there.
func (l *look) flowOf(s *mptcpnl.Socket) *datapath.Flow {
	flow, err := l.flows.Find(s.Local, s.Remote)
	if flow != nil || err != nil || l.tracked == nil || !s.Multipath {
		return flow
	}
	if seen, ok, err := l.tracked(s.Local, s.Remote); err == nil && ok && seen != (conntrack.Ends{Local: s.Local, Remote: s.Remote}) {
		flow, _ = l.flows.Find(seen.Local, seen.Remote)
	}
	return flow
}

// connectionOf is that of a socket. Its subflows may be behind different routes; the
// first that is seen tells.
func (l *look) connectionOf(s *mptcpnl.Socket, where spot) *connection {
	c := connection{place: where.place, tunnel: where.tunnel, kind: where.kind}
	at, known := l.byToken[s.Token]
	switch {
	case s.Multipath && !known:
		l.byToken[s.Token] = len(l.observed.connections)
	case s.Multipath:
		known := &l.observed.connections[at]
		known.begunHere = known.begunHere || s.Initiator
		return known
	case s.FellBack:
		c.speaks = fellBack
	default:
		c.speaks = speaksTCP
	}
	c.begunHere = s.Initiator
	l.observed.connections = append(l.observed.connections, c)
	return &l.observed.connections[len(l.observed.connections)-1]
}

// moved is what a socket carried since the last look, and when it was seen first; zero for
// now.
func (l *look) moved(s *mptcpnl.Socket) (moved carried, since time.Time) {
	if !l.keep() {
		l.full = true
		return carried{}, time.Time{}
	}
	key, now := ends{s.Local, s.Remote}, carried{s.TCP.SentBytes, s.TCP.ReceivedBytes}
	before, known := l.before[key]
	if !known {
		l.now[key] = keptSocket{now, l.begin}
	} else {
		l.now[key] = keptSocket{now, before.since}
	}
	if l.before == nil || l.partly && !known {
		return carried{}, time.Time{} // it may be older than the last look
	}
	return now.since(before.carried), before.since
}

func (l *look) note(path string, moved carried) {
	on := l.onPath[path]
	if on == nil {
		on = &agentapi.PathTraffic{Path: path}
		l.onPath[path] = on
	}
	on.Subflows++
	on.SentBytes += moved.sent
	on.ReceivedBytes += moved.received
}

// spotOf is where a socket's peer is. A flow of the uplinks leads to a peer's node.
func (l *look) spotOf(s *mptcpnl.Socket, flow *datapath.Flow) (where spot, known bool) {
	if flow != nil {
		return spot{place: behindPeer, peer: l.atlas.byNumber[flow.Peer]}, true
	}
	if where, known = l.spots[s.Remote]; known || len(l.spots) >= mostPlaces {
		return where, known
	}
	where, err := l.atlas.find(l.translated(s).Addr())
	if err != nil {
		return spot{}, false // no route any more: nothing goes there
	}
	l.spots[s.Remote] = where
	return where, true
}
