// SPDX-License-Identifier: Apache-2.0

package announcements

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/go-logr/logr/testr"
	"github.com/stretchr/testify/require"

	"braid.dev/braid/agent/node"
	"braid.dev/braid/agent/node/nodetest"
	"braid.dev/braid/agent/pathmanager"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/bpf/announcements"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/pair"
	"braid.dev/braid/internal/testutil"
)

const subflows = 3

// lab is two nodes with a pod each, whose connections wait for their further subflows.
type lab struct {
	*network.Network
	client, server *pair.Host
	holder         *Holder
	options        Options
	manager        v1alpha1.SubflowManager
	managers       []*pathmanager.Namespace
}

func newLab(t *testing.T, after pathmanager.OpenAfter) *lab {
	t.Helper()
	return newLabOf(t, v1alpha1.SubflowManagerKernel, after)
}

func newLabOf(t *testing.T, manager v1alpha1.SubflowManager, after pathmanager.OpenAfter) *lab {
	t.Helper()
	l := &lab{options: Options{PinPath: testutil.BPFFS(t), Log: testr.New(t)}}
	l.Network = network.ForTest(t, network.Spec{Nodes: 2, Paths: []string{"blue"}, PodsPerNode: 1})
	l.client, l.server = hostOf(t, l.Nodes[0].Pods[0]), hostOf(t, l.Nodes[1].Pods[0])
	l.manager = manager
	l.hold(t, after)
	for _, host := range []*pair.Host{l.server, l.client} {
		l.manage(t, host, after)
	}
	return l
}

func hostOf(t *testing.T, pod *network.Pod) *pair.Host {
	return pair.HostOf(t, pod.Namespace, pod.IPv4, pod.IPv6)
}

// hold is what the server's node does.
func (l *lab) hold(t testing.TB, after pathmanager.OpenAfter) {
	t.Helper()
	l.holder = l.holdAt(t, l.Nodes[1], l.options, after)
}

// holdAt is what a node does for its pod.
func (l *lab) holdAt(t testing.TB, on *network.Node, options Options, after pathmanager.OpenAfter) *Holder {
	t.Helper()
	pod := on.Pods[0]
	index, err := on.Index(pod.HostInterface)
	require.NoError(t, err)
	plan := v1alpha1.PlanSubflows{Manager: l.manager, Count: subflows}
	if l.manager == v1alpha1.SubflowManagerKernel {
		plan.AnnounceAfterBytes, plan.AnnounceAfterMillis = int64(after.Bytes), after.Time.Milliseconds()
	}
	state := nodetest.State{Endpoints: []nodetest.Endpoint{{
		Interface: index, Addresses: []netip.Addr{netip.MustParseAddr(pod.IPv4)}, Subflows: plan,
	}}}
	holder := Open(options)
	builder := nodetest.NewBuilder(options.PinPath)
	t.Cleanup(func() { require.NoError(t, builder.Close()) })
	t.Cleanup(func() {
		require.NoError(t, holder.Close())
		require.NoError(t, on.Do(func() error { return Open(options).Remove(context.Background()) }))
	})
	require.NoError(t, on.Do(func() error { return state.Apply(context.Background(), holder, builder) }))
	return holder
}

func (l *lab) manage(t *testing.T, host *pair.Host, after pathmanager.OpenAfter) {
	t.Helper()
	manager, err := pathmanager.Open(host.Path(), pathmanager.Options{StatePath: t.TempDir(), Log: testr.New(t)})
	require.NoError(t, err)
	t.Cleanup(func() { manager.Close() })
	l.managers = append(l.managers, manager)
	require.NoError(t, manager.Configure(context.Background(), pathmanager.Settings{
		Manager: l.manager, Count: subflows, FirstAnnouncedPort: 61001,
		Addresses: []netip.Addr{host.IPv4, host.IPv6}, OpenAfter: after,
	}))
}

// leave is the end of the agents.
func (l *lab) leave(t *testing.T) {
	t.Helper()
	require.NoError(t, l.holder.Close())
	for _, manager := range l.managers {
		require.NoError(t, manager.Close())
	}
}

