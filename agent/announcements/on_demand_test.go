// SPDX-License-Identifier: Apache-2.0

package announcements

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/agent/pathmanager"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/pair"
	"braid.dev/braid/internal/testutil"
)

// usual is what connections wait for by default.
var usual = pathmanager.OpenAfter{Bytes: 256 << 10, Time: 500 * time.Millisecond}

// onDemandLab is two nodes that hold announcements, and are told of what lasts.
type onDemandLab struct {
	*lab
	options []pathmanager.Options // of the client's node and the server's
	after   pathmanager.OpenAfter
}

func newOnDemandLab(t *testing.T, after pathmanager.OpenAfter) *onDemandLab {
	t.Helper()
	l := &onDemandLab{lab: &lab{}, after: after}
	l.Network = network.ForTest(t, network.Spec{Nodes: 2, Paths: []string{"blue"}, PodsPerNode: 1})
	l.client, l.server = hostOf(t, l.Nodes[0].Pods[0]), hostOf(t, l.Nodes[1].Pods[0])
	for i, on := range l.Nodes {
		l.options = append(l.options, holdOn(t, on, true, subflows, after))
		l.begin(t, i)
	}
	return l
}

// begin is the beginning of a node's agent.
func (l *onDemandLab) begin(t *testing.T, node int) {
	t.Helper()
	for len(l.managers) <= node {
		l.managers = append(l.managers, nil)
	}
	l.managers[node] = manageAs(t, l.Nodes[node], l.options[node], subflows, l.after)
}

// announcing is how many endpoints a host announces.
func announcing(t *testing.T, host *pair.Host) int {
	t.Helper()
	out, err := host.Run("ip", "mptcp", "endpoint", "show")
	require.NoError(t, err)
	return strings.Count(out, "signal")
}

// announcedBy is how much a host's kernel has announced; Linux 6.1 does not count it.
func announcedBy(t *testing.T, host *pair.Host) int {
	t.Helper()
	out, err := host.Run("nstat", "--ignore", "--zeros", "--noupdate", "MPTcpExtAddAddrTx")
	require.NoError(t, err)
	if !strings.Contains(out, "MPTcpExtAddAddrTx") {
		return 0
	}
	return counter(t, host, "MPTcpExtAddAddrTx")
}

// beShort has connections be short.
func (l *onDemandLab) beShort(t *testing.T, times int, to func() net.Conn) {
	t.Helper()
	for range times {
		connection := to()
		echo(t, connection, 1000)
		require.NoError(t, connection.Close())
	}
}

func TestAPodWhoseConnectionsStayShortAnnouncesNothing(t *testing.T) {
	forBoth(t, func(t *testing.T, version int) {
		l := newOnDemandLab(t, usual)
		address := l.server.Serve(version)
		connection := func() net.Conn { return connect(t, l.client, address) }
		l.beShort(t, 1, connection)
		l.awaitRest(t, l.client, l.server)
		for range 4 {
			l.beShort(t, 20, connection)
			time.Sleep(usual.Time)
		}
		require.Zero(t, announcing(t, l.server))
		require.Zero(t, announcedBy(t, l.server), "the server's kernel has announced something")
		require.Zero(t, joinedTo(t, l.server))
		require.Equal(t, 1, genericNetlink(t, l.server), "the server's events are listened to")
	})
}

func TestAPodAnnouncesItsAddressesOnceAConnectionLasts(t *testing.T) {
	for name, last := range map[string]func(t *testing.T, connection net.Conn){
		"by its bytes":      func(t *testing.T, connection net.Conn) { echo(t, connection, 256<<10) },
		"by its age":        func(t *testing.T, connection net.Conn) { talk(t, connection, usual.Time+10*time.Millisecond) },
		"though it is idle": func(*testing.T, net.Conn) { time.Sleep(usual.Time) },
	} {
		t.Run(name, func(t *testing.T) {
			forBoth(t, func(t *testing.T, version int) {
				l := newOnDemandLab(t, usual)
				address := l.server.Serve(version)
				l.beShort(t, 5, func() net.Conn { return connect(t, l.client, address) })
				l.awaitRest(t, l.client, l.server)
				connection := connect(t, l.client, address)
				require.Zero(t, announcing(t, l.server))
				last(t, connection)
				began := time.Now()
				l.client.ExpectSubflows(connection, subflows)
				t.Logf("all subflows are there %s after it has lasted", time.Since(began))
				require.Less(t, time.Since(began), time.Second)
			})
		})
	}
}

// talk sends something every few milliseconds.
func talk(t *testing.T, connection net.Conn, lasts time.Duration) {
	t.Helper()
	for began := time.Now(); time.Since(began) < lasts; time.Sleep(5 * time.Millisecond) {
		echo(t, connection, 10)
	}
}

func TestAPodAnnouncesNothingAgainWhenNoConnectionHasLastedForAWhile(t *testing.T) {
	l := newOnDemandLab(t, usual)
	address := l.server.Serve(4)
	connection := connect(t, l.client, address)
	l.client.ExpectSubflows(connection, subflows)
	require.Equal(t, subflows-1, announcing(t, l.server))
	time.Sleep(45 * time.Second) // as long as it lasts
	l.client.ExpectSubflows(connection, subflows)
	require.Equal(t, subflows-1, announcing(t, l.server))
	require.NoError(t, connection.Close())
	testutil.Retry(t, 70*time.Second, func() error {
		l.beShort(t, 3, func() net.Conn { return connect(t, l.client, address) })
		if count := announcing(t, l.server); count > 0 {
			return fmt.Errorf("%d endpoints are announced", count)
		}
		return nil
	})
	connection = connect(t, l.client, address)
	echo(t, connection, 1<<20)
	l.client.ExpectSubflows(connection, subflows)
}

