// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netns"
	"k8s.io/apimachinery/pkg/types"

	"braid.dev/braid/agent/node/nodetest"
	"braid.dev/braid/agent/paths"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/testutil"
)

// newPodRate is what new pods may send, and mayPass what passes of it in some time, with
// what passes at once.
const newPodRate = 2

func mayPass(over time.Duration) float64 { return newPodRate * 1e6 / 8 * (over + burst).Seconds() }

// guardNewPods begins to guard new pods, and to watch for them.
func guardNewPods(t *testing.T, spec network.Spec) *lab {
	t.Helper()
	l := newLab(t, spec)
	l.options.Links = l.links(t)
	l.end(t)
	l.begin(t)
	l.state.NewPods = &v1alpha1.PlanNewPods{MaxRate: mbit(newPodRate), SpoofCheck: true}
	l.apply(t)
	return l
}

// links watches the interfaces of the first node.
func (l *lab) links(t *testing.T) func(context.Context) (<-chan struct{}, error) {
	t.Helper()
	namespace, err := netns.GetFromPath(l.Nodes[0].Path())
	require.NoError(t, err)
	defer namespace.Close()
	watched, err := paths.Open(namespace)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, watched.Close()) })
	return watched.WatchLinks
}

// addPod adds a pod to the first node that no plan has, and waits until it is held.
func (l *lab) addPod(t *testing.T, name string) *network.Pod {
	t.Helper()
	pod, err := l.Nodes[0].AddPod(name)
	require.NoError(t, err)
	l.expectHeld(t, pod.HostInterface, true)
	return pod
}

func (l *lab) expectHeld(t *testing.T, name string, wanted bool) {
	t.Helper()
	index, err := l.Nodes[0].Index(name)
	require.NoError(t, err)
	_, err = testutil.Until(2*time.Second, func() error {
		l.guard.newPods.mu.Lock()
		defer l.guard.newPods.mu.Unlock()
		if _, held := l.guard.newPods.held[index]; held != wanted {
			return fmt.Errorf("%s is held: %t", name, held)
		}
		return nil
	})
	require.NoError(t, err)
}

// endpoint is a pod of the first node as a plan has it.
func (l *lab) endpoint(t *testing.T, pod *network.Pod, guard *v1alpha1.PlanGuard) nodetest.Endpoint {
	t.Helper()
	index, err := l.Nodes[0].Index(pod.HostInterface)
	require.NoError(t, err)
	return nodetest.Endpoint{
		UID: types.UID(pod.PodName), Namespace: "tenant-1", Name: pod.PodName, Interface: index, Guard: guard,
		Addresses: []netip.Addr{netip.MustParseAddr(pod.IPv4), netip.MustParseAddr(pod.IPv6)},
	}
}

// blast sends datagrams for so long, many times as fast as new pods may, and returns how
// many bytes arrived.
func blast(t *testing.T, from, to *network.Pod, version int, over time.Duration) float64 {
	t.Helper()
	before := received(t, to)
	var connection net.Conn
	require.NoError(t, from.Do(func() (err error) {
		connection, err = net.Dial("udp", net.JoinHostPort(to.Address(version), "9"))
		return err
	}))
	defer connection.Close()
	payload := make([]byte, 1400)
	for begin, sent := time.Now(), 0; time.Since(begin) < over; sent++ {
		_, _ = connection.Write(payload)
		time.Sleep(time.Until(begin.Add(time.Duration(sent) * 280 * time.Microsecond))) // 40 Mbit/s
	}
	time.Sleep(100 * time.Millisecond)
	return float64(received(t, to) - before)
}

func expectBetween(t *testing.T, what string, bytes, least, most float64) {
	t.Helper()
	t.Logf("%s: %.0f kB", what, bytes/1e3)
	if bytes < least || bytes > most {
		t.Errorf("%s: %.0f kB arrived, and between %.0f and %.0f should", what, bytes/1e3, least/1e3, most/1e3)
	}
}

