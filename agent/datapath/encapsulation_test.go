// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"braid.dev/braid/agent/node"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/bpf/packettest"
	"braid.dev/braid/bpf/uplink"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

// newNativeRacks is newRacks without an overlay: the first path's router knows the pods, and
// the others do not.
func newNativeRacks(t *testing.T) *lab {
	t.Helper()
	return newLabOf(t, network.Spec{Nodes: 3, Racks: 3, Paths: threePaths, LinkMbit: 100, PodsPerNode: 1}, Options{})
}

// applyNative applies what nodes know of each other's pods, twice: by then all keys are known.
// change is what is different at a node.
func (l *lab) applyNative(t *testing.T, change func(index int, state *State)) {
	t.Helper()
	for range 2 {
		for i, state := range l.states(t) {
			state.PodRanges = l.podRanges(i)
			for p := range state.Peers {
				of := p
				if of >= i {
					of++
				}
				state.Peers[p].PodRanges, state.Peers[p].Key = l.podRanges(of), l.datapaths[of].Key()
			}
			change(i, &state)
			l.apply(t, i, l.routed(t, i, state))
		}
	}
}

func asItIs(int, *State) {}

func (l *lab) podRanges(node int) (ranges []netip.Prefix) {
	for _, version := range l.Versions() {
		ranges = append(ranges, netip.MustParsePrefix(l.Nodes[node].PodCIDR(version)))
	}
	return ranges
}

func TestNativeConnectionsOverRoutersFillAllPaths(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		offload func(l *lab, t *testing.T)
	}{
		{"as they are", nil},
		{"without offloads", (*lab).withoutNICsOffloads},
		{"of pods without offloads", (*lab).withoutPodsOffloads},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newNativeRacks(t)
			if c.offload != nil {
				c.offload(l, t)
			}
			l.applyNative(t, asItIs)
			large := l.sizes(t, func() {
				l.expectTransfers(t, []transfers{{4, traffic.Up}, {6, traffic.Down}, {6, traffic.Up}, {4, traffic.Down}})
			})
			if c.offload == nil && large < 1600 {
				t.Errorf("packets were cut: they had %d bytes on average", large)
			}
			l.expectNoChecksumErrors(t)
			l.expectNoFragments(t)
		})
	}
}

// withoutNICsOffloads has the kernel divide packets and finish checksums before they are on a
// wire, where the other end looks at them.
func (l *lab) withoutNICsOffloads(t *testing.T) {
	t.Helper()
	l.least = 1.2
	for _, node := range l.Nodes {
		for _, path := range l.Spec.Paths {
			out, err := node.Run("ethtool", "-K", path, "tx", "off", "gso", "off")
			require.NoError(t, err, out)
		}
	}
}

// expectNoFragments asks all kernels on the way.
func (l *lab) expectNoFragments(t *testing.T) {
	t.Helper()
	namespaces := []*network.Namespace{}
	for _, node := range l.Nodes {
		namespaces = append(namespaces, node.Namespace, node.Pods[0].Namespace)
	}
	for _, router := range l.Routers {
		namespaces = append(namespaces, router)
	}
	for _, namespace := range namespaces {
		out, err := namespace.Run("nstat", "-asz", "IpFragCreates", "Ip6FragCreates", "IpReasmReqds", "Ip6ReasmReqds", "IpFragFails")
		require.NoError(t, err, out)
		for line := range strings.Lines(out) {
			if fields := strings.Fields(line); len(fields) > 1 && !strings.HasPrefix(line, "#") {
				require.Equal(t, "0", fields[1], "%s: %s", namespace.Name, line)
			}
		}
	}
}

func TestNativeConnectionsOutliveARouter(t *testing.T) {
	t.Parallel()
	l := newNativeRacks(t)
	l.applyNative(t, asItIs)
	serve(t, l.Pod("pod-2-1"), 4)
	announce(t, l.Pod("pod-1-1"), l.Pod("pod-2-1"), 4, 3)
	running := start(t, l.Pod("pod-1-1"), l.Pod("pod-2-1"), 4, traffic.Options{Duration: 3 * time.Second, Verify: true, Bin: 10 * time.Millisecond})
	running.awaitSubflows(t, 3)
	running.at(time.Second)
	require.NoError(t, l.SetRouter(threePaths[1], false))
	result := running.wait(t)
	t.Logf("%.1f Mbit/s, longest stop %s", result.Mbit, longestStop(result))
	if stop := longestStop(result); stop > 2*time.Second {
		t.Errorf("nothing arrived for %s", stop)
	}
	require.True(t, result.Multipath, "the connection is no longer MPTCP's")
}

