// SPDX-License-Identifier: Apache-2.0

package guests

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"k8s.io/apimachinery/pkg/types"

	"braid.dev/braid/agent/datapath"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/agent/node/nodetest"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/pair"
	"braid.dev/braid/internal/lab/traffic"
	"braid.dev/braid/internal/testutil"
)

var threePaths = []string{"blue", "green", "red"}

const guestUID = "vm"

// lab is a VM on one node and a pod on the other one, both of which steer.
type lab struct {
	*network.Network
	part          *Part
	options       Options
	builder       *node.Builder
	subflows      v1alpha1.PlanSubflows
	datapaths     []*datapath.Datapath
	guest, server *pair.Host
	flooder       *network.Pod // another VM; nil for none
	holds         bool         // the VM is in a pod
	tagged        bool         // its network is a VLAN's
}

// newLab announces nothing yet.
func newLab(t *testing.T) *lab {
	t.Helper()
	return newLabBy(t, network.BindingRouted, false)
}

// newLabBy has the VM joined in this way, to a pod that holds it where holds is true.
func newLabBy(t *testing.T, binding network.Binding, holds bool) *lab {
	t.Helper()
	pins := testutil.BPFFS(t)
	l := &lab{holds: holds, options: Options{PinPath: filepath.Join(pins, "0"), Log: testr.New(t)}}
	l.subflows = v1alpha1.PlanSubflows{Manager: v1alpha1.SubflowManagerHost, Count: 3, OpenAfterBytes: 256 << 10}
	l.Network = network.ForTest(t, network.Spec{Nodes: 2, Paths: threePaths, LinkMbit: 100, PodsPerNode: 1})
	vm, err := l.Nodes[0].AddGuestBy(binding, "guest-1-1")
	require.NoError(t, err)
	pod := l.Pod("pod-2-1")
	l.guest, l.server = pair.HostOf(t, vm.Namespace, vm.IPv4, vm.IPv6), pair.HostOf(t, pod.Namespace, pod.IPv4, pod.IPv6)
	for i, on := range l.Nodes {
		options := datapath.Options{PinPath: filepath.Join(pins, fmt.Sprint(i)), FlowEntries: 4096, Log: testr.New(t)}
		opened, builder := datapath.Open(options), nodetest.NewBuilder(options.PinPath)
		l.datapaths = append(l.datapaths, opened)
		t.Cleanup(func() {
			require.NoError(t, on.Do(func() error { return opened.Remove(context.Background()) }))
			require.NoError(t, builder.Close())
		})
		require.NoError(t, on.Do(func() error { return l.state(t, i).Apply(t.Context(), opened, builder) }))
		if i == 0 {
			l.builder = builder
		}
	}
	l.begin()
	t.Cleanup(func() {
		require.NoError(t, l.part.Close())
		require.NoError(t, l.Nodes[0].Do(func() error { return Open(l.options).Remove(context.Background()) }))
	})
	return l
}

// begin is the start of an agent.
func (l *lab) begin() { l.part = Open(l.options) }

// state is that of a node, all of whose pods and VMs are steered.
func (l *lab) state(t *testing.T, number int) (state nodetest.State) {
	t.Helper()
	on, other := l.Nodes[number], l.Nodes[1-number]
	for _, path := range threePaths {
		state.Paths = append(state.Paths, nodetest.Path{Name: path, Interface: indexOf(t, on, path), Up: true})
	}
	peer := nodetest.Peer{Name: other.NodeName(), Paths: map[string]nodetest.PeerPath{}}
	for p, path := range threePaths {
		addresses := []netip.Addr{netip.MustParseAddr(other.Address(p, 4)), netip.MustParseAddr(other.Address(p, 6))}
		peer.Addresses = append(peer.Addresses, addresses...)
		peer.Paths[path] = nodetest.PeerPath{Addresses: addresses, Up: true}
	}
	state.Peers = []nodetest.Peer{peer}
	for _, pod := range on.Pods {
		endpoint := nodetest.Endpoint{
			Interface: indexOf(t, on, pod.HostInterface),
			Addresses: []netip.Addr{netip.MustParseAddr(pod.IPv4), netip.MustParseAddr(pod.IPv6)},
		}
		for _, path := range threePaths {
			endpoint.Paths = append(endpoint.Paths, v1alpha1.PathWeight{Path: v1alpha1.PathName(path), Weight: 1})
		}
		switch {
		case pod.PodName == "guest-1-1" && l.holds:
			endpoint.UID, endpoint.Subflows, endpoint.VirtualMachine = guestUID, l.subflows, &v1alpha1.PlanVirtualMachine{Held: true}
		case pod.PodName == "guest-1-1":
			endpoint.UID, endpoint.Subflows, endpoint.Guest, endpoint.Tagged = guestUID, l.subflows, &v1alpha1.PlanGuest{}, l.tagged
		case pod == l.flooder:
			endpoint.UID, endpoint.Subflows, endpoint.Guest = "flooder", l.subflows, &v1alpha1.PlanGuest{}
		}
		state.Endpoints = append(state.Endpoints, endpoint)
	}
	return state
}