func TestANewPodIsGuardedBeforeThePlanHasItAndThenAsThePlanSays(t *testing.T) {
	l := guardNewPods(t, network.Spec{Paths: []string{"blue"}, LinkMbit: 100, PodsPerNode: 1})
	to := l.Pod("pod-2-1")
	pod := l.addPod(t, "new")
	for _, version := range []int{4, 6} {
		expectBetween(t, fmt.Sprintf("new, IPv%d", version), blast(t, pod, to, version, time.Second), mayPass(time.Second)/2, 1.1*mayPass(time.Second))
		expectBetween(t, "an endpoint without limits", blast(t, l.Pod("pod-1-1"), to, version, time.Second), 2e6, 6e6)
	}
	l.apply(t) // of a plan that does not have it
	expectBetween(t, "after another model", blast(t, pod, to, 4, time.Second), 0, 1.1*mayPass(time.Second))

	t.Run("it becomes an endpoint", func(t *testing.T) {
		before := blast(t, pod, to, 4, 200*time.Millisecond)
		l.state.Endpoints = append(l.state.Endpoints, l.endpoint(t, pod, &v1alpha1.PlanGuard{MaxRate: mbit(newPodRate)}))
		l.apply(t)
		l.expectHeld(t, pod.HostInterface, false)
		over := 500 * time.Millisecond
		t.Logf("%.0f bytes were sent before", before)
		expectBetween(t, "with its own limits", blast(t, pod, to, 4, over), 0, 1.1*mayPass(over))
		if n := l.attached(t, pod.HostInterface, ebpf.AttachTCXIngress); n != 0 {
			t.Errorf("%d programs check its sources, which nobody asked for", n)
		}
	})
	t.Run("it is exempt", func(t *testing.T) {
		other := l.addPod(t, "other")
		index, err := l.Nodes[0].Index(other.HostInterface)
		require.NoError(t, err)
		l.state.NewPods.Exempt = []v1alpha1.PlanExemptPod{{UID: "other"}}
		l.state.Exempt = map[types.UID]int{"other": index}
		l.apply(t)
		expectBetween(t, "exempt", blast(t, other, to, 4, time.Second), 2e6, 6e6)
		if n := l.attached(t, other.HostInterface, ebpf.AttachTCXIngress); n != 0 {
			t.Errorf("%d programs are left on its interface", n)
		}
	})
}

func TestNewPodsSendFromAddressesThatAreRoutedToThem(t *testing.T) {
	l := guardNewPods(t, network.Spec{Paths: []string{"blue"}, PodsPerNode: 2})
	pod, other, victim, to := l.addPod(t, "new"), l.addPod(t, "newer"), l.Pod("pod-1-1"), l.Pod("pod-2-1")
	for version, prefix := range map[int]string{4: "/32", 6: "/128"} {
		count, address := heard(t, to, version)
		// First, because it also asks who the gateway is, by the address that is sent from.
		say(t, pod, pod.Address(version), address, 5)
		say(t, other, other.Address(version), address, 5)
		for _, forged := range []*network.Pod{victim, other} {
			require.NoError(t, pod.AddAddress("eth0", forged.Address(version)+prefix))
			say(t, pod, forged.Address(version), address, 5)
		}
		if n := count(); n != 10 {
			t.Errorf("IPv%d: %d of 10 honest datagrams arrived, and nothing else should", version, n)
		}
	}
}

func TestNewPodsAreHeldWhileNoAgentRunsAndByTheNextOne(t *testing.T) {
	l := guardNewPods(t, network.Spec{Paths: []string{"blue"}, LinkMbit: 100, PodsPerNode: 1})
	pod, to := l.addPod(t, "new"), l.Pod("pod-2-1")
	rows := maps.Clone(l.guard.newPods.held)
	l.end(t)
	expectBetween(t, "without an agent", blast(t, pod, to, 4, time.Second), 0, 1.1*mayPass(time.Second))
	missed, err := l.Nodes[0].AddPod("missed")
	require.NoError(t, err)
	l.begin(t)
	l.apply(t)
	l.expectHeld(t, missed.HostInterface, true)
	expectBetween(t, "with the next one", blast(t, pod, to, 4, time.Second), 0, 1.1*mayPass(time.Second))
	expectBetween(t, "one that came between", blast(t, missed, to, 4, time.Second), 0, 1.1*mayPass(time.Second))
	for index, held := range rows {
		if now := l.guard.newPods.held[index]; now.row != held.row {
			t.Errorf("interface %d had row %d and has %d", index, held.row, now.row)
		}
	}
	require.NoError(t, pod.Remove())
	_, err = testutil.Until(5*time.Second, func() error { // the kernel removes it later
		l.apply(t)
		if len(l.guard.newPods.held) != 1 {
			return fmt.Errorf("held are %v, and one pod of two is gone", l.guard.newPods.held)
		}
		return nil
	})
	require.NoError(t, err)
	l.state.NewPods = nil
	l.apply(t)
	l.expectNothing(t)
	if n := l.attached(t, missed.HostInterface, ebpf.AttachTCXIngress); n != 0 {
		t.Errorf("%d programs are left on a new pod's interface", n)
	}
}

