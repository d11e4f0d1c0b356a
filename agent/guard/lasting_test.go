// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"errors"
	"math"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"braid.dev/braid/agent/node/nodetest"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/bpf/guard"
	"braid.dev/braid/internal/lab/network"
)

func TestLimitsHoldWhileNoAgentRuns(t *testing.T) {
	l := newLab(t, network.Spec{Paths: []string{"blue"}, LinkMbit: 100, PodsPerNode: 2})
	l.tenant("tenant-1", "blue", mbit(20), 0)
	l.apply(t)
	server := l.Pod("pod-2-1")
	serve(t, server, 4)
	options := transferFor(2)
	options.Duration += 2 * time.Second
	wait := transfer(t, l.Pod("pod-1-1"), server, 4, options)
	time.Sleep(settled)
	l.end(t)
	expectMost(t, "without an agent", l.sent(t, measured, "blue"), 20, 0.8)
	before := wireCount(t, l)
	if before == 0 {
		t.Error("nothing was counted")
	}
	l.begin(t)
	l.apply(t)
	if after := wireCount(t, l); after < before {
		t.Errorf("after the restart %d bytes are counted, before it %d", after, before)
	}
	expectMost(t, "with the next agent", l.sent(t, measured/2, "blue"), 20, 0.7)
	if result := wait(); result.Failed > 0 {
		t.Errorf("connections broke: %v", result.Errors)
	}
}

// Neither an upgrade nor the way back gives a burst anew, or meters a packet twice.
func TestAnotherVersionTakesOver(t *testing.T) {
	l := newLab(t, network.Spec{Paths: []string{"blue"}, LinkMbit: 100, PodsPerNode: 1})
	l.tenant("tenant-1", "blue", mbit(20), 0)
	l.apply(t)
	server := l.Pod("pod-2-1")
	serve(t, server, 4)
	options := transferFor(1)
	options.Duration = time.Second
	transfer(t, l.Pod("pod-1-1"), server, 4, options)()
	before := wireCount(t, l)
	if before == 0 {
		t.Fatal("nothing was counted")
	}
	for _, version := range []string{"v2", schema} {
		require.NoError(t, l.guard.Close())
		l.guard = open(l.options, version)
		l.apply(t)
		if n := l.attached(t, "blue", ebpf.AttachTCXEgress); n != 1 {
			t.Errorf("%s: %d programs meter the NIC", version, n)
		}
		entries, err := os.ReadDir(directory(l.options.PinPath))
		require.NoError(t, err)
		if len(entries) != 1 || entries[0].Name() != version {
			t.Errorf("pinned are %v, instead of %s alone", entries, version)
		}
	}
	if after := wireCount(t, l); after < before {
		t.Errorf("%d bytes are counted, and were %d", after, before)
	}
	if result := transfer(t, l.Pod("pod-1-1"), server, 4, options)(); result.Mbit > 22 {
		t.Errorf("of 20 Mbit/s the tenant got %.1f", result.Mbit)
	}
}

// wireCount is what the meter charged to the first pod.
func wireCount(t *testing.T, l *lab) uint64 {
	t.Helper()
	var usages *ebpf.Map
	usages, err := ebpf.LoadPinnedMap(directory(l.options.PinPath)+"/"+schema+"/usages", nil)
	require.NoError(t, err)
	defer usages.Close()
	var usage guard.MeterUsage
	require.NoError(t, usages.Lookup(uint32(1), &usage))
	return usage.Sent[0]
}

// countTransfer is what a transfer, which offers a rate, adds to the NIC's counters and
// to what the meter charged.
func countTransfer(t *testing.T, l *lab) (sent network.Counters, charged uint64) {
	t.Helper()
	before, err := l.Nodes[0].Counters("blue")
	require.NoError(t, err)
	counted := wireCount(t, l)
	options := transferFor(6)
	options.Duration, options.OfferedMbit = time.Second, 25
	transfer(t, l.Pod("pod-1-1"), l.Pod("pod-2-1"), 6, options)()
	time.Sleep(100 * time.Millisecond)
	after, err := l.Nodes[0].Counters("blue")
	require.NoError(t, err)
	return network.Counters{
		TxBytes: after.TxBytes - before.TxBytes, TxPackets: after.TxPackets - before.TxPackets, TxDropped: after.TxDropped - before.TxDropped,
	}, wireCount(t, l) - counted
}

