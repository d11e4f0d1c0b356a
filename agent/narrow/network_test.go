// SPDX-License-Identifier: Apache-2.0

package narrow_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	"github.com/stretchr/testify/require"

	"braid.dev/braid/agent/datapath"
	"braid.dev/braid/agent/endpoints"
	"braid.dev/braid/agent/narrow"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/agent/node/nodetest"
	"braid.dev/braid/agent/pathmanager"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
	"braid.dev/braid/internal/testutil"
)

// The paths by their numbers. The others carry a tenth of what blue does.
const (
	blue = iota
	green
)

var paths = []string{"blue", "green", "red"}

// transferred is how long a transfer takes. On a path of 10 Mbit/s a subflow may send little for
// seconds.
const transferred = 20 * time.Second

// lab are two nodes with a pod each, whose sockets have small receive buffers.
type lab struct {
	*network.Network
	paths     []string
	datapaths []*datapath.Datapath
	parts     []*narrow.Narrow
	version   int // of IP, in which connections begin
}

func newLab(t *testing.T, paths ...string) *lab {
	t.Helper()
	l := &lab{Network: network.ForTest(t, network.Spec{Nodes: 2, Paths: paths, LinkMbit: 100, PodsPerNode: 1}), paths: paths, version: 4}
	pins := testutil.BPFFS(t)
	for i := range l.Nodes {
		l.datapaths = append(l.datapaths, datapath.Open(datapath.Options{
			PinPath: filepath.Join(pins, strconv.Itoa(i)), Log: testr.New(t), FlowEntries: 4096,
		}))
	}
	for i := range l.Nodes {
		l.start(t, i, filepath.Join(pins, strconv.Itoa(i)))
	}
	return l
}

func (l *lab) start(t *testing.T, i int, pins string) {
	t.Helper()
	host, pod, d := l.Nodes[i], l.Nodes[i].Pods[0], l.datapaths[i]
	for _, path := range l.paths[green:] {
		require.NoError(t, host.Shape(path, 10))
	}
	require.NoError(t, pod.Sysctl("net.ipv4.tcp_rmem", "4096 65536 65536"))
	state := l.state(t, i)
	require.NoError(t, host.Do(func() error { return state.Apply(t.Context(), d, nodetest.NewBuilder(pins)) }))
	t.Cleanup(func() { require.NoError(t, host.Do(func() error { return d.Remove(context.Background()) })) })

	part := narrow.New(narrow.Options{Datapath: d, Log: testr.New(t)})
	model := &node.Model{Endpoints: []node.Endpoint{{Addresses: addressesOf(pod), Found: &endpoints.Endpoint{Path: pod.Path()}}}}
	require.NoError(t, part.Apply(t.Context(), model).Err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- part.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
		require.NoError(t, part.Close())
	})
	l.parts = append(l.parts, part)
}

func addressesOf(pod *network.Pod) []netip.Addr {
	return []netip.Addr{netip.MustParseAddr(pod.IPv4), netip.MustParseAddr(pod.IPv6)}
}

// state is what an agent of the node would find.
func (l *lab) state(t *testing.T, i int) nodetest.State {
	t.Helper()
	host, other := l.Nodes[i], l.Nodes[1-i]
	endpoint := nodetest.Endpoint{Addresses: addressesOf(host.Pods[0])}
	peer := nodetest.Peer{Name: other.NodeName(), Paths: map[string]nodetest.PeerPath{}}
	state := nodetest.State{}
	for number, name := range l.paths {
		index, err := host.Index(name)
		require.NoError(t, err)
		addresses := []netip.Addr{netip.MustParseAddr(other.Address(number, 4)), netip.MustParseAddr(other.Address(number, 6))}
		state.Paths = append(state.Paths, nodetest.Path{Name: name, Interface: index, Up: true})
		endpoint.Paths = append(endpoint.Paths, v1alpha1.PathWeight{Path: v1alpha1.PathName(name), Weight: 1})
		peer.Addresses = append(peer.Addresses, addresses...)
		peer.Paths[name] = nodetest.PeerPath{Addresses: addresses, Up: true}
	}
	state.Peers, state.Endpoints = []nodetest.Peer{peer}, []nodetest.Endpoint{endpoint}
	return state
}

// transfer runs one between the pods, and calls during with the number of the sending node
// meanwhile. It must arrive whole.
func (l *lab) transfer(t *testing.T, direction traffic.Direction, during func(sender int)) {
	t.Helper()
	result, err := l.transferWhile(t.Context(), t, direction, during)
	require.NoError(t, err)
	require.Zero(t, result.Failed, "%v", result.Errors)
}

