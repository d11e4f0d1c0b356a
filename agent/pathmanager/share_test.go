// SPDX-License-Identifier: Apache-2.0

package pathmanager

import (
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/mptcpnl"
	"braid.dev/braid/internal/room"
)

// shareOf is a pod's share of a room.
func shareOf(of *room.Room, tenant, pod string) *share {
	return &share{room: of, owners: []string{tenant, tenant + "/" + pod}, counts: &Counts{}}
}

// flood has a tracker told of so many connections from one address to another.
func flood(t *tracker, connections int, from, to netip.Addr) {
	for i := range connections {
		local, remote := netip.AddrPortFrom(from, uint16(i)), netip.AddrPortFrom(to, uint16(i>>16)+1)
		t.handle(mptcpnl.ConnectionEvent{Kind: mptcpnl.ConnectionEstablished, Token: uint32(i) + 1, Local: local, Remote: remote}, start)
	}
}

// liveHeap is what lives after a collection, in bytes.
func liveHeap() uint64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

const manyConnections = 200_000

func TestAFloodOfConnectionsTakesBoundedMemory(t *testing.T) {
	const most = 24 << 20 // 91 MiB without a bound
	before := liveHeap()
	tracker := newTracker(Settings{Manager: v1alpha1.SubflowManagerAgent, Count: 3}, false, shareOf(room.New(MostConnections), "a", "1"))
	flood(tracker, manyConnections, local.Addr(), remote.Addr())
	took := liveHeap() - before
	t.Logf("%d connections take %.1f MiB", manyConnections, float64(took)/(1<<20))
	if took > most {
		t.Errorf("%d connections take %d bytes, more than %d", manyConnections, took, most)
	}
	require.Len(t, tracker.connections, MostConnections/3)
	require.EqualValues(t, manyConnections-MostConnections/3, tracker.share.unmanaged.Load())
	runtime.KeepAlive(tracker)
}

func TestALookAtManyConnectionsTakesBoundedMemory(t *testing.T) {
	const most = 80 << 20 // 8 subflows of each that is managed are kept
	tracker := newTracker(Settings{Manager: v1alpha1.SubflowManagerAgent, Count: 3}, false, shareOf(room.New(MostConnections), "a", "1"))
	before := liveHeap()
	look := tracker.look(start)
	for i := range uint32(manyConnections) {
		for port := range uint16(20) {
			look.subflow(&mptcpnl.Subflow{Token: i, Local: source(port), Remote: remote, Established: true, First: port == 0, Initiator: true})
		}
	}
	for i := range uint32(manyConnections) {
		look.connection(&mptcpnl.Connection{Token: i, Local: local, Remote: remote})
	}
	took := liveHeap() - before
	look.end()
	t.Logf("a look at %d connections takes %.1f MiB", manyConnections, float64(took)/(1<<20))
	if took > most {
		t.Errorf("a look takes %d bytes, more than %d", took, most)
	}
	require.Len(t, tracker.connections, MostConnections/3)
	require.EqualValues(t, manyConnections-MostConnections/3, tracker.share.unmanaged.Load())
}

func TestOneTenantsFloodLeavesRoomToOthers(t *testing.T) {
	of := room.New(900)
	settings := Settings{Manager: v1alpha1.SubflowManagerAgent, Count: 3}
	noisy := newTracker(settings, false, shareOf(of, "noisy", "1"))
	flood(noisy, 1000, local.Addr(), remote.Addr())
	quiet := newTracker(settings, false, shareOf(of, "quiet", "1"))
	flood(quiet, 100, local.Addr(), remote.Addr())
	require.Len(t, noisy.connections, 300)
	require.Len(t, quiet.connections, 100)
	for token := range noisy.connections {
		noisy.forget(token)
	}
	require.Equal(t, 0, of.Held("noisy"), "what ended has given its room back")
}