// connect opens a connection on which one byte went back and forth.
func connect(t *testing.T, from *pair.Host, to netip.AddrPort) net.Conn {
	t.Helper()
	connection, err := from.Dial(context.Background(), "tcp", to.String())
	require.NoError(t, err)
	t.Cleanup(func() { connection.Close() })
	echo(t, connection, 1)
	return connection
}

// echo sends bytes to a server that sends them back, and expects the same.
func echo(t *testing.T, connection net.Conn, bytes int) {
	t.Helper()
	sent := []byte(strings.Repeat("0123456789abcdef", bytes/16+1)[:bytes])
	failed := make(chan error, 1)
	go func() { _, err := connection.Write(sent); failed <- err }()
	received := make([]byte, bytes)
	_, err := io.ReadFull(connection, received)
	require.NoError(t, err)
	require.NoError(t, <-failed)
	require.Equal(t, string(sent), string(received))
}

// counter is one of the kernel's, of a host.
func counter(t *testing.T, host *pair.Host, name string) int {
	t.Helper()
	count, err := host.KernelCounter(name)
	require.NoError(t, err)
	return count
}

// fallbacks are the connections that the kernel took back to plain TCP.
func fallbacks(t *testing.T, host *pair.Host) (count int) {
	t.Helper()
	out, err := host.Run("nstat", "--ignore", "--zeros", "--noupdate", "MPTcpExt*Fallback*")
	require.NoError(t, err)
	for _, line := range strings.Split(out, "\n") {
		if fields := strings.Fields(line); len(fields) > 1 && strings.Contains(fields[0], "Fallback") {
			more, err := strconv.Atoi(fields[1])
			require.NoError(t, err)
			count += more
		}
	}
	return count
}

// announcedTo is what a host was told, and joinedTo the subflows that it was asked for.
func announcedTo(t *testing.T, host *pair.Host) int { return counter(t, host, "MPTcpExtAddAddr") }
func joinedTo(t *testing.T, host *pair.Host) int    { return counter(t, host, "MPTcpExtMPJoinSynRx") }

func forBoth(t *testing.T, test func(t *testing.T, version int)) {
	for _, version := range []int{4, 6} {
		t.Run(fmt.Sprintf("IPv%d", version), func(t *testing.T) { test(t, version) })
	}
}

func TestAConnectionThatStaysShortOpensNoSubflowAndIsAnnouncedNothing(t *testing.T) {
	forBoth(t, func(t *testing.T, version int) {
		l := newLab(t, pathmanager.OpenAfter{Bytes: 256 << 10, Time: time.Hour})
		address := l.server.Serve(version)
		l.settle(t)
		for range 20 {
			connection := connect(t, l.client, address)
			echo(t, connection, 10_000)
			l.client.ExpectSubflows(connection, 1)
			require.NoError(t, connection.Close())
		}
		time.Sleep(500 * time.Millisecond) // beyond the kernel's first repetition
		require.Zero(t, announcedTo(t, l.client))
		require.Zero(t, joinedTo(t, l.server))
		for _, host := range []*pair.Host{l.client, l.server} {
			require.Zero(t, fallbacks(t, host), "connections became plain TCP")
		}
		require.NotZero(t, counter(t, l.server, "MPTcpExtAddAddrTx"), "the kernel announced nothing that could be held")
	})
}

// settle waits until the server announces, where it does.
func (l *lab) settle(t *testing.T) {
	t.Helper()
	if l.manager != v1alpha1.SubflowManagerKernel {
		return
	}
	testutil.Retry(t, 20*time.Second, func() error {
		out, err := l.server.Run("ip", "mptcp", "endpoint", "show")
		if err == nil && strings.Count(out, "signal") < subflows-1 {
			err = fmt.Errorf("the server has the endpoints %q", out)
		}
		return err
	})
}

