// SPDX-License-Identifier: Apache-2.0

package pathmanager

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"braid.dev/braid/agent/crowd"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/mptcpnl"
)

func waitingTracker(after OpenAfter) *tracker {
	return newTracker(Settings{Manager: v1alpha1.SubflowManagerAgent, Count: 3, OpenAfter: after}, false, unbounded())
}

// looksAt plays a connection that moves bytes at a rate, and returns when it was
// looked at, until it gets its subflows or a time has passed.
func looksAt(t *tracker, rate float64, span time.Duration) (looks []time.Duration) {
	t.handle(established(1), start)
	c := t.connections[1]
	for {
		next, ok := t.next()
		if !ok || next.Sub(start) > span {
			return looks
		}
		looks = append(looks, next.Sub(start))
		t.looked(c, uint64(rate*next.Sub(start).Seconds()), next)
		if !c.delayed.waits {
			return looks
		}
	}
}

func TestWhenAConnectionThatWaitsIsLookedAt(t *testing.T) {
	const kilo = 1 << 10
	tests := map[string]struct {
		after       OpenAfter
		rate        float64 // bytes a second
		span        time.Duration
		most        int           // looks
		first, last time.Duration // 0: does not matter
	}{
		"one that waits for its time only, once":        {OpenAfter{Time: time.Minute}, 1e6, time.Hour, 1, time.Minute, time.Minute},
		"a fast one, when it should have moved enough":  {OpenAfter{Bytes: 1000 * kilo}, 1000 * kilo, time.Hour, 3, shortestLook, 0},
		"a slow one, once a second":                     {OpenAfter{Bytes: 1000 * kilo}, 10 * kilo, time.Minute, 62, shortestLook, 0},
		"an idle one, ever less often":                  {OpenAfter{Bytes: kilo}, 0, time.Minute, 45, shortestLook, 0},
		"an idle one, at the end when it is old enough": {OpenAfter{Bytes: kilo, Time: 10 * time.Second}, 0, time.Minute, 40, shortestLook, 10 * time.Second},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			looks := looksAt(waitingTracker(test.after), test.rate, test.span)
			switch {
			case len(looks) == 0 || len(looks) > test.most:
				t.Fatalf("it is looked at %d times, at %v; want 1 to %d", len(looks), looks, test.most)
			case test.first != 0 && looks[0] != test.first:
				t.Errorf("it is looked at first after %s, want %s", looks[0], test.first)
			case test.last != 0 && looks[len(looks)-1] != test.last:
				t.Errorf("it is looked at last after %s, want %s", looks[len(looks)-1], test.last)
			}
		})
	}
}

func TestManyThatWaitAreLookedAtLessOften(t *testing.T) {
	tracker := waitingTracker(OpenAfter{Bytes: 1 << 20})
	for token := range uint32(5000) {
		tracker.handle(established(token+1), start)
	}
	looks := 0
	for now := start; now.Before(start.Add(10 * time.Second)); now = now.Add(10 * time.Millisecond) {
		for _, c := range tracker.due(now) {
			looks++
			tracker.looked(c, 0, now)
		}
	}
	if limit := 12 * lookRate; looks == 0 || looks > limit {
		t.Errorf("5000 idle connections are looked at %d times in ten seconds, want 1 to %d", looks, limit)
	}
}

func bound(left int) *crowd.Room {
	room := &crowd.Room{}
	room.Set(left, time.Now().Add(time.Hour))
	return room
}

// waitedEnough is a tracker whose connections all have moved enough.
func waitedEnough(t *testing.T, connections int, room *crowd.Room) *tracker {
	t.Helper()
	tracker := waitingTracker(OpenAfter{Bytes: 1 << 20})
	tracker.share.crowd = room
	for token := range uint32(connections) {
		tracker.handle(established(token+1), start)
	}
	for _, c := range tracker.due(start.Add(time.Second)) {
		tracker.looked(c, 1<<20, start.Add(time.Second))
	}
	require.Zero(t, tracker.delaying)
	require.Zero(t, tracker.share.counts.waiting.Load())
	return tracker
}