func TestConnectionsThatLastGetTheirSubflowsWhileTheAgentIsAway(t *testing.T) {
	l := newOnDemandLab(t, usual)
	address := l.server.Serve(4)
	l.beShort(t, 5, func() net.Conn { return connect(t, l.client, address) })
	l.awaitRest(t, l.client, l.server)
	early := connect(t, l.client, address)
	require.Zero(t, announcing(t, l.server))
	for _, manager := range l.managers {
		require.NoError(t, manager.Leave())
		require.NoError(t, manager.Close())
	}
	late := connect(t, l.client, address)
	for _, connection := range []net.Conn{early, late} {
		echo(t, connection, 1<<20)
		lasts(t, l.client, connection)
	}
	l.begin(t, 0)
	l.begin(t, 1)
	time.Sleep(3 * time.Second)
	l.client.ExpectSubflows(early, subflows)
	require.Zero(t, counter(t, l.client, "MPTcpExtRmAddr"), "the next agent has taken an announcement back")
}

func TestConnectionsKeepOneSubflowWhileAKilledAgentIsAwayFromAPodAtRest(t *testing.T) {
	l := newOnDemandLab(t, usual)
	address := l.server.Serve(4)
	l.beShort(t, 5, func() net.Conn { return connect(t, l.client, address) })
	l.awaitRest(t, l.client, l.server)
	for _, manager := range l.managers {
		require.NoError(t, manager.Close()) // which tells the pod nothing
	}
	connection := connect(t, l.client, address)
	echo(t, connection, 1<<20)
	time.Sleep(usual.Time)
	l.client.ExpectSubflows(connection, 1)
	l.begin(t, 1)
	l.client.ExpectSubflows(connection, subflows)
}

func TestConnectionsFromBeforeThePolicyGetTheirSubflows(t *testing.T) {
	forBoth(t, func(t *testing.T, version int) {
		l := &onDemandLab{lab: &lab{}, after: usual}
		l.Network = network.ForTest(t, network.Spec{Nodes: 2, Paths: []string{"blue"}, PodsPerNode: 1})
		l.client, l.server = hostOf(t, l.Nodes[0].Pods[0]), hostOf(t, l.Nodes[1].Pods[0])
		connection := connect(t, l.client, l.server.Serve(version))
		for i, on := range l.Nodes {
			l.options = append(l.options, holdOn(t, on, true, subflows, usual))
			l.begin(t, i)
		}
		l.client.ExpectSubflows(connection, subflows)
	})
}

func TestAThousandConnectionsThatBeginAtOnceAllGetTheirSubflows(t *testing.T) {
	l := newOnDemandLab(t, usual)
	address := l.server.Serve(4)
	l.beShort(t, 5, func() net.Conn { return connect(t, l.client, address) })
	l.awaitRest(t, l.client, l.server)
	const many = 1000
	for range many {
		connect(t, l.client, address)
	}
	began := time.Now()
	testutil.Retry(t, time.Minute, func() error {
		return atLeast(many*(subflows-1), counter(t, l.server, "MPTcpExtMPJoinAckRx"))
	})
	t.Logf("all subflows are there %s after the last connection", time.Since(began))
}

// A connection whose pod announces nothing waits for the agent beside what it waits for anyway.
func TestConnectionsGetTheirSubflowsAboutAsSoonAsWhereAllIsAnnouncedBefore(t *testing.T) {
	const rounds = 7
	took, patience := map[bool][]float64{}, testutil.NewPatience()
	for _, isTold := range []bool{false, true} {
		l := &onDemandLab{lab: &lab{}, after: pathmanager.OpenAfter{Bytes: 256 << 10, Time: time.Hour}}
		l.Network = network.ForTest(t, network.Spec{Nodes: 2, Paths: []string{"blue"}, PodsPerNode: 1})
		l.client, l.server = hostOf(t, l.Nodes[0].Pods[0]), hostOf(t, l.Nodes[1].Pods[0])
		for _, on := range l.Nodes {
			l.options = append(l.options, holdOn(t, on, isTold, subflows, l.after))
		}
		l.begin(t, 0)
		address := l.server.Serve(4)
		for range rounds {
			l.begin(t, 1)
			l.beShort(t, 3, func() net.Conn { return connect(t, l.client, address) })
			took[isTold] = append(took[isTold], l.untilSpread(t, connect(t, l.client, address)))
			require.NoError(t, l.managers[1].Restore(t.Context()))
		}
	}
	t.Logf("after so many ms, announced before: %.1f, and told: %.1f", took[false], took[true])
	later := float64(patience.Stretch(50 * time.Millisecond).Milliseconds())
	require.Less(t, slices.Min(took[true]), slices.Min(took[false])+later)
}

// untilSpread has a connection last, and is how many milliseconds later it has its subflows.
func (l *onDemandLab) untilSpread(t *testing.T, connection net.Conn) float64 {
	t.Helper()
	began := time.Now()
	echo(t, connection, 256<<10)
	for len(l.client.Subflows(connection.LocalAddr())) < subflows {
		require.Less(t, time.Since(began), 20*time.Second)
		echo(t, connection, 10)
		time.Sleep(time.Millisecond)
	}
	return float64(time.Since(began).Microseconds()) / 1000
}