func TestConnectionsBeyondTheShareAreManagedOnceThereIsRoom(t *testing.T) {
	first := func(token uint32) mptcpnl.Subflow {
		return mptcpnl.Subflow{Token: token, Local: local, Remote: remote, Established: true, First: true, Initiator: true}
	}
	tracker := newTracker(Settings{Manager: v1alpha1.SubflowManagerAgent, Count: 3}, false, shareOf(room.New(3), "a", "1"))
	for range 2 {
		tracker.replace([]mptcpnl.Connection{found(1), found(2)}, []mptcpnl.Subflow{first(1), first(2)}, start)
		require.Len(t, tracker.connections, 1)
		require.EqualValues(t, 1, tracker.share.unmanaged.Load())
	}
	tracker.replace([]mptcpnl.Connection{found(2)}, []mptcpnl.Subflow{first(2)}, start)
	tracker.replace([]mptcpnl.Connection{found(2)}, []mptcpnl.Subflow{first(2)}, start)
	require.Contains(t, tracker.connections, uint32(2))
	require.Zero(t, tracker.share.unmanaged.Load())
}

func TestConnectionsWithinThePodCostNothing(t *testing.T) {
	own := Settings{Manager: v1alpha1.SubflowManagerAgent, Count: 3, Mode: v1alpha1.SubflowModeFullMesh, Addresses: []netip.Addr{local.Addr(), local6.Addr()}}
	for name, ends := range map[string][2]string{
		"127/8":                             {"127.0.0.1", "127.8.0.1"},
		"::1":                               {"::1", "::1"},
		"the pod's own address":             {"10.0.0.1", "10.0.0.1"},
		"an address that the pod gave":      {"10.7.7.7", "10.7.7.7"},
		"from loopback to its own":          {"127.0.0.1", "10.0.0.1"},
		"its own address, from another one": {"10.7.7.7", "fd00::1"},
	} {
		t.Run(name, func(t *testing.T) {
			of := room.New(1000)
			tracker, announcer := newTracker(own, false, shareOf(of, "a", "1")), newAnnouncer(nil, own, shareOf(of, "a", "1"), &lookPace{})
			from, to := netip.AddrPortFrom(netip.MustParseAddr(ends[0]), 1), netip.AddrPortFrom(netip.MustParseAddr(ends[1]), 2)
			for _, serverSide := range []bool{false, true} {
				event := mptcpnl.ConnectionEvent{Kind: mptcpnl.ConnectionEstablished, Token: 7, Local: from, Remote: to, ServerSide: serverSide}
				tracker.handle(event, start)
				announcer.handle(event, start)
				subflow := mptcpnl.Subflow{Token: 7, Local: from, Remote: to, First: true, Established: true, Initiator: !serverSide}
				tracker.replace([]mptcpnl.Connection{found(7)}, []mptcpnl.Subflow{subflow}, start)
				announcer.replace([]mptcpnl.Connection{found(7)}, []mptcpnl.Subflow{subflow}, start)
			}
			if len(tracker.connections) > 0 || len(announcer.known) > 0 || of.Held("a") > 0 {
				t.Errorf("%d connections are managed, %d are announced on", len(tracker.connections), len(announcer.known))
			}
		})
	}
}

func TestWhatAPeerAndThePodDoOnOneConnectionIsBounded(t *testing.T) {
	tracker := newTracker(Settings{Manager: v1alpha1.SubflowManagerAgent, Count: 3, Reopen: v1alpha1.ReopenNever}, false, unbounded())
	tracker.handle(established(1), start)
	c := tracker.connections[1]
	for i := range uint16(5000) {
		tracker.handle(mptcpnl.AddressEvent{Kind: mptcpnl.AddressAnnounced, Token: 1, ID: uint8(i), Address: source(i)}, start)
		tracker.handle(subflow(mptcpnl.SubflowEstablished, i), start)
		tracker.handle(subflow(mptcpnl.SubflowClosed, i), start)
		tracker.refuse(c, pair{local: local.Addr(), remote: source(i)})
	}
	if len(c.announced) > mostAnnounced || len(c.subflows) > mostSubflows || len(c.refused) > mostRefused {
		t.Errorf("there are %d addresses, %d subflows and %d refused pairs", len(c.announced), len(c.subflows), len(c.refused))
	}
	if missing := tracker.missing(c, true); missing != 0 {
		t.Errorf("after more ends than may be, with reopen %s, %d subflows are missing", v1alpha1.ReopenNever, missing)
	}
}

func TestLooksTakeAPartOfTheTime(t *testing.T) {
	pace := lookPace{}
	require.True(t, pace.allows(time.Now()))
	pace.spent(time.Now().Add(-time.Second))
	require.False(t, pace.allows(time.Now().Add(9*time.Second)))
	require.True(t, pace.allows(time.Now().Add(11*time.Second)))
}