// counted is what the NICs of a path have sent, at both nodes of the transfers.
func (l *lab) counted(t *testing.T, path string) (bytes uint64) {
	t.Helper()
	for _, node := range l.Nodes[:2] {
		counters, err := l.NICCounters(node)
		require.NoError(t, err)
		bytes += counters[path].TxBytes
	}
	return bytes
}

// Segments of connections from before the other node's agent decapsulated leave no room for
// them: they take the cluster network's route, whole, also when their flow is to leave its path.
func TestSegmentsThatLeaveNoRoomTakeTheClusterNetworksRoute(t *testing.T) {
	t.Parallel()
	l := newNativeRacks(t)
	l.applyNative(t, func(_ int, state *State) {
		for i := range state.Peers {
			state.Peers[i].Key = 0
		}
	})
	serve(t, l.Pod("pod-2-1"), 4)
	running := start(t, l.Pod("pod-1-1"), l.Pod("pod-2-1"), 4, traffic.Options{Duration: 3 * time.Second, Verify: true})
	running.awaitSubflows(t, 1)
	running.at(time.Second)
	others := l.counted(t, threePaths[1]) + l.counted(t, threePaths[2])
	l.applyNative(t, func(_ int, state *State) { state.Paths[0].Up = false })
	require.Greater(t, running.wait(t).Mbit, 60.0)
	others = l.counted(t, threePaths[1]) + l.counted(t, threePaths[2]) - others
	require.Greater(t, others, uint64(10_000), "acknowledgements have room")
	require.Less(t, others, uint64(5_000_000), "data has none")
	l.expectNoFragments(t)
}

// To a node whose agent takes nothing off, packets go as they went before.
func TestNothingNativeGoesOverRoutersToAnOlderAgent(t *testing.T) {
	t.Parallel()
	for what, change := range map[string]func(node int, state *State){
		"an older agent": func(_ int, state *State) {
			for i := range state.Peers {
				state.Peers[i].Key = 0
			}
		},
		"no ranges of pods": func(_ int, state *State) { state.PodRanges = nil },
	} {
		t.Run(what, func(t *testing.T) {
			l := newNativeRacks(t)
			l.applyNative(t, change)
			serve(t, l.Pod("pod-2-1"), 4)
			announce(t, l.Pod("pod-1-1"), l.Pod("pod-2-1"), 4, 3)
			before := l.counted(t, threePaths[1])
			running := start(t, l.Pod("pod-1-1"), l.Pod("pod-2-1"), 4, traffic.Options{Duration: time.Second, Verify: true})
			require.Greater(t, running.wait(t).Mbit, 60.0)
			require.Less(t, l.counted(t, threePaths[1])-before, uint64(100_000))
		})
	}
}

// Other nodes go on with the key that they know.
func TestTheKeyIsTheNextAgentsToo(t *testing.T) {
	l := newNativeRacks(t)
	l.applyNative(t, asItIs)
	key := l.datapaths[0].Key()
	require.NotZero(t, key)
	require.NotEqual(t, key, l.datapaths[1].Key())
	require.NoError(t, l.datapaths[0].Close())
	l.datapaths[0] = Open(l.nodeOptions(0))
	l.applyNative(t, asItIs)
	require.Equal(t, key, l.datapaths[0].Key())
	l.applyNative(t, func(node int, state *State) {
		if node == 0 {
			state.Paths = slices.Clone(state.Paths)
			state.Peers = nil
		}
	})
	require.Equal(t, key, l.datapaths[0].Key(), "while no router leads anywhere")
	ranges, err := readAllRanges(l.datapaths[0])
	require.NoError(t, err)
	require.Equal(t, map[uint32]int{uplink.OuterOfThisNode: 2}, ranges)
}

// Behind a bridge the meter knows a pod by the source's address, which encapsulation hides.
func TestGuardedPodsBehindABridgeSendNothingEncapsulated(t *testing.T) {
	pod := netip.MustParseAddr("10.244.1.7")
	model := &node.Model{PodRanges: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}}
	model.Endpoints = []node.Endpoint{{PlanEndpoint: &v1alpha1.PlanEndpoint{}, Addresses: []netip.Addr{pod}, HostInterface: 9, Bridged: true}}
	wanted := encapsulations{uplink.OuterOfThisNode: {Key: 1}}
	own := rangeKey(netip.PrefixFrom(pod, 32))
	require.NotContains(t, podRangesOf(model, wanted), own, "without a guard")
	model.Endpoints[0].Guard = &v1alpha1.PlanGuard{}
	require.EqualValues(t, uplink.NeverEncapsulated, podRangesOf(model, wanted)[own])
	model.Endpoints[0].Bridged = false
	require.NotContains(t, podRangesOf(model, wanted), own, "its interface tells")
}

