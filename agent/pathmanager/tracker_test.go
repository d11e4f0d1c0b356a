// SPDX-License-Identifier: Apache-2.0

package pathmanager

import (
	"net/netip"
	"testing"
	"time"

	"pgregory.net/rapid"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/mptcpnl"
)

var (
	start  = time.Unix(1000, 0)
	local  = netip.MustParseAddrPort("10.0.0.1:40000")
	remote = netip.MustParseAddrPort("10.0.0.2:80")
	local6 = netip.MustParseAddrPort("[fd00::1]:40000")
	peer6  = netip.MustParseAddrPort("[fd00::2]:80")
)

func source(port uint16) netip.AddrPort { return netip.AddrPortFrom(local.Addr(), port) }

func established(token uint32) mptcpnl.ConnectionEvent {
	return mptcpnl.ConnectionEvent{Kind: mptcpnl.ConnectionEstablished, Token: token, Local: local, Remote: remote}
}

func subflow(kind mptcpnl.Kind, port uint16) mptcpnl.SubflowEvent {
	return mptcpnl.SubflowEvent{Kind: kind, Token: 1, Local: source(port), Remote: remote}
}

func trackerOf(manager v1alpha1.SubflowManager, events ...mptcpnl.Event) *tracker {
	t := newTracker(Settings{Manager: manager, Count: 3}, false, unbounded())
	for _, event := range events {
		t.handle(event, start)
	}
	return t
}

func unbounded() *share { return &share{counts: &Counts{}} }

// replace has the tracker look at these sockets.
func (t *tracker) replace(connections []mptcpnl.Connection, subflows []mptcpnl.Subflow, now time.Time) {
	look := t.look(now)
	for i := range subflows {
		look.subflow(&subflows[i])
	}
	for i := range connections {
		look.connection(&connections[i])
	}
	look.end()
}

func TestWhatIsMissing(t *testing.T) {
	joined, closed := mptcpnl.SubflowEstablished, mptcpnl.SubflowClosed
	server := established(1)
	server.ServerSide = true
	tests := map[string]struct {
		events        []mptcpnl.Event
		agent, kernel int // -1: not known
	}{
		"nothing has happened":              {nil, -1, -1},
		"a connection began":                {[]mptcpnl.Event{established(1)}, 2, 2},
		"a peer began a connection":         {[]mptcpnl.Event{server}, -1, -1},
		"one subflow joined":                {[]mptcpnl.Event{established(1), subflow(joined, 1)}, 1, 1},
		"a subflow joined, told twice":      {[]mptcpnl.Event{established(1), subflow(joined, 1), subflow(joined, 1)}, 1, 1},
		"two subflows joined":               {[]mptcpnl.Event{established(1), subflow(joined, 1), subflow(joined, 2)}, 0, 0},
		"more joined than wanted":           {[]mptcpnl.Event{established(1), subflow(joined, 1), subflow(joined, 2), subflow(joined, 3)}, 0, 0},
		"one of two closed":                 {[]mptcpnl.Event{established(1), subflow(joined, 1), subflow(joined, 2), subflow(closed, 1)}, 1, 1},
		"the first closed":                  {[]mptcpnl.Event{established(1), subflow(joined, 1), subflow(joined, 2), subflow(closed, local.Port())}, 1, 0},
		"one closed that was not known":     {[]mptcpnl.Event{established(1), subflow(closed, 9)}, 2, 2},
		"the connection closed":             {[]mptcpnl.Event{established(1), mptcpnl.ConnectionEvent{Kind: mptcpnl.ConnectionClosed, Token: 1}}, -1, -1},
		"a subflow of an unknown one":       {[]mptcpnl.Event{subflow(joined, 1)}, -1, -1},
		"another connection closed":         {[]mptcpnl.Event{established(1), mptcpnl.ConnectionEvent{Kind: mptcpnl.ConnectionClosed, Token: 2}}, 2, 2},
		"the connection was told once more": {[]mptcpnl.Event{established(1), subflow(joined, 1), established(1)}, 1, 1},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			for manager, want := range map[v1alpha1.SubflowManager]int{
				v1alpha1.SubflowManagerAgent: test.agent, v1alpha1.SubflowManagerKernel: test.kernel,
			} {
				tracker, got := trackerOf(manager, test.events...), -1
				if c := tracker.connections[1]; c != nil {
					got = tracker.missing(c, true)
				}
				if got != want {
					t.Errorf("with manager %s %d subflows are missing, want %d", manager, got, want)
				}
			}
		})
	}
}

