// SPDX-License-Identifier: Apache-2.0

package pathmanager

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/mptcpnl"
)

// closes is the end of a subflow that never was, for a reason or none.
func closes(token uint32, port uint16, why unix.Errno) mptcpnl.SubflowEvent {
	event := subflow(mptcpnl.SubflowClosed, port)
	event.Token, event.Error = token, why
	return event
}

// eachManager has two connections to the same peer, which both lack subflows.
func eachManager(t *testing.T, test func(t *testing.T, tracker *tracker, one, other *connection)) {
	for _, manager := range []v1alpha1.SubflowManager{v1alpha1.SubflowManagerKernel, v1alpha1.SubflowManagerAgent} {
		t.Run(string(manager), func(t *testing.T) {
			tracker := trackerOf(manager, established(1), established(2))
			test(t, tracker, tracker.connections[1], tracker.connections[2])
		})
	}
}

// joins has the tracker try as the follower does, and is false where it does not.
func (t *tracker) joins(c *connection, now time.Time) bool {
	if !t.mayJoin(c, now) {
		return false
	}
	t.attempt(c, now)
	return true
}

func TestAJoinThatIsAnsweredWithoutMPTCPIsNotTriedAgainSoonByAnyConnection(t *testing.T) {
	eachManager(t, func(t *testing.T, tracker *tracker, one, other *connection) {
		require.True(t, tracker.joins(one, start))
		tracker.handle(closes(1, 1, 0), start)
		for _, c := range []*connection{one, other} {
			require.False(t, tracker.joins(c, start.Add(firstBlocked-1)))
			require.Equal(t, start.Add(firstBlocked), c.due, "it is looked at when it may join")
		}
	})
}

func TestOfThoseThatWaitForAJoinOneTriesForAllAndEverMoreRarely(t *testing.T) {
	eachManager(t, func(t *testing.T, tracker *tracker, one, other *connection) {
		tracker.handle(closes(1, 1, 0), start)
		now, wait := start, firstBlocked
		for range 5 {
			now = now.Add(wait)
			require.True(t, tracker.joins(other, now))
			require.False(t, tracker.joins(one, now), "while the other's is under way")
			tracker.handle(closes(2, 2, 0), now)
			wait = min(2*wait, mostBlocked)
			require.False(t, tracker.joins(one, now.Add(wait-1)))
			require.Equal(t, now.Add(wait), one.due)
		}
		require.Equal(t, mostBlocked, wait)
	})
}

func TestOnceAJoinIsTakenAllConnectionsMayJoinAtOnce(t *testing.T) {
	eachManager(t, func(t *testing.T, tracker *tracker, one, other *connection) {
		tracker.handle(closes(1, 1, 0), start)
		require.False(t, tracker.joins(other, start.Add(time.Second)))
		now := start.Add(2 * time.Second)
		tracker.handle(subflow(mptcpnl.SubflowEstablished, 1), now)
		require.Contains(t, tracker.due(now), other)
		require.True(t, tracker.joins(other, now))
	})
}

func TestOtherFailuresAreTriedAgainAsBefore(t *testing.T) {
	unlike := map[string]func(tracker *tracker){
		"the peer resets the join": func(tracker *tracker) { tracker.handle(closes(1, 1, unix.ECONNREFUSED), start) },
		"the peer says nothing":    func(tracker *tracker) { tracker.handle(closes(1, 1, unix.ETIMEDOUT), start) },
		"the first subflow closes": func(tracker *tracker) { tracker.handle(closes(1, local.Port(), 0), start) },
		"a subflow that was taken closes": func(tracker *tracker) {
			tracker.handle(subflow(mptcpnl.SubflowEstablished, 1), start)
			tracker.handle(closes(1, 1, 0), start)
		},
	}
	for name, happens := range unlike {
		t.Run(name, func(t *testing.T) {
			eachManager(t, func(t *testing.T, tracker *tracker, one, other *connection) {
				happens(tracker)
				require.True(t, tracker.joins(one, start.Add(firstBackoff)))
				require.True(t, tracker.joins(other, start))
			})
		})
	}
}

// Where a Service's address leads to a pod without MPTCP, what the peer announces may do.
func TestAJoinThatIsAnsweredWithoutMPTCPIsTriedWhereThePeerAnnouncesItself(t *testing.T) {
	announced := netip.MustParseAddrPort("10.0.0.7:4000")
	tracker := trackerOf(v1alpha1.SubflowManagerAgent, established(1),
		mptcpnl.AddressEvent{Kind: mptcpnl.AddressAnnounced, Token: 1, ID: 3, Address: announced})
	c := tracker.connections[1]
	tracker.handle(closes(1, 1, 0), start)
	require.True(t, tracker.joins(c, start.Add(firstBackoff)))
	require.Equal(t, announced.Addr(), tracker.joinsAt(c))
}

func TestWhatIsRememberedOfPeersIsBounded(t *testing.T) {
	tracker := trackerOf(v1alpha1.SubflowManagerAgent)
	peer := netip.MustParseAddr("10.0.0.0")
	for range 3 * mostBlockedPeers {
		peer = peer.Next()
		tracker.block(peer, start)
		require.LessOrEqual(t, len(tracker.blocked), mostBlockedPeers)
	}
}