// What leads to another network namespace and is no pod's is left alone.
func TestInterfacesOfOthersAreNotHeld(t *testing.T) {
	l := guardNewPods(t, network.Spec{Paths: []string{"blue"}, PodsPerNode: 1})
	node, other := l.Nodes[0], network.NamespaceForTest(t)
	run := func(arguments ...string) {
		t.Helper()
		if out, err := node.Run("ip", arguments...); err != nil {
			t.Fatalf("ip %v: %v: %s", arguments, err, out)
		}
	}
	// A NIC of a nested node, and one that a path will name.
	require.NoError(t, network.Connect(other, "out", node.Namespace, "nic", network.Options{}))
	require.NoError(t, node.AddAddress("nic", "192.0.2.1/24"))
	// Overlays, bridges, and what was made in another namespace and moved here.
	run("link", "add", "overlay", "type", "vxlan", "id", "7", "dstport", "4789", "dev", "blue")
	run("link", "add", "bridge0", "type", "bridge")
	if out, err := other.Run("ip", "link", "add", "moved", "link", "out", "netns", node.Name, "type", "macvlan"); err != nil {
		t.Fatal(err, out)
	}
	run("link", "add", "one", "type", "veth", "peer", "name", "two")
	pod := l.addPod(t, "new")
	index, err := node.Index(pod.HostInterface)
	require.NoError(t, err)
	for range 2 {
		l.apply(t)
		if held := slices.Collect(maps.Keys(l.guard.newPods.held)); !slices.Equal(held, []int{index}) {
			t.Errorf("held are %v, and the new pod's is %d", held, index)
		}
	}
}

func TestANewPodOfABridgeIsGuardedWhereItEntersTheNode(t *testing.T) {
	l := guardNewPods(t, network.Spec{Paths: []string{"blue"}, LinkMbit: 100, PodsPerNode: 1})
	node, to := l.Nodes[0], l.Pod("pod-2-1")
	pod := l.addPod(t, "new")
	for _, arguments := range [][]string{
		{"link", "add", "cni0", "type", "bridge"}, {"link", "set", "cni0", "up"},
		{"route", "del", pod.IPv4 + "/32", "dev", pod.HostInterface},
		{"link", "set", pod.HostInterface, "master", "cni0"},
		{"route", "add", pod.IPv4 + "/32", "dev", "cni0"},
		{"addr", "flush", "dev", pod.HostInterface},
	} {
		if out, err := node.Run("ip", arguments...); err != nil {
			t.Fatalf("ip %v: %v: %s", arguments, err, out)
		}
	}
	bridge, err := node.Index("cni0")
	require.NoError(t, err)
	index, err := node.Index(pod.HostInterface)
	require.NoError(t, err)
	_, err = testutil.Until(2*time.Second, func() error {
		l.guard.newPods.mu.Lock()
		defer l.guard.newPods.mu.Unlock()
		if held := l.guard.newPods.held[index]; held.master != bridge {
			return fmt.Errorf("held is %+v, and the bridge is %d", held, bridge)
		}
		return nil
	})
	require.NoError(t, err)
	gateway, err := pod.Run("ip", "-4", "route", "show", "default")
	require.NoError(t, err)
	if out, err := node.Run("ip", "addr", "add", gatewayOf(t, gateway)+"/32", "dev", "cni0"); err != nil {
		t.Fatal(err, out)
	}
	expectBetween(t, "by a bridge", blast(t, pod, to, 4, time.Second), mayPass(time.Second)/2, 1.1*mayPass(time.Second))
}

// gatewayOf is that of a default route, as ip shows it.
func gatewayOf(t *testing.T, route string) string {
	t.Helper()
	var gateway, device string
	_, err := fmt.Sscanf(route, "default via %s dev %s", &gateway, &device)
	require.NoError(t, err)
	return gateway
}