// readAllRanges counts the ranges of pods' addresses by their nodes.
func readAllRanges(d *Datapath) (map[uint32]int, error) {
	count := map[uint32]int{}
	var key uplink.ToUplinkRangeKey
	var number uint32
	entries := d.loaded.Value.maps().PodRanges.Iterate()
	for entries.Next(&key, &number) {
		count[number]++
	}
	return count, entries.Err()
}

// Who has no key, or speaks for pods that are not its own, gets nothing to a pod.
func TestPacketsThatOthersEncapsulateReachNoPod(t *testing.T) {
	l := newNativeRacks(t)
	l.applyNative(t, asItIs)
	node1, node2, node3 := l.Nodes[0], l.Nodes[1], l.Nodes[2]
	out, err := node1.Run("iptables", "-t", "nat", "-A", "POSTROUTING", "-s", node1.PodCIDR(4), "-d", l.Spec.PathRange(1, 4), "-j", "MASQUERADE")
	require.NoError(t, err, out)
	victim, key := l.Pod("pod-2-1"), bits.ReverseBytes64(l.datapaths[1].Key())
	on := func(node *network.Node) netip.Addr { return netip.MustParseAddr(node.Address(1, 4)) }
	pod := func(name string) netip.Addr { return netip.MustParseAddr(l.Pod(name).IPv4) }
	for _, attempt := range []struct {
		what    string
		sender  *network.Namespace
		around  packettest.Encapsulated
		inner   netip.Addr
		arrives bool
	}{
		{"a stranger on the plane, with a node's address", l.Routers[threePaths[1]], packettest.Encapsulated{From: on(node1), To: on(node2), Key: key + 1}, pod("pod-1-1"), false},
		{"a pod, masqueraded as its node", l.Pod("pod-1-1").Namespace, packettest.Encapsulated{From: pod("pod-1-1"), To: on(node2), Key: key + 1}, pod("pod-1-1"), false},
		{"another node in the name of a pod that is not its own", node3.Namespace, packettest.Encapsulated{From: on(node3), To: on(node2), Key: key}, pod("pod-1-1"), false},
		{"another node in the name of a node", node3.Namespace, packettest.Encapsulated{From: on(node3), To: on(node2), Key: key}, on(node1), false},
		{"a node in the name of its pod", node1.Namespace, packettest.Encapsulated{From: on(node1), To: on(node2), Key: key}, pod("pod-1-1"), true},
	} {
		segment := packettest.Segment{
			From: netip.AddrPortFrom(attempt.inner, 4000), To: netip.AddrPortFrom(pod("pod-2-1"), 7777), Sequence: 7, Flags: 2, Window: 1 << 15, Options: []byte{30, 4, 1, 1},
		}
		got := received(t, victim, func() { sendRaw(t, attempt.sender, attempt.around.To, attempt.around.Frame(segment.Frame())[14:]) })
		require.Equal(t, attempt.arrives, got, attempt.what)
	}
}

// received tells whether a segment for port 7777 comes to a pod.
func received(t *testing.T, pod *network.Pod, send func()) bool {
	t.Helper()
	var socket int
	require.NoError(t, pod.Do(func() (err error) {
		socket, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
		return err
	}))
	defer func() { require.NoError(t, unix.Close(socket)) }()
	require.NoError(t, unix.SetsockoptTimeval(socket, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 300_000}))
	send()
	packet := make([]byte, 2048)
	for {
		n, _, err := unix.Recvfrom(socket, packet, 0)
		if err != nil {
			return false
		}
		if n >= 40 && binary.BigEndian.Uint16(packet[22:]) == 7777 {
			return true
		}
	}
}

func sendRaw(t *testing.T, from *network.Namespace, to netip.Addr, packet []byte) {
	t.Helper()
	require.NoError(t, from.Do(func() error {
		socket, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		if err != nil {
			return fmt.Errorf("opening a raw socket: %w", err)
		}
		defer func() { _ = unix.Close(socket) }()
		for range 3 {
			if err := unix.Sendto(socket, packet, 0, &unix.SockaddrInet4{Addr: to.As4()}); err != nil {
				return fmt.Errorf("sending: %w", err)
			}
		}
		return nil
	}))
}