func TestTheMeterCountsWhatTheWireCarries(t *testing.T) {
	l := newLab(t, network.Spec{Paths: []string{"blue"}, PodsPerNode: 1})
	// The NIC cuts large packets itself, so that its counter shows what a wire has.
	_, err := l.Nodes[0].Run("ethtool", "-K", "blue", "tso", "off", "gso", "off")
	require.NoError(t, err)
	l.tenant("tenant-1", "blue", mbit(10_000), 0)
	l.apply(t)
	serve(t, l.Pod("pod-2-1"), 6)
	for range 10 {
		sent, charged := countTransfer(t, l)
		t.Logf("%d bytes in %d frames on the wire, %d charged, %d frames dropped", sent.TxBytes, sent.TxPackets, charged, sent.TxDropped)
		// A machine that is busy drops frames behind the meter, and counts one for all that
		// one large packet was cut into: only a transfer without any says what was sent.
		if sent.TxDropped != 0 {
			continue
		}
		if sent.TxBytes < 10_000_000 || math.Abs(float64(charged)-float64(sent.TxBytes)) > 0.0001*float64(sent.TxBytes) {
			t.Errorf("%d bytes were charged, where %d were sent", charged, sent.TxBytes)
		}
		return
	}
	t.Error("each transfer lost frames on the wire")
}

// heard counts datagrams that arrive at an address until the test ends.
func heard(t *testing.T, pod *network.Pod, version int) (count func() int, address string) {
	t.Helper()
	var socket net.PacketConn
	require.NoError(t, pod.Do(func() (err error) {
		socket, err = net.ListenPacket("udp", net.JoinHostPort(pod.Address(version), "0"))
		return err
	}))
	t.Cleanup(func() { socket.Close() })
	return func() (n int) {
		buffer := make([]byte, 100)
		for require.NoError(t, socket.SetReadDeadline(time.Now().Add(300*time.Millisecond))); ; n++ {
			if _, _, err := socket.ReadFrom(buffer); err != nil {
				return n
			}
		}
	}, socket.LocalAddr().String()
}

// say sends datagrams from an address of the pod.
func say(t *testing.T, pod *network.Pod, from, to string, count int) {
	t.Helper()
	require.NoError(t, pod.Do(func() error {
		socket, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(from), 0)), net.UDPAddrFromAddrPort(netip.MustParseAddrPort(to)))
		if err != nil {
			return err
		}
		defer socket.Close()
		for range count {
			if _, err := socket.Write([]byte("hello")); err != nil {
				return err
			}
		}
		return nil
	}))
}

func TestAPodCannotSendFromAnothersAddress(t *testing.T) {
	l := newLab(t, network.Spec{Paths: []string{"blue"}, PodsPerNode: 2})
	thief, victim, server := l.Pod("pod-1-1"), l.Pod("pod-1-2"), l.Pod("pod-2-1")
	for version, prefix := range map[int]string{4: "/32", 6: "/128"} {
		require.NoError(t, thief.AddAddress("eth0", victim.Address(version)+prefix))
		count, address := heard(t, server, version)
		say(t, thief, thief.Address(version), address, 1)
		if n := count(); n != 1 {
			t.Errorf("IPv%d: the first datagram, which finds the next hop, did not arrive", version)
		}
		l.state.Endpoints[0].Guard = nil
		l.apply(t)
		say(t, thief, victim.Address(version), address, 5)
		if n := count(); n != 5 {
			t.Errorf("IPv%d: without the guard %d of 5 forged datagrams arrived: the test shows nothing", version, n)
		}
		l.state.Endpoints[0].Guard = &v1alpha1.PlanGuard{SpoofCheck: true}
		l.apply(t)
		say(t, thief, victim.Address(version), address, 5)
		if n := count(); n != 0 {
			t.Errorf("IPv%d: %d forged datagrams arrived", version, n)
		}
		say(t, thief, thief.Address(version), address, 5)
		say(t, victim, victim.Address(version), address, 5)
		if n := count(); n != 10 {
			t.Errorf("IPv%d: %d of 10 honest datagrams arrived", version, n)
		}
		if n := l.metric(t, "braid_guard_spoofed_packets_total", "pod", "pod-1-1"); n != 5 {
			t.Errorf("IPv%d: the metric says %g of 5", version, n)
		}
	}
}

func TestEachInterfaceThatMayHaveThePodsAddressesIsGuarded(t *testing.T) {
	l := newLab(t, network.Spec{Paths: []string{"blue"}, PodsPerNode: 1})
	pod := l.Pod("pod-1-1")
	require.NoError(t, network.Connect(pod.Namespace, "net1", l.Nodes[0].Namespace, "second", network.Options{}))
	second, err := l.Nodes[0].Index("second")
	require.NoError(t, err)
	l.state.Endpoints[0].Guard = &v1alpha1.PlanGuard{SpoofCheck: true}
	for _, others := range [][]int{{second}, nil} {
		l.state.Endpoints[0].Others = others
		l.apply(t)
		first, further := l.attached(t, pod.HostInterface, ebpf.AttachTCXIngress), l.attached(t, "second", ebpf.AttachTCXIngress)
		if first != 1 || further != len(others) {
			t.Errorf("with %v, %d programs are on the first interface and %d on the second", others, first, further)
		}
	}
}