func TestConnectionsThatHaveWaitedEnoughWaitForRoomOnThePaths(t *testing.T) {
	const all, places = 100, 30
	room, now := bound(0), start.Add(time.Second)
	tracker := waitedEnough(t, all, room)
	require.Equal(t, all, tracker.held.Len())
	require.Empty(t, tracker.due(now.Add(time.Hour)), "those that are held cost nothing")
	room.Set(places, time.Now().Add(time.Hour))
	tracker.letGoHeld(now)
	require.Equal(t, all, tracker.held.Len(), "it is not time to look")
	next, ok := tracker.next()
	require.True(t, ok)
	require.Equal(t, now.Add(heldLook), next)
	tracker.letGoHeld(next)
	require.Equal(t, all-places, tracker.held.Len())
	require.Len(t, tracker.due(next), places)
	room.Set(0, time.Now().Add(-time.Second)) // nobody says anything any more
	tracker.letGoHeld(next.Add(heldLook))
	require.Equal(t, all-places-1, tracker.held.Len())
	room.Free()
	tracker.letGoHeld(next.Add(2 * heldLook))
	require.Zero(t, tracker.held.Len())
	require.Len(t, tracker.due(next.Add(2*heldLook)), all)
}

func TestManyThatAreHeldAreLetGoByAndBy(t *testing.T) {
	room := bound(0)
	tracker := waitedEnough(t, 3*mostLetGo, room)
	room.Free()
	tracker.letGoHeld(start.Add(time.Minute))
	require.Equal(t, 2*mostLetGo, tracker.held.Len())
}

func TestThoseThatWaitForRoomAreLookedAtInTurn(t *testing.T) {
	const all, looks = 100, int(rescueTurn / heldLook)
	tracker, seen := waitedEnough(t, all, bound(0)), map[uint32]bool{}
	for range looks {
		for _, c := range tracker.inTurn() {
			seen[c.token] = true
		}
	}
	require.Len(t, seen, all)
	require.Len(t, waitedEnough(t, 3*mostLetGo, bound(0)).inTurn(), mostInTurn)
	require.Empty(t, waitedEnough(t, 0, bound(0)).inTurn())
}

func TestTheTurnGoesOnWithTheNextOneWhereAConnectionEnds(t *testing.T) {
	tracker := waitedEnough(t, 8, bound(0))
	tracker.inTurn()
	next := tracker.turn.Value.(*connection)
	after := tracker.turn.Next().Value.(*connection)
	tracker.forget(next.token)
	require.Equal(t, after, tracker.inTurn()[0])
}

func TestAConnectionStandsStillWhenTCPHasTriedTwiceAndWaitsLong(t *testing.T) {
	for name, test := range map[string]struct {
		retries uint8
		timeout time.Duration
		stuck   bool
	}{
		"nothing to repeat":              {0, 220 * time.Millisecond, false},
		"a first attempt":                {1, 440 * time.Millisecond, false},
		"a first attempt on a long path": {1, 2 * time.Second, false},
		"a second one":                   {2, 880 * time.Millisecond, true},
		"a second one with short timers": {2, 80 * time.Millisecond, false},
		"a later one with short timers":  {5, 640 * time.Millisecond, true},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, test.stuck, isStuck(&mptcpnl.Subflow{TCP: mptcpnl.TCPInfo{Retries: test.retries, Timeout: test.timeout}}))
		})
	}
}

func TestFewThatStandStillGetASubflowWhileThePathsAreFull(t *testing.T) {
	tracker, now := waitedEnough(t, 100, bound(0)), start.Add(time.Minute)
	rescue := func(now time.Time) (rescued []*connection) {
		for place := tracker.held.Front(); place != nil; place = place.Next() {
			if c := place.Value.(*connection); tracker.rescue(c, now) {
				tracker.attempt(c, now)
				rescued = append(rescued, c)
			}
		}
		return rescued
	}
	few := rescue(now)
	require.Len(t, few, 100/8)
	require.Equal(t, 100, tracker.held.Len(), "they wait for the others")
	require.Empty(t, tracker.due(now.Add(time.Hour)))
	require.EqualValues(t, len(few), tracker.share.counts.Rescued.Load())
	require.Empty(t, rescue(now.Add(maxBackoff-1)))
	few[0].established(ends{source(9), remote}, now)
	require.Equal(t, few[1:], rescue(now.Add(maxBackoff)), "those again of which nothing came")
	tracker.forget(few[0].token)
	require.Len(t, rescue(now.Add(maxBackoff)), 1, "another one, once one has ended")
	require.EqualValues(t, len(few)+1, tracker.share.counts.Rescued.Load())
}

func TestAConnectionThatEndsOrLosesItsSubflowIsHeldNoMore(t *testing.T) {
	tracker := waitedEnough(t, 2, bound(0))
	tracker.forget(1)
	require.Equal(t, 1, tracker.held.Len())
	c := tracker.connections[2]
	tracker.handle(mptcpnl.SubflowEvent{Kind: mptcpnl.SubflowClosed, Token: 2, Local: c.local, Remote: c.remote}, start.Add(2*time.Second))
	require.Zero(t, tracker.held.Len())
	require.Len(t, tracker.due(start.Add(time.Minute)), 1)
}

