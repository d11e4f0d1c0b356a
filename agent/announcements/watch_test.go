// SPDX-License-Identifier: Apache-2.0

package announcements

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	"github.com/stretchr/testify/require"

	"braid.dev/braid/agent/node/nodetest"
	"braid.dev/braid/agent/pathmanager"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/bpf/announcements"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/pair"
	"braid.dev/braid/internal/testutil"
)

// restAge is how old connections become before anything is done for them.
const restAge = 300 * time.Millisecond

// newRestLab is a lab of two nodes that both hold announcements, and whose path managers
// are told of what lasts.
func newRestLab(t *testing.T) *lab {
	t.Helper()
	l := &lab{manager: v1alpha1.SubflowManagerKernel}
	l.Network = network.ForTest(t, network.Spec{Nodes: 2, Paths: []string{"blue"}, PodsPerNode: 1})
	l.client, l.server = hostOf(t, l.Nodes[0].Pods[0]), hostOf(t, l.Nodes[1].Pods[0])
	for _, on := range l.Nodes {
		holdAndManage(t, on, true, subflows)
	}
	return l
}

// holdAndManage does for a node's pod what an agent does. Where it is not told what lasts it
// listens to all events.
func holdAndManage(t testing.TB, on *network.Node, isTold bool, count int) {
	t.Helper()
	after := pathmanager.OpenAfter{Bytes: 1 << 40, Time: restAge}
	manageAs(t, on, holdOn(t, on, isTold, count, after), count, after)
}

// holdOn holds announcements of a node's pod, and returns what its path manager needs.
func holdOn(t testing.TB, on *network.Node, isTold bool, count int, after pathmanager.OpenAfter) pathmanager.Options {
	t.Helper()
	return holdFor(t, on, isTold, v1alpha1.PlanSubflows{
		Manager: v1alpha1.SubflowManagerKernel, Count: int32(count),
		AnnounceAfterBytes: int64(after.Bytes), AnnounceAfterMillis: after.Time.Milliseconds(),
	})
}

func holdFor(t testing.TB, on *network.Node, isTold bool, plan v1alpha1.PlanSubflows) pathmanager.Options {
	t.Helper()
	pod := on.Pods[0]
	addresses := []netip.Addr{netip.MustParseAddr(pod.IPv4), netip.MustParseAddr(pod.IPv6)}
	index, err := on.Index(pod.HostInterface)
	require.NoError(t, err)
	log := testr.NewWithInterface(t, testr.Options{})
	options := Options{PinPath: testutil.BPFFS(t), Log: log}
	holder, builder := Open(options), nodetest.NewBuilder(options.PinPath)
	t.Cleanup(func() {
		require.NoError(t, builder.Close())
		require.NoError(t, on.Do(func() error { return holder.Remove(context.Background()) }))
	})
	state := nodetest.State{Endpoints: []nodetest.Endpoint{{
		Interface: index, Addresses: addresses, Subflows: plan,
	}}}
	require.NoError(t, on.Do(func() error { return state.Apply(context.Background(), holder, builder) }))
	of := pathmanager.Options{StatePath: t.TempDir(), Log: log}
	if isTold {
		of.Watcher, of.Interfaces = holder, []int{index}
	}
	return of
}

func manageAs(t testing.TB, on *network.Node, of pathmanager.Options, count int, after pathmanager.OpenAfter) *pathmanager.Namespace {
	t.Helper()
	return manageBy(t, on, of, pathmanager.Settings{
		Manager: v1alpha1.SubflowManagerKernel, Count: count, FirstAnnouncedPort: 61001, OpenAfter: after,
	})
}

func manageBy(t testing.TB, on *network.Node, of pathmanager.Options, settings pathmanager.Settings) *pathmanager.Namespace {
	t.Helper()
	pod := on.Pods[0]
	settings.Addresses = []netip.Addr{netip.MustParseAddr(pod.IPv4), netip.MustParseAddr(pod.IPv6)}
	manager, err := pathmanager.Open(pod.Path(), of)
	require.NoError(t, err)
	t.Cleanup(func() { _ = manager.Close() }) // some tests end it
	require.NoError(t, manager.Configure(context.Background(), settings))
	return manager
}