// transferWhile is transfer with a context that ends it.
func (l *lab) transferWhile(ctx context.Context, t *testing.T, direction traffic.Direction, during func(sender int)) (result *traffic.Result, failed error) {
	t.Helper()
	client, server := l.Nodes[0].Pods[0], l.Nodes[1].Pods[0]
	manager, err := pathmanager.Open(client.Path(), pathmanager.Options{StatePath: t.TempDir(), Log: testr.New(t)})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, manager.Restore(context.Background())); require.NoError(t, manager.Close()) })
	require.NoError(t, manager.Configure(t.Context(), pathmanager.Settings{
		Manager: v1alpha1.SubflowManagerAgent, Count: len(l.paths), Addresses: addressesOf(client),
	}))
	listener, err := server.Listen(t.Context(), "tcp", ":5001")
	require.NoError(t, err)
	serving, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- traffic.Serve(serving, listener) }()
	t.Cleanup(func() { cancel(); require.NoError(t, <-served) })

	done := make(chan error, 1)
	go func() {
		dial := func(ctx context.Context) (net.Conn, error) {
			return client.Dial(ctx, "tcp", net.JoinHostPort(server.Address(l.version), "5001"))
		}
		var err error
		result, err = traffic.Run(ctx, dial, traffic.Options{Direction: direction, Duration: transferred, Verify: true})
		done <- err
	}()
	during(map[traffic.Direction]int{traffic.Up: 0, traffic.Down: 1}[direction])
	failed = <-done
	return result, failed
}

// awaits waits until both subflows of the connection leave the node as they are to.
func (l *lab) awaits(t *testing.T, sender int, what string, is func(datapath.BusyFlow) bool) {
	t.Helper()
	require.Eventually(t, func() bool {
		flows, err := l.datapaths[sender].BusyFlows()
		require.NoError(t, err)
		count := 0
		for _, flow := range flows {
			if flow.Busy && is(flow) {
				count++
			}
		}
		return count == len(l.paths)
	}, transferred, 20*time.Millisecond, what)
}

// awaitsAlone waits until all that is sent leaves the node by one path. How much of it each
// subflow has is the kernel's affair.
func (l *lab) awaitsAlone(t *testing.T, sender int, path uint8) {
	t.Helper()
	require.Eventually(t, func() bool {
		flows, err := l.datapaths[sender].BusyFlows()
		require.NoError(t, err)
		sends := false
		for _, flow := range flows {
			sends = sends || flow.Busy
			if flow.Busy && flow.Path != path {
				return false
			}
		}
		return sends
	}, transferred, 20*time.Millisecond, "all that is sent leaves by %s", paths[path])
}

func bothDirections(t *testing.T, test func(t *testing.T, direction traffic.Direction)) {
	for _, direction := range []traffic.Direction{traffic.Up, traffic.Down} {
		t.Run(string(direction), func(t *testing.T) { test(t, direction) })
	}
}

// awaitsNoOther waits until all that is sent has left by one path for a second.
func (l *lab) awaitsNoOther(t *testing.T, sender int, path uint8) {
	t.Helper()
	since := time.Now()
	require.Eventually(t, func() bool {
		flows, err := l.datapaths[sender].BusyFlows()
		require.NoError(t, err)
		sends := slices.ContainsFunc(flows, func(flow datapath.BusyFlow) bool { return flow.Busy })
		if !sends || slices.ContainsFunc(flows, func(flow datapath.BusyFlow) bool { return flow.Busy && flow.Path != path }) {
			since = time.Now()
		}
		return time.Since(since) > time.Second
	}, transferred, 20*time.Millisecond, "nothing leaves by another path than %s", paths[path])
}

func sharesBlue(flow datapath.BusyFlow) bool { return flow.Shared && flow.Path == blue }

func TestSubflowsOfANarrowConnectionShareTheGoodPathAndLeaveItWhenItDies(t *testing.T) {
	bothDirections(t, func(t *testing.T, direction traffic.Direction) {
		l := newLab(t, paths[:2]...)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		_, err := l.transferWhile(ctx, t, direction, func(sender int) {
			l.awaits(t, sender, "both subflows on the good path", sharesBlue)
			require.NoError(t, l.Block(l.Nodes[0], paths[blue], true))
			l.awaitsAlone(t, sender, green)
			require.NoError(t, l.Block(l.Nodes[0], paths[blue], false))
			// Small windows and a path that dies can stop a connection for good in this
			// kernel, whatever its subflows do (docs/kernel-notes.md): its end is not looked at.
			cancel()
		})
		require.ErrorIs(t, err, context.Canceled)
	})
}

// Some subflows of a connection that began in IPv6 are of IPv4.
func TestSubflowsOfSeveralSlowPathsAllComeToShareTheGoodOne(t *testing.T) {
	for _, version := range []int{4, 6} {
		t.Run(fmt.Sprintf("of a connection that began in IPv%d", version), func(t *testing.T) {
			bothDirections(t, func(t *testing.T, direction traffic.Direction) {
				l := newLab(t, paths...)
				l.version = version
				l.transfer(t, direction, func(sender int) { l.awaitsNoOther(t, sender, blue) })
			})
		})
	}
}

func TestSubflowsOfAPodThatNoPolicySelectsAnyLongerPart(t *testing.T) {
	bothDirections(t, func(t *testing.T, direction traffic.Direction) {
		l := newLab(t, paths[:2]...)
		l.transfer(t, direction, func(sender int) {
			l.awaits(t, sender, "both subflows on the good path", sharesBlue)
			require.NoError(t, l.parts[sender].Apply(t.Context(), &node.Model{}).Err)
			l.awaits(t, sender, "each subflow on its own path", func(flow datapath.BusyFlow) bool { return !flow.Shared })
		})
	})
}