func TestAConnectionThatIsOldEnoughIsLetGoWhereThereIsRoom(t *testing.T) {
	tracker := waitingTracker(OpenAfter{Bytes: 1 << 40, Time: time.Second})
	tracker.share.crowd = bound(1)
	tracker.handle(established(1), start)
	c := tracker.connections[1]
	require.False(t, tracker.isOldEnough(c, start.Add(999*time.Millisecond)))
	require.True(t, tracker.isOldEnough(c, start.Add(time.Second)))
	tracker.looked(c, 0, start.Add(time.Second))
	require.False(t, c.delayed.waits)
	require.Len(t, tracker.due(start.Add(time.Second)), 1)
}

func TestTheKernelIsNotHelpedWhileThePathsAreFull(t *testing.T) {
	for name, test := range map[string]struct {
		after OpenAfter
		room  *crowd.Room
		not   bool
	}{
		"full paths":                      {OpenAfter{Time: time.Second}, bound(0), true},
		"paths with room":                 {OpenAfter{Time: time.Second}, &crowd.Room{}, false},
		"nobody who knows":                {OpenAfter{Time: time.Second}, nil, false},
		"a policy that waits for nothing": {OpenAfter{}, bound(0), false},
	} {
		t.Run(name, func(t *testing.T) {
			tracker := waitingTracker(test.after)
			tracker.share.crowd = test.room
			require.Equal(t, test.not, tracker.mayNotHelp())
		})
	}
}

func TestWhereFurtherSubflowsGo(t *testing.T) {
	service, backend := remote, netip.MustParseAddrPort("10.0.0.9:8080")
	tests := map[string]struct {
		known func(*connection)
		want  netip.AddrPort // invalid: nowhere
	}{
		"to where the first one goes":            {func(*connection) {}, service},
		"to a Service's backend":                 {func(c *connection) { c.backend = backend }, backend},
		"first to an address that may be a peer": {func(c *connection) { c.announce(1, backend) }, service},
		"to an announced address after a failure": {func(c *connection) {
			c.announce(1, backend)
			c.attempts = 1
		}, backend},
		"not to an announced address where the first one works": {func(c *connection) {
			c.announce(1, backend)
			c.attempts, c.joinsFirst = 1, true
		}, service},
		"to an announced address where the first one worked once and then did not": {func(c *connection) {
			c.announce(1, backend)
			c.attempts, c.joinsFirst = 2, true
		}, backend},
		"again where the first one goes after that": {func(c *connection) {
			c.announce(1, backend)
			c.attempts, c.joinsFirst = 3, true
		}, service},
		"with the first one's port where none is announced": {func(c *connection) {
			c.announce(1, netip.AddrPortFrom(backend.Addr(), 0))
			c.attempts = 1
		}, netip.AddrPortFrom(backend.Addr(), service.Port())},
		"nowhere where the peer refuses them": {func(c *connection) { c.deniesFirst = true }, netip.AddrPort{}},
		"to the announced address of one that refuses": {func(c *connection) {
			c.deniesFirst = true
			c.announce(1, netip.AddrPortFrom(service.Addr(), 61001))
		}, netip.AddrPortFrom(service.Addr(), 61001)},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			tracker := trackerOf(v1alpha1.SubflowManagerAgent, established(1))
			c := tracker.connections[1]
			test.known(c)
			var got netip.AddrPort
			if lacking := tracker.lacking(c, true); len(lacking) > 0 {
				got = lacking[0].remote
			}
			if got != test.want {
				t.Errorf("they go to %s, want %s", got, test.want)
			}
		})
	}
}

func TestAPeerThatTakesAnAddressBackIsNotJoinedThereAgain(t *testing.T) {
	tracker := newTracker(Settings{
		Manager: v1alpha1.SubflowManagerAgent, Count: 8, Mode: v1alpha1.SubflowModeFullMesh,
		Addresses: []netip.Addr{local.Addr()},
	}, false, unbounded())
	tracker.handle(established(1), start)
	other := netip.MustParseAddrPort("10.0.0.3:0")
	tracker.handle(mptcpnl.AddressEvent{Kind: mptcpnl.AddressAnnounced, Token: 1, ID: 4, Address: other}, start)
	c := tracker.connections[1]
	lacking := tracker.lacking(c, true)
	if len(lacking) != 1 || lacking[0].remote.Addr() != other.Addr() || lacking[0].remoteID != 4 || lacking[0].remote.Port() != remote.Port() {
		t.Fatalf("subflows are missing towards %+v, want one towards %s with id 4", lacking, other.Addr())
	}
	tracker.handle(mptcpnl.AddressEvent{Kind: mptcpnl.AddressRemoved, Token: 1, ID: 4}, start)
	if lacking := tracker.lacking(c, true); len(lacking) != 0 {
		t.Errorf("subflows are missing towards %+v, want none", lacking)
	}
}