func TestAConnectionThatLastsGetsAllItsSubflows(t *testing.T) {
	for name, after := range map[string]pathmanager.OpenAfter{
		"by its bytes": {Bytes: 256 << 10, Time: time.Hour},
		"by its age":   {Bytes: 1 << 40, Time: 500 * time.Millisecond},
	} {
		for _, away := range []bool{false, true} {
			forBoth(t, func(t *testing.T, version int) {
				t.Run(fmt.Sprintf("%s, agents away: %t", name, away), func(t *testing.T) {
					l := newLab(t, after)
					address := l.server.Serve(version)
					l.settle(t)
					if away {
						l.leave(t)
					}
					connection := connect(t, l.client, address)
					require.Len(t, l.client.Subflows(connection.LocalAddr()), 1)
					if after.Time == time.Hour {
						echo(t, connection, 200<<10)
					}
					l.client.ExpectSubflows(connection, subflows)
					echo(t, connection, 4<<20)
					l.client.ExpectSubflows(connection, subflows)
				})
			})
		}
	}
}

// Nobody is told of addresses while the paths are full, also where the agents are away,
// but for so many connections as there is room for.
func TestAConnectionThatLastsIsToldWhenThereIsRoomOnThePaths(t *testing.T) {
	l := newLab(t, pathmanager.OpenAfter{Bytes: 256 << 10, Time: time.Hour})
	address := l.server.Serve(4)
	l.settle(t)
	room := func(places int, validity time.Duration) {
		t.Helper()
		require.NoError(t, l.holder.SetRoom("another", 0, validity))
		require.NoError(t, l.holder.SetRoom("team", places, validity))
	}
	room(0, time.Hour)
	var connections []net.Conn
	for range 3 {
		connection := connect(t, l.client, address)
		echo(t, connection, 1<<20)
		connections = append(connections, connection)
	}
	time.Sleep(300 * time.Millisecond)
	echoAll := func() {
		for _, connection := range connections {
			echo(t, connection, 1000)
		}
	}
	echoAll()
	require.Zero(t, announcedTo(t, l.client))
	room(1, time.Hour)
	echoAll()
	l.client.ExpectSubflows(connections[0], subflows)
	l.client.ExpectSubflows(connections[1], 1)
	l.client.ExpectSubflows(connections[2], 1)
	room(0, 0)
	l.leave(t)
	testutil.Retry(t, 20*time.Second, func() error { // one after the other
		echoAll()
		return atLeast(len(connections)*(subflows-1), joinedTo(t, l.server))
	})
	for _, connection := range connections {
		l.client.ExpectSubflows(connection, subflows)
	}
}

// Many connections that begin together and rest may all send at the same time later. Those that send get
// theirs meanwhile.
func TestFewOfManyConnectionsThatRestGetTheirSubflowsAtOnce(t *testing.T) {
	const many = 2 * announcements.TurnsAtOnce
	l := newLab(t, usual)
	address := l.server.Serve(4)
	l.settle(t)
	taken := l.turns(t)
	l.leave(t)
	began := time.Now()
	for range many {
		connect(t, l.client, address)
	}
	time.Sleep(2 * usual.Time)
	sends := connect(t, l.client, address)
	echo(t, sends, 256<<10)
	l.client.ExpectSubflows(sends, subflows)
	testutil.Retry(t, 20*time.Second, func() error { return atLeast(announcements.TurnsAtOnce*(subflows-1), joinedTo(t, l.server)) })
	joined := joinedTo(t, l.server)
	took := time.Since(began)
	t.Logf("%d subflows joined %d connections within %s", joined, many+1, took)
	turns := announcements.TurnsAtOnce + int(took/announcements.TurnEvery) + 1
	require.LessOrEqual(t, joined, (turns+1)*(subflows-1))
	require.NotZero(t, entriesOf(t, taken), "nobody took a turn")
}

// Those whose policy has them wait for few bytes do not rest.
func TestManyConnectionsThatMovedWhatTheyWaitForGetTheirSubflowsAtOnce(t *testing.T) {
	const many = 4 * announcements.TurnsAtOnce
	l := newLab(t, pathmanager.OpenAfter{Bytes: 8 << 10, Time: time.Hour})
	address := l.server.Serve(4)
	l.settle(t)
	turns := l.turns(t)
	l.leave(t)
	for range many {
		connection := connect(t, l.client, address)
		echo(t, connection, 16<<10)
		l.client.ExpectSubflows(connection, subflows)
	}
	require.Zero(t, entriesOf(t, turns), "they took turns")
}