// metric is the value of the series that has this label.
func (l *lab) metric(t *testing.T, name, label, value string) float64 {
	t.Helper()
	registry := prometheus.NewRegistry()
	require.NoError(t, registry.Register(l.guard))
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, family := range families {
		for _, series := range family.GetMetric() {
			for _, pair := range series.GetLabel() {
				if family.GetName() == name && pair.GetName() == label && pair.GetValue() == value {
					return series.GetCounter().GetValue() + series.GetGauge().GetValue()
				}
			}
		}
	}
	return 0
}

// attached counts the programs on an interface of the first node.
func (l *lab) attached(t *testing.T, name string, hook ebpf.AttachType) (count int) {
	t.Helper()
	index, err := l.Nodes[0].Index(name)
	require.NoError(t, err)
	require.NoError(t, l.Nodes[0].Do(func() error {
		found, err := link.QueryPrograms(link.QueryOptions{Target: index, Attach: hook})
		if found != nil {
			count = len(found.Programs)
		}
		return err
	}))
	return count
}

func (l *lab) expectNothing(t *testing.T) {
	t.Helper()
	if n := l.attached(t, "blue", ebpf.AttachTCXEgress); n != 0 {
		t.Errorf("%d programs are left on the NIC", n)
	}
	if n := l.attached(t, l.Pod("pod-1-1").HostInterface, ebpf.AttachTCXIngress); n != 0 {
		t.Errorf("%d programs are left on the pod's interface", n)
	}
	if _, err := l.Nodes[0].Index("braidq0"); err == nil {
		t.Error("a queue is left")
	}
	if _, err := os.Stat(directory(l.options.PinPath)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("pins are left: %v", err)
	}
}

func (l *lab) guardEverything(t *testing.T) {
	t.Helper()
	l.state = l.describe(t)
	l.tenant("tenant-1", "blue", mbit(20), 3)
	l.state.Endpoints[0].Guard = &v1alpha1.PlanGuard{MaxRate: mbit(10), SpoofCheck: true}
	l.apply(t)
	if l.attached(t, "blue", ebpf.AttachTCXEgress) != 1 || l.attached(t, l.Pod("pod-1-1").HostInterface, ebpf.AttachTCXIngress) != 1 ||
		l.attached(t, "braidx0", ebpf.AttachTCXIngress) != 1 {
		t.Fatal("not everything is attached")
	}
}

func TestNothingIsLeftWhenNothingIsGuarded(t *testing.T) {
	l := newLab(t, network.Spec{Paths: []string{"blue"}, LinkMbit: 100, PodsPerNode: 1})
	l.expectNothing(t)
	l.guardEverything(t)
	l.state.Tenants, l.state.Endpoints[0].Guard = nil, nil
	l.apply(t)
	l.expectNothing(t)
}

func TestPodsThatComeAndGoGetRowsAtOnce(t *testing.T) {
	l := newLab(t, network.Spec{Paths: []string{"blue"}, LinkMbit: 100, PodsPerNode: 3})
	all := l.state.Endpoints
	l.tenant("tenant-1", "blue", mbit(20), 3)
	for _, here := range [][]nodetest.Endpoint{all[:1], all, all[1:], all[:1], all[2:], nil, all} {
		l.state.Endpoints = here
		l.apply(t)
	}
	if l.guard.nics.Mode() == "tcx" {
		links, err := os.ReadDir(filepath.Join(l.guard.loaded.Directory(), "links", "queues"))
		require.NoError(t, err)
		require.Len(t, links, 1, "links of queues that are gone stay behind")
	}
	serve(t, l.Pod("pod-2-1"), 4)
	options := transferFor(1)
	options.Duration = time.Second
	if result := transfer(t, l.Pod("pod-1-1"), l.Pod("pod-2-1"), 4, options)(); result.Mbit > 21 || result.Mbit < 10 {
		t.Errorf("of 20 Mbit/s a pod got %.2f", result.Mbit)
	}
}

func TestRemoveLeavesNothingOfAnEarlierAgent(t *testing.T) {
	l := newLab(t, network.Spec{Paths: []string{"blue"}, LinkMbit: 100, PodsPerNode: 1})
	l.guardEverything(t)
	l.end(t)
	require.NoError(t, l.remove(l.Nodes[0], Open(l.options)))
	l.expectNothing(t)
}