func TestASubflowThatLastedIsOpenedAgainSoon(t *testing.T) {
	tracker := trackerOf(v1alpha1.SubflowManagerAgent, established(1))
	c, now := tracker.connections[1], start
	for range 6 { // each comes back at once, and is reset again
		tracker.attempt(c, now)
		tracker.handle(subflow(mptcpnl.SubflowEstablished, 1), now)
		tracker.handle(subflow(mptcpnl.SubflowEstablished, 2), now)
		now = now.Add(2 * lasting)
		tracker.handle(subflow(mptcpnl.SubflowClosed, 1), now)
		if wait := c.due.Sub(now); wait != firstBackoff {
			t.Fatalf("it is opened again after %s, want %s", wait, firstBackoff)
		}
	}
}

// Whatever happens, with reopen Never no more subflows are asked for than were
// never there.
func TestNeverMeansNever(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		settings := Settings{
			Manager: v1alpha1.SubflowManagerAgent, Count: rapid.IntRange(1, maxCount).Draw(t, "count"),
			Reopen: v1alpha1.ReopenNever,
		}
		tracker := newTracker(settings, false, unbounded())
		tracker.handle(established(1), start)
		existed := map[uint16]bool{local.Port(): true}
		for i := range rapid.IntRange(0, 30).Draw(t, "events") {
			now := start.Add(time.Duration(i) * time.Second)
			port := uint16(rapid.IntRange(1, 9).Draw(t, "port"))
			if rapid.Bool().Draw(t, "closed") {
				tracker.handle(subflow(mptcpnl.SubflowClosed, port), now)
			} else {
				tracker.handle(subflow(mptcpnl.SubflowEstablished, port), now)
				existed[port] = true
			}
			want := max(0, settings.Count-len(existed))
			if missing := tracker.missing(tracker.connections[1], true); missing != want {
				t.Fatalf("%d subflows are missing after %d existed, want %d", missing, len(existed), want)
			}
		}
	})
}

// The packets decide for the kernel's path manager when the bytes suffice. The agent
// helps where nothing came of it.
func TestWithTheKernelsManagerTheAgentWaitsForTheTimeAndForTheAnnouncements(t *testing.T) {
	after := OpenAfter{Bytes: 1 << 10, Time: 10 * time.Second}
	tracked := newTracker(Settings{Manager: v1alpha1.SubflowManagerKernel, Count: 3, OpenAfter: after}, false, unbounded())
	if looks := looksAt(tracked, 1e9, time.Minute); len(looks) != 1 || looks[0] != after.Time {
		t.Errorf("it is looked at %v, want once, after %s", looks, after.Time)
	}
	next, waits := tracked.next()
	if helped := next.Sub(start); !waits || helped != after.Time+announceGrace {
		t.Errorf("it is helped after %s (%t), want %s", helped, waits, after.Time+announceGrace)
	}
}

func TestHowOldAConnectionBecomesBeforeTheAgentHearsOfIt(t *testing.T) {
	bytes, short, long := OpenAfter{Bytes: 1}, OpenAfter{Bytes: 1, Time: time.Millisecond}, OpenAfter{Bytes: 1, Time: time.Minute}
	tests := map[string]struct {
		manager v1alpha1.SubflowManager
		after   OpenAfter
		want    time.Duration
	}{
		"at once":                       {v1alpha1.SubflowManagerAgent, OpenAfter{}, 0},
		"for bytes":                     {v1alpha1.SubflowManagerAgent, bytes, firstLook},
		"for bytes or a short time":     {v1alpha1.SubflowManagerAgent, short, time.Millisecond},
		"for bytes or a long time":      {v1alpha1.SubflowManagerAgent, long, firstLook},
		"for a time":                    {v1alpha1.SubflowManagerAgent, OpenAfter{Time: time.Minute}, time.Minute},
		"the kernel's, for either":      {v1alpha1.SubflowManagerKernel, long, time.Minute},
		"the kernel's, for bytes alone": {v1alpha1.SubflowManagerKernel, bytes, firstLook},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := (Settings{Manager: test.manager, OpenAfter: test.after}).youngFor(); got != test.want {
				t.Errorf("for %s, want %s", got, test.want)
			}
		})
	}
}