func TestWhenANewConnectionIsHelped(t *testing.T) {
	sixth := established(1)
	sixth.Local, sixth.Remote = local6, peer6
	tests := map[string]struct {
		manager       v1alpha1.SubflowManager
		announcesIPv6 bool
		event         mptcpnl.Event
		want          time.Duration
	}{
		"the agent opens subflows at once":               {v1alpha1.SubflowManagerAgent, false, established(1), 0},
		"IPv4 announcements are waited for":              {v1alpha1.SubflowManagerKernel, false, established(1), announceGrace},
		"IPv6 announcements that cannot come are not":    {v1alpha1.SubflowManagerKernel, false, sixth, 0},
		"IPv6 announcements that can come are as well":   {v1alpha1.SubflowManagerKernel, true, sixth, announceGrace},
		"the agent does not wait for IPv6 announcements": {v1alpha1.SubflowManagerAgent, true, sixth, 0},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			tracker := newTracker(Settings{Manager: test.manager, Count: 3}, test.announcesIPv6, unbounded())
			tracker.handle(test.event, start)
			if due := tracker.due(start.Add(test.want)); len(due) != 1 {
				t.Errorf("after %s nothing is due", test.want)
			}
			if due := tracker.due(start.Add(test.want - 1)); test.want > 0 && len(due) != 0 {
				t.Errorf("before %s something is due", test.want)
			}
		})
	}
}

func TestAttemptsBecomeRarerAndBeginAnew(t *testing.T) {
	tracker := trackerOf(v1alpha1.SubflowManagerAgent, established(1))
	c, now := tracker.connections[1], start
	var waits []time.Duration
	for range 10 {
		tracker.attempt(c, now)
		next, ok := tracker.next()
		if !ok {
			t.Fatal("nothing is due any more, though subflows are missing")
		}
		waits, now = append(waits, next.Sub(now)), next
	}
	for i := 1; i < len(waits); i++ {
		if waits[i] != min(2*waits[i-1], maxBackoff) {
			t.Errorf("waits are %v: they do not double up to %s", waits, maxBackoff)
		}
	}
	if waits[0] != firstBackoff {
		t.Errorf("the first wait is %s, want %s", waits[0], firstBackoff)
	}

	now = now.Add(2 * maxBackoff)
	tracker.handle(subflow(mptcpnl.SubflowEstablished, 1), now)
	tracker.handle(subflow(mptcpnl.SubflowEstablished, 2), now)
	if _, ok := tracker.next(); ok {
		t.Error("something is due of a connection that has all")
	}
	tracker.handle(subflow(mptcpnl.SubflowClosed, 1), now)
	if next, _ := tracker.next(); next.Sub(now) != firstBackoff {
		t.Errorf("long after the last attempt a closed subflow waits %s, want %s", next.Sub(now), firstBackoff)
	}
}

func found(token uint32) mptcpnl.Connection {
	return mptcpnl.Connection{Token: token, Local: local, Remote: remote}
}

