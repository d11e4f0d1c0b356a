// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/testutil"
)

// nextHops are the peer's addresses on each of the node's NICs.
func (l *lab) nextHops(t *testing.T, node int, paths ...string) (all []neighbour) {
	t.Helper()
	peer := l.peer(l.Nodes[1-node])
	for _, path := range paths {
		for _, address := range peer.Paths[path].Addresses {
			all = append(all, neighbour{l.indexes(t, node)[path], address})
		}
	}
	return all
}

// expectKept checks whether the kernel keeps the next hops of paths resolved for us.
func (l *lab) expectKept(t *testing.T, node int, kept bool, paths ...string) {
	t.Helper()
	for _, hop := range l.nextHops(t, node, paths...) {
		if kept {
			l.awaitResolved(t, node, hop)
		}
		if entry := l.neighbours(t, node)[hop]; entry.ours != kept || entry.kept != kept || kept && !entry.resolved {
			t.Errorf("%s is %+v", hop.address, entry)
		}
	}
}

func TestNextHopsAreKeptResolved(t *testing.T) {
	l := newLab(t, threePaths, 1, Options{})
	l.applyAll(t)
	l.expectKept(t, 0, true, threePaths...)
	states := l.states(t)
	l.setUp(t, states, 1, "green", false) // at the peer
	l.expectKept(t, 0, false, "green")
	l.expectKept(t, 0, true, "blue", "red")
	l.setUp(t, states, 1, "green", true)
	require.NoError(t, l.SetNIC(l.Nodes[0], "red", false)) // the kernel forgets its neighbours
	l.setUp(t, states, 0, "red", false)
	require.NoError(t, l.SetNIC(l.Nodes[0], "red", true))
	l.setUp(t, states, 0, "red", true)
	l.expectKept(t, 0, true, threePaths...)
	l.apply(t, 0, State{})
	l.expectKept(t, 0, false, threePaths...)
}

// The first segments to a peer by another NIC arrive, without a second's delay.
func TestTheFirstConnectionLosesNoSYN(t *testing.T) {
	l := newLab(t, threePaths, 1, Options{})
	client, server := l.Pod("pod-1-1"), l.Pod("pod-2-1")
	serve(t, server, 4)
	l.applyAll(t)
	l.expectKept(t, 0, true, threePaths...)
	l.expectKept(t, 1, true, threePaths...)
	for range 3 {
		began := time.Now()
		connection, err := client.Dial(t.Context(), "tcp", server.IPv4+":"+port)
		require.NoError(t, err)
		require.NoError(t, connection.Close())
		if took := time.Since(began); took > 900*time.Millisecond {
			t.Errorf("a connection took %s", took)
		}
	}
	if counts := pathCounts(l.flows(t, 0)); len(counts) != 3 {
		t.Errorf("the connections began on %v", counts)
	}
}

// Neighbours that somebody else keeps stay theirs, also after the removal.
func TestAnothersNeighboursStay(t *testing.T) {
	l := newLab(t, threePaths, 1, Options{})
	hops := l.nextHops(t, 0, "green")
	permanent, managed := hops[0], hops[1]
	static, err := l.Nodes[1].Handle()
	require.NoError(t, err)
	nic, err := static.LinkByName("green")
	require.NoError(t, err)
	handle, err := l.Nodes[0].Handle()
	require.NoError(t, err)
	require.NoError(t, handle.NeighSet(&netlink.Neigh{LinkIndex: permanent.nic, IP: permanent.address.AsSlice(), State: netlink.NUD_PERMANENT,
		HardwareAddr: nic.Attrs().HardwareAddr}))
	require.NoError(t, handle.NeighSet(&netlink.Neigh{LinkIndex: managed.nic, IP: managed.address.AsSlice(), Family: unix.AF_INET6,
		Flags: netlink.NTF_EXT_LEARNED, FlagsExt: netlink.NTF_EXT_MANAGED}))
	l.awaitResolved(t, 0, managed)
	before := l.neighbours(t, 0)
	l.applyAll(t)
	l.expectKept(t, 0, true, "blue", "red")
	require.NoError(t, l.Nodes[0].Do(func() error { return l.datapaths[0].Remove(t.Context()) }))
	after := l.neighbours(t, 0)
	for _, hop := range hops {
		if after[hop] != before[hop] || !after[hop].kept || after[hop].ours {
			t.Errorf("%s was %+v and is %+v", hop.address, before[hop], after[hop])
		}
	}
}

func (l *lab) awaitResolved(t *testing.T, node int, n neighbour) {
	t.Helper()
	testutil.Eventually(t, 5*time.Second, "the neighbour is resolved", func() bool { return l.neighbours(t, node)[n].resolved })
}

// One that the kernel refuses, here IPv6 on a NIC without it, keeps nothing else
// from being done.
func TestANextHopThatTheKernelRefusesIsNoError(t *testing.T) {
	l := newLab(t, threePaths, 1, Options{})
	require.NoError(t, disableIPv6(l.Nodes[0], "red"))
	l.applyAll(t)
	l.expectKept(t, 0, true, "blue", "green")
	for _, hop := range l.nextHops(t, 0, "red") {
		if entry := l.neighbours(t, 0)[hop]; entry.ours != hop.address.Is4() {
			t.Errorf("%s is %+v", hop.address, entry)
		}
	}
}

func disableIPv6(node *network.Node, nic string) error {
	return node.Sysctl("net.ipv6.conf."+nic+".disable_ipv6", "1")
}

func TestOnlyLivingPathsHaveNextHops(t *testing.T) {
	address := netip.MustParseAddr("10.0.0.2")
	there := map[string]PeerPath{
		"up":         {Up: true, Addresses: []netip.Addr{netip.MustParseAddr("::ffff:10.0.0.2")}},
		"down here":  {Up: true, Addresses: []netip.Addr{address}},
		"down there": {Up: false, Addresses: []netip.Addr{address}},
	}
	state := State{
		Paths: []Path{{Name: "up", Interface: 1, Up: true}, {Name: "down here", Interface: 2}, {Name: "down there", Interface: 3, Up: true}, {Name: "only here", Interface: 4, Up: true}},
		Peers: []Peer{{Name: "node2", Paths: there}},
	}
	wanted := nextHops(state)
	if len(wanted) != 1 || !wanted[neighbour{1, address}] {
		t.Errorf("the next hops are %v", wanted)
	}
}