// genericNetlink is how many sockets of a host speak it: the path manager has one, and
// another one while it listens to events.
func genericNetlink(t *testing.T, host *pair.Host) (count int) {
	t.Helper()
	out, err := host.Run("cat", "/proc/net/netlink")
	require.NoError(t, err)
	for _, line := range strings.Split(out, "\n") {
		if fields := strings.Fields(line); len(fields) > 2 && fields[1] == "16" && fields[2] != "0" { // the kernel has one, too
			count++
		}
	}
	return count
}

func (l *lab) awaitRest(t *testing.T, hosts ...*pair.Host) {
	t.Helper()
	for _, host := range hosts {
		testutil.Retry(t, 30*time.Second, func() error {
			if count := genericNetlink(t, host); count != 1 {
				return fmt.Errorf("%d sockets for the path manager's messages", count)
			}
			return nil
		})
	}
}

// lasts uses a connection until it has its subflows.
func lasts(t *testing.T, from *pair.Host, connection net.Conn) {
	t.Helper()
	testutil.Retry(t, 20*time.Second, func() error {
		echo(t, connection, 10)
		if count := len(from.Subflows(connection.LocalAddr())); count != subflows {
			return fmt.Errorf("%d subflows", count)
		}
		return nil
	})
}

func TestNobodyListensToPodsWhoseConnectionsStayShortUntilOneLasts(t *testing.T) {
	l := newRestLab(t)
	address := l.server.Serve(4)
	require.NoError(t, connect(t, l.client, address).Close()) // Linux before 6.3 tells of no listener
	l.awaitRest(t, l.client, l.server)
	for range 50 {
		require.NoError(t, connect(t, l.client, address).Close())
	}
	time.Sleep(2 * restAge)
	for name, host := range map[string]*pair.Host{"client": l.client, "server": l.server} {
		require.Equal(t, 1, genericNetlink(t, host), "the %s's events are listened to", name)
	}
	connection := connect(t, l.client, address)
	lasts(t, l.client, connection)
	testutil.Retry(t, 20*time.Second, func() error {
		echo(t, connection, 10)
		if count := genericNetlink(t, l.client); count != 2 {
			return fmt.Errorf("nobody listens to the events of a client with a connection that lasts: %d sockets", count)
		}
		return nil
	})
	require.Equal(t, 1, genericNetlink(t, l.server), "the server's events are listened to")
	require.NoError(t, connection.Close())
	l.awaitRest(t, l.client)
}

func TestAPodThatListensOnlyLaterAnnouncesOnItsFirstConnection(t *testing.T) {
	forBoth(t, func(t *testing.T, version int) {
		l := newRestLab(t)
		l.awaitRest(t, l.client, l.server)
		lasts(t, l.client, connect(t, l.client, l.server.Serve(version)))
	})
}

func TestAPodThatListensGetsTheSubflowsOfConnectionsThatItBegins(t *testing.T) {
	forBoth(t, func(t *testing.T, version int) {
		l := newRestLab(t)
		for _, host := range []*pair.Host{l.client, l.server} {
			host.Serve(version)
		}
		address := l.server.Serve(version)
		l.awaitRest(t, l.client, l.server)
		lasts(t, l.client, connect(t, l.client, address))
	})
}

func TestAConnectionThatSaysNothingGetsItsSubflowsTooWhereTheAgentOpensThem(t *testing.T) {
	l := newRestLab(t)
	l.client.Serve(4)
	address := l.server.Serve(4)
	l.awaitRest(t, l.client, l.server)
	connection := connect(t, l.client, address)
	testutil.Retry(t, time.Minute, func() error {
		if count := len(l.client.Subflows(connection.LocalAddr())); count != subflows {
			return fmt.Errorf("%d subflows", count)
		}
		return nil
	})
}

func TestNothingIsToldOfAnInterfaceAtWhichNothingIsHeld(t *testing.T) {
	h := Open(Options{PinPath: testutil.BPFFS(t), Log: testr.New(t)})
	require.False(t, h.Watch([]int{1}, announcements.TellsLasting|announcements.TellsAnswer, make(chan uint32, 1)))
	h.Unwatch([]int{1}, announcements.TellsLasting|announcements.TellsAnswer)
}