func indexOf(t *testing.T, on *network.Node, name string) int {
	t.Helper()
	index, err := on.Index(name)
	require.NoError(t, err)
	return index
}

// apply announces to the VM from now on.
func (l *lab) apply(t *testing.T) {
	t.Helper()
	require.NoError(t, l.Nodes[0].Do(func() error { return l.state(t, 0).Apply(t.Context(), l.part, l.builder) }))
}

// status is what an agent says of the VM.
func (l *lab) status(t *testing.T) (status v1alpha1.EndpointStatus) {
	t.Helper()
	model, err := l.state(t, 0).Model(l.builder)
	require.NoError(t, err)
	var report node.Report
	require.NoError(t, l.Nodes[0].Do(func() error { report = l.part.Apply(t.Context(), model); return report.Err }))
	for _, status := range report.Statuses(model) {
		if status.UID == types.UID(guestUID) {
			return status
		}
	}
	t.Fatal("the model has no VM")
	return status
}

// follow is what a tenant does in its VM.
func (l *lab) follow(t *testing.T) {
	t.Helper()
	_, err := l.guest.Run("ip", "mptcp", "limits", "set", "add_addr_accepted", "8", "subflows", "8")
	require.NoError(t, err)
}

// serve answers transfers in the pod until the test ends.
func (l *lab) serve(t *testing.T, version int) netip.AddrPort {
	t.Helper()
	listener, err := l.server.Listen(t.Context(), "tcp", netip.AddrPortFrom(l.server.Address(version), 0).String())
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- traffic.Serve(ctx, listener) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	return netip.MustParseAddrPort(listener.Addr().String())
}

// transfer moves verified bytes, and returns what each NIC of the sender's node sent of them.
func (l *lab) transfer(t *testing.T, to netip.AddrPort, direction traffic.Direction) (*traffic.Result, map[string]float64) {
	t.Helper()
	sender := l.Nodes[0]
	if direction == traffic.Down {
		sender = l.Nodes[1]
	}
	before := sent(t, sender)
	result, err := traffic.Run(t.Context(), func(ctx context.Context) (net.Conn, error) {
		return l.guest.Dial(ctx, "tcp", to.String())
	}, traffic.Options{Direction: direction, Duration: 3 * time.Second, Warmup: time.Second, Verify: true})
	require.NoError(t, err)
	require.Zero(t, result.Failed, result.Errors)
	after, shares, sum := sent(t, sender), map[string]float64{}, 0.
	for _, path := range threePaths {
		shares[path] = after[path] - before[path]
		sum += shares[path]
	}
	for path := range shares {
		shares[path] /= sum
	}
	return result, shares
}

func sent(t *testing.T, on *network.Node) map[string]float64 {
	t.Helper()
	bytes := map[string]float64{}
	require.NoError(t, on.Do(func() error {
		for _, path := range threePaths {
			nic, err := netlink.LinkByName(path)
			if err != nil {
				return err
			}
			bytes[path] = float64(nic.Attrs().Statistics.TxBytes)
		}
		return nil
	}))
	return bytes
}

// watch counts what nobody but the guest and its host is to see: packets with announced
// ports, and the guest's echoes. It returns how many there were.
func watch(t *testing.T, in *network.Namespace, hook string) func() string {
	t.Helper()
	run := func(command string) string {
		out, err := in.Run("nft", strings.Fields(command)...)
		require.NoError(t, err, command)
		return out
	}
	run("add table inet watch")
	run("add chain inet watch seen { type filter hook " + hook + " priority -300 ; }")
	run("add rule inet watch seen tcp dport 64001-64008 counter")
	run("add rule inet watch seen tcp sport 64001-64008 counter")
	run("add rule inet watch seen tcp option mptcp subtype 3 counter")
	return func() string { return run("list table inet watch") }
}

const nothingSeen = "packets 0 bytes 0" // by one of the three rules

func TestOneConnectionOfAVMFillsAllPaths(t *testing.T) {
	l := newLab(t)
	l.follow(t)
	alone := map[string]float64{}
	each := func(t *testing.T, test func(t *testing.T, name string, to netip.AddrPort, direction traffic.Direction)) {
		for _, version := range []int{4, 6} {
			to := l.serve(t, version)
			for _, direction := range []traffic.Direction{traffic.Up, traffic.Down} {
				name := fmt.Sprintf("IPv%d %s", version, direction)
				t.Run(name, func(t *testing.T) { test(t, name, to, direction) })
			}
		}
	}
	each(t, func(t *testing.T, name string, to netip.AddrPort, direction traffic.Direction) {
		result, _ := l.transfer(t, to, direction)
		require.Equal(t, 1, result.Subflows)
		alone[name] = result.Mbit
	})
	l.apply(t)
	seen, guestSees := watch(t, l.Nodes[0].Namespace, "prerouting"), watch(t, l.guest.Namespace, "output")
	each(t, func(t *testing.T, name string, to netip.AddrPort, direction traffic.Direction) {
		result, shares := l.transfer(t, to, direction)
		t.Logf("%.1f Mbit/s, %.1f on one path, %v", result.Mbit, alone[name], shares)
		require.True(t, result.Multipath)
		require.Equal(t, 3, result.Subflows)
		for path, share := range shares {
			require.Greater(t, share, 0.15, "%s carries %.0f %% of it", path, 100*share)
		}
		require.Greater(t, result.Mbit, 1.8*alone[name])
	})
	require.Equal(t, 3, strings.Count(seen(), nothingSeen), seen())
	require.Equal(t, 1, strings.Count(guestSees(), nothingSeen), "the guest joins announced ports, and echoes them: %s", guestSees())
	require.Equal(t, v1alpha1.GuestJoined, l.status(t).GuestSubflows)
}