// turns is the map of the namespaces' turns, also when the agent has left.
func (l *lab) turns(t *testing.T) *ebpf.Map {
	t.Helper()
	turns, err := l.holder.loaded.Value.Turns.Clone()
	require.NoError(t, err)
	t.Cleanup(func() { turns.Close() })
	return turns
}

func entriesOf(t *testing.T, m *ebpf.Map) (entries int) {
	t.Helper()
	var key, value []byte
	all := m.Iterate()
	for all.Next(&key, &value) {
		entries++
	}
	require.NoError(t, all.Err())
	return entries
}

// A download, whose server sends data alone, and an upload, whose server acknowledges
// alone, are told in time, and lose nothing.
func TestALargeTransferGetsItsSubflowsBeforeTheKernelRepeatsItsAnnouncement(t *testing.T) {
	for name, transfer := range map[string]func(t *testing.T, client, server net.Conn){
		"download": func(t *testing.T, client, server net.Conn) { carry(t, server, client) },
		"upload":   func(t *testing.T, client, server net.Conn) { carry(t, client, server) },
	} {
		t.Run(name, func(t *testing.T) {
			forBoth(t, func(t *testing.T, version int) {
				l := newLab(t, pathmanager.OpenAfter{Bytes: 256 << 10, Time: time.Hour})
				listener, err := l.server.Listen(t.Context(), "tcp", netip.AddrPortFrom(l.server.Address(version), 0).String())
				require.NoError(t, err)
				defer listener.Close()
				l.settle(t)
				repeatLate(t, l.server, version)
				client, err := l.client.Dial(t.Context(), "tcp", listener.Addr().String())
				require.NoError(t, err)
				defer client.Close()
				server, err := listener.Accept()
				require.NoError(t, err)
				defer server.Close()
				began, told := time.Now(), l.told(t)
				transfer(t, client, server)
				transferred := time.Since(began)
				l.client.ExpectSubflows(client, subflows)
				after := (<-told).Sub(began)
				t.Logf("transferred in %s, told after %s, all subflows after %s", transferred, after, time.Since(began))
				require.Less(t, after, repetition)
			})
		})
	}
}

// repetition is when a kernel repeats an announcement that nobody echoed, at the soonest.
const repetition = 5 * time.Second

// repeatLate has the kernel wait so long: as long as for an acknowledgement.
func repeatLate(t *testing.T, host *pair.Host, version int) {
	t.Helper()
	family := fmt.Sprintf("-%d", version)
	route, err := host.Run("ip", family, "route", "show", "default")
	require.NoError(t, err)
	change := append([]string{family, "route", "replace"}, strings.Fields(route)...)
	_, err = host.Run("ip", append(change, "rto_min", repetition.String())...)
	require.NoError(t, err)
}

// told is when the client is told of an address.
func (l *lab) told(t *testing.T) <-chan time.Time {
	told := make(chan time.Time, 1)
	go func() {
		for announcedTo(t, l.client) == 0 {
			time.Sleep(time.Millisecond)
		}
		told <- time.Now()
	}()
	return told
}

// carry sends 8 MiB one way, after a byte of the client.
func carry(t testing.TB, from, to net.Conn) {
	t.Helper()
	const bytes = 8 << 20
	failed := make(chan error, 1)
	go func() {
		_, err := from.Write(make([]byte, bytes))
		failed <- err
	}()
	_, err := io.CopyN(io.Discard, to, bytes)
	require.NoError(t, err)
	require.NoError(t, <-failed)
}

// To verify it takes 0.1 s, which no pod is to wait for.
func TestTheProgramIsLoadedAsLongAsThereArePaths(t *testing.T) {
	h := Open(Options{PinPath: testutil.BPFFS(t), Log: testr.New(t)})
	t.Cleanup(func() { require.NoError(t, h.Remove(context.Background())) })
	for _, round := range []struct {
		paths  []node.Path
		loaded bool
	}{{nil, false}, {[]node.Path{{Name: "blue"}}, true}, {[]node.Path{{Name: "blue"}}, true}, {nil, false}} {
		report := h.Apply(t.Context(), &node.Model{Paths: round.paths})
		require.True(t, report.Done(), report.Err)
		require.Equal(t, round.loaded, h.loaded.Is())
		require.Equal(t, round.loaded, h.loaded.Exists())
	}
}