func TestSocketsThatAreFoundAreTakenOver(t *testing.T) {
	first := mptcpnl.Subflow{Token: 1, Local: local, Remote: remote, Established: true, First: true, Initiator: true}
	served := mptcpnl.Subflow{Token: 1, Local: local, Remote: remote, Established: true, First: true}
	joined := mptcpnl.Subflow{Token: 1, Local: source(1), Remote: remote, Established: true, Initiator: true}
	pending := mptcpnl.Subflow{Token: 1, Local: source(2), Remote: remote, Initiator: true}
	tests := map[string]struct {
		subflows         []mptcpnl.Subflow
		missing, pending int // -1: not taken over
	}{
		"a connection begun here":               {[]mptcpnl.Subflow{first}, 2, 2},
		"with a further subflow":                {[]mptcpnl.Subflow{first, joined}, 1, 1},
		"with one about to be":                  {[]mptcpnl.Subflow{first, joined, pending}, 1, 0},
		"whose first subflow has closed":        {[]mptcpnl.Subflow{joined}, 2, 2},
		"begun by the peer":                     {[]mptcpnl.Subflow{served}, -1, -1},
		"begun by the peer, with a subflow out": {[]mptcpnl.Subflow{joined, served}, -1, -1},
		"the same, found in the other order":    {[]mptcpnl.Subflow{served, joined}, -1, -1},
		"without any subflow":                   {nil, -1, -1},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			tracker := trackerOf(v1alpha1.SubflowManagerAgent)
			tracker.replace([]mptcpnl.Connection{found(1)}, test.subflows, start)
			missing, pending := -1, -1
			if c := tracker.connections[1]; c != nil {
				missing, pending = tracker.missing(c, false), tracker.missing(c, true)
			}
			if missing != test.missing || pending != test.pending {
				t.Errorf("%d subflows are missing, and %d with those about to be; want %d and %d",
					missing, pending, test.missing, test.pending)
			}
		})
	}
}

func TestLookingForgetsWhatIsGoneAndKeepsTheBackoff(t *testing.T) {
	tracker := trackerOf(v1alpha1.SubflowManagerAgent, established(1), established(2))
	tracker.attempt(tracker.connections[1], start)
	tracker.replace([]mptcpnl.Connection{found(1)}, nil, start)
	if tracker.connections[2] != nil {
		t.Error("a connection that is gone is still known")
	}
	if c := tracker.connections[1]; c == nil || c.attempts != 1 {
		t.Errorf("the connection's attempts are lost: %+v", c)
	}
}

// Whatever the events and their order, there are never more subflows asked for
// than are missing, and a connection that lacks some is looked at again.
func TestTrackerProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		manager := rapid.SampledFrom([]v1alpha1.SubflowManager{v1alpha1.SubflowManagerKernel, v1alpha1.SubflowManagerAgent}).Draw(t, "manager")
		tracker := newTracker(Settings{Manager: manager, Count: rapid.IntRange(1, maxCount).Draw(t, "count")}, false, unbounded())
		now := start
		for range rapid.IntRange(0, 40).Draw(t, "events") {
			now = now.Add(time.Duration(rapid.IntRange(0, 5000).Draw(t, "milliseconds")) * time.Millisecond)
			tracker.handle(drawEvent(t), now)
			for _, c := range tracker.due(now) {
				tracker.attempt(c, now)
			}
		}
		checkTracker(t, tracker, now)
	})
}

func drawEvent(t *rapid.T) mptcpnl.Event {
	token := uint32(rapid.IntRange(1, 2).Draw(t, "token"))
	switch rapid.IntRange(0, 3).Draw(t, "event") {
	case 0:
		return established(token)
	case 1:
		return mptcpnl.ConnectionEvent{Kind: mptcpnl.ConnectionClosed, Token: token}
	}
	kind := rapid.SampledFrom([]mptcpnl.Kind{mptcpnl.SubflowEstablished, mptcpnl.SubflowClosed}).Draw(t, "kind")
	event := subflow(kind, uint16(rapid.IntRange(1, 9).Draw(t, "port")))
	event.Token = token
	return event
}

func checkTracker(t *rapid.T, tracker *tracker, now time.Time) {
	for token, c := range tracker.connections {
		missing := tracker.missing(c, false)
		if missing < 0 || missing+len(c.subflows) > max(tracker.settings.Count, len(c.subflows)) {
			t.Fatalf("connection %d has %d subflows and is said to lack %d", token, len(c.subflows), missing)
		}
		if missing > 0 && c.due.After(now.Add(maxBackoff)) {
			t.Fatalf("connection %d lacks subflows and is not looked at before %s", token, c.due.Sub(now))
		}
	}
}