// open opens a connection that stays open, and moves so many bytes to the server.
func (l *lab) open(t *testing.T, version, size int) (client, server net.Conn) {
	t.Helper()
	listener, err := l.server.Listen(t.Context(), "tcp", netip.AddrPortFrom(l.server.Address(version), 0).String())
	require.NoError(t, err)
	t.Cleanup(func() { listener.Close() }) // it takes the joins
	client, err = l.guest.Dial(t.Context(), "tcp", listener.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { client.Close() })
	server, err = listener.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { server.Close() })
	carry(t, client, server, size)
	return client, server
}

// carry sends random bytes one way and expects the same.
func carry(t *testing.T, from, to net.Conn, size int) {
	t.Helper()
	sent, received := make([]byte, size), make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(sent)
	failed := make(chan error, 1)
	go func() {
		_, err := from.Write(sent)
		failed <- err
	}()
	require.NoError(t, to.SetReadDeadline(time.Now().Add(pair.Wait)))
	_, err := io.ReadFull(to, received)
	require.NoError(t, err)
	require.NoError(t, <-failed)
	require.True(t, string(sent) == string(received), "other bytes arrived than were sent")
}

// carryUntil moves bytes both ways until the connection has so many subflows.
func (l *lab) carryUntil(t *testing.T, client, server net.Conn, count int) {
	t.Helper()
	testutil.Retry(t, pair.Wait, func() error {
		carry(t, client, server, 100_000)
		carry(t, server, client, 100_000)
		if has := len(l.guest.Subflows(client.LocalAddr())); has != count {
			return fmt.Errorf("it has %d subflows, and not %d", has, count)
		}
		return nil
	})
}

func TestAGuestWithLinuxDefaultsIsToldOf(t *testing.T) {
	l := newLab(t)
	l.apply(t)
	require.Empty(t, l.status(t).GuestSubflows)
	client, server := l.open(t, 4, 1<<20)
	testutil.Retry(t, pair.Wait, func() error {
		carry(t, client, server, 100_000)
		if status := l.status(t); status.GuestSubflows != v1alpha1.GuestNotTaken {
			return fmt.Errorf("%+v", status)
		}
		return nil
	})
	status := l.status(t)
	require.Equal(t, v1alpha1.EndpointProgrammed, status.State)
	require.Contains(t, status.Message, "GuestTakesNoAnnouncements")
	require.Contains(t, status.Message, "add_addr_accepted 8 subflows 8")
	require.True(t, l.part.hasChanged() == false, "what was told is no change")

	l.follow(t)
	other, otherServer := l.open(t, 4, 1<<20)
	l.carryUntil(t, other, otherServer, 3)
	require.True(t, l.part.hasChanged())
	require.Equal(t, v1alpha1.GuestJoined, l.status(t).GuestSubflows)
}

func TestSubflowsOutliveTheAgentAndEndWithThePolicy(t *testing.T) {
	l := newLab(t)
	l.follow(t)
	l.apply(t)
	client, server := l.open(t, 4, 1<<20)
	l.carryUntil(t, client, server, 3)
	before := l.guest.Subflows(client.LocalAddr())

	require.NoError(t, l.part.Close())
	carry(t, client, server, 4<<20)
	other, otherServer := l.open(t, 4, 1<<20)
	l.carryUntil(t, other, otherServer, 3)
	l.begin()
	l.apply(t)
	carry(t, client, server, 4<<20)
	require.Len(t, l.guest.Subflows(client.LocalAddr()), len(before))

	l.subflows.Manager = v1alpha1.SubflowManagerNone
	l.apply(t)
	require.False(t, l.part.loaded.Exists())
	carry(t, client, server, 4<<20)
	carry(t, server, client, 4<<20)
}

func TestAPodIsToldThatItsManagerIsNotForIt(t *testing.T) {
	p := Open(Options{PinPath: testutil.BPFFS(t), Log: testr.New(t)})
	model := &node.Model{Endpoints: []node.Endpoint{{HostInterface: 1, PlanEndpoint: &v1alpha1.PlanEndpoint{
		UID: "pod", Subflows: v1alpha1.PlanSubflows{Manager: v1alpha1.SubflowManagerHost, Count: 3},
	}}}}
	report := p.Apply(t.Context(), model)
	require.NoError(t, report.Err)
	require.ErrorContains(t, report.Endpoints["pod"].Failed, "choose manager: Kernel or Agent")
	require.False(t, p.loaded.Exists())
}
