// SPDX-License-Identifier: Apache-2.0

package announcements

import (
	"net"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/agent/pathmanager"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/bpf/announcements"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/pair"
)

// agentLab is two nodes whose agents open the subflows.
type agentLab struct {
	*lab
	options []pathmanager.Options // of the client's node and the server's
	after   []pathmanager.OpenAfter
}

// newAgentLab lets the client's and the server's pods have different policies.
func newAgentLab(t testing.TB, isTold bool, after ...pathmanager.OpenAfter) *agentLab {
	t.Helper()
	l := &agentLab{lab: &lab{}, after: after}
	l.Network = network.ForTest(t, network.Spec{Nodes: 2, Paths: []string{"blue"}, PodsPerNode: 1})
	for i, on := range l.Nodes {
		l.options = append(l.options, holdFor(t, on, isTold, v1alpha1.PlanSubflows{
			Manager: v1alpha1.SubflowManagerAgent, Count: subflows,
			OpenAfterBytes: int64(after[i].Bytes), OpenAfterMillis: after[i].Time.Milliseconds(),
		}))
		l.managers = append(l.managers, nil)
		l.begin(t, i)
	}
	return l
}

func newAgentLabForTest(t *testing.T, after ...pathmanager.OpenAfter) *agentLab {
	t.Helper()
	l := newAgentLab(t, true, after...)
	l.client, l.server = hostOf(t, l.Nodes[0].Pods[0]), hostOf(t, l.Nodes[1].Pods[0])
	return l
}

// begin is the beginning of a node's agent.
func (l *agentLab) begin(t testing.TB, node int) {
	t.Helper()
	l.managers[node] = manageBy(t, l.Nodes[node], l.options[node], pathmanager.Settings{
		Manager: v1alpha1.SubflowManagerAgent, Count: subflows, OpenAfter: l.after[node],
	})
}

// waits are what the programs know of the nodes' pods.
func (l *agentLab) waits(t testing.TB) []announcements.HoldWait {
	t.Helper()
	all := make([]announcements.HoldWait, len(l.options))
	for i, of := range l.options {
		require.NoError(t, of.Watcher.(*Holder).loaded.Value.Waits.Lookup(uint32(of.Interfaces[0]), &all[i]))
	}
	return all
}

// kill has agents be away that could not say so.
func (l *agentLab) kill(t *testing.T) {
	t.Helper()
	before := l.waits(t)
	for _, manager := range l.managers {
		require.NoError(t, manager.Close())
	}
	for i, of := range l.options {
		require.NoError(t, of.Watcher.(*Holder).loaded.Value.Waits.Put(uint32(of.Interfaces[0]), &before[i]))
	}
}

func shortOnes(t *testing.T, times int, to func() net.Conn) {
	t.Helper()
	for range times {
		connection := to()
		echo(t, connection, 1000)
		require.NoError(t, connection.Close())
	}
}

func TestNobodyListensToPodsWhoseSubflowsTheAgentOpensUntilAConnectionLasts(t *testing.T) {
	l := newAgentLabForTest(t, usual, usual)
	address := l.server.Serve(4)
	shortOnes(t, 5, func() net.Conn { return connect(t, l.client, address) })
	l.awaitRest(t, l.client, l.server)
	for range 3 {
		shortOnes(t, 20, func() net.Conn { return connect(t, l.client, address) })
		time.Sleep(usual.Time)
	}
	for name, host := range map[string]*pair.Host{"client": l.client, "server": l.server} {
		require.Equal(t, 1, genericNetlink(t, host), "the %s's events are listened to", name)
	}
	require.Zero(t, joinedTo(t, l.server))
	connection := connect(t, l.client, address)
	lasts(t, l.client, connection)
	time.Sleep(25 * time.Second) // as long as it lasts both listen
	l.client.ExpectSubflows(connection, subflows)
	for name, host := range map[string]*pair.Host{"client": l.client, "server": l.server} {
		require.Equal(t, 2, genericNetlink(t, host), "nobody listens to the %s's events", name)
	}
	l.client.Kill(l.client.Subflows(connection.LocalAddr())[1])
	l.client.ExpectSubflows(connection, subflows)
	require.NoError(t, connection.Close())
	l.awaitRest(t, l.client, l.server)
}

func TestAConnectionOfAPodAtRestGetsItsSubflowsFromTheAgentOnceItLasts(t *testing.T) {
	bytesAlone := pathmanager.OpenAfter{Bytes: 256 << 10}
	for name, test := range map[string]struct {
		after pathmanager.OpenAfter
		last  func(t *testing.T, connection net.Conn)
	}{
		"by its bytes":       {usual, func(t *testing.T, connection net.Conn) { echo(t, connection, 256<<10) }},
		"by its bytes alone": {bytesAlone, func(t *testing.T, connection net.Conn) { echo(t, connection, 256<<10) }},
		"by its age":         {usual, func(t *testing.T, connection net.Conn) { talk(t, connection, usual.Time+10*time.Millisecond) }},
		"though it is idle":  {usual, func(*testing.T, net.Conn) { time.Sleep(usual.Time) }},
	} {
		t.Run(name, func(t *testing.T) {
			forBoth(t, func(t *testing.T, version int) {
				l := newAgentLabForTest(t, test.after, test.after)
				address := l.server.Serve(version)
				shortOnes(t, 5, func() net.Conn { return connect(t, l.client, address) })
				l.awaitRest(t, l.client, l.server)
				connection := connect(t, l.client, address)
				test.last(t, connection)
				began := time.Now()
				l.client.ExpectSubflows(connection, subflows)
				t.Logf("all subflows are there %s after it has lasted", time.Since(began))
				require.Less(t, time.Since(began), 2*time.Second)
			})
		})
	}
}

// The server has not seen these last, so its kernel would refuse them.
func TestPeersThatJoinAPodAtRestAtOnceAreAcceptedAfterASecond(t *testing.T) {
	forBoth(t, func(t *testing.T, version int) {
		l := newAgentLabForTest(t, pathmanager.OpenAfter{Time: time.Millisecond}, usual)
		address := l.server.Serve(version)
		shortOnes(t, 5, func() net.Conn { return connect(t, l.client, address) })
		l.awaitRest(t, l.server)
		refused := counter(t, l.server, "MPTcpExtMPJoinRejected")
		connection := connect(t, l.client, address)
		began := time.Now()
		l.client.ExpectSubflows(connection, subflows)
		t.Logf("all subflows are there after %s", time.Since(began))
		require.Less(t, time.Since(began), 5*time.Second)
		require.Equal(t, refused, counter(t, l.server, "MPTcpExtMPJoinRejected"))
		require.Equal(t, 2, genericNetlink(t, l.server), "nobody listens to the server's events")
	})
}

func TestAnAgentThatWasKilledWhilePodsRestedMakesGoodForItWhenItIsBack(t *testing.T) {
	l := newAgentLabForTest(t, usual, usual)
	address := l.server.Serve(4)
	shortOnes(t, 5, func() net.Conn { return connect(t, l.client, address) })
	l.awaitRest(t, l.client, l.server)
	l.kill(t)
	for _, wait := range l.waits(t) {
		require.NotZero(t, wait.Tells&announcements.RefusesJoins)
	}
	connection := connect(t, l.client, address)
	echo(t, connection, 1<<20)
	time.Sleep(usual.Time)
	l.client.ExpectSubflows(connection, 1)
	l.begin(t, 0)
	l.begin(t, 1)
	l.client.ExpectSubflows(connection, subflows)
	for _, wait := range l.waits(t) {
		require.Zero(t, wait.Tells&announcements.RefusesJoins)
	}
}

func TestConnectionsOfPodsAtRestGetTheirSubflowsAboutAsSoonAsWhereAllIsListenedTo(t *testing.T) {
	const rounds = 7
	took := map[bool][]float64{}
	for _, isTold := range []bool{false, true} {
		after := pathmanager.OpenAfter{Bytes: 256 << 10, Time: time.Hour}
		l := newAgentLab(t, isTold, after, after)
		l.client, l.server = hostOf(t, l.Nodes[0].Pods[0]), hostOf(t, l.Nodes[1].Pods[0])
		address := l.server.Serve(4)
		for range rounds {
			shortOnes(t, 3, func() net.Conn { return connect(t, l.client, address) })
			if isTold {
				l.awaitRest(t, l.client, l.server)
			}
			connection := connect(t, l.client, address)
			took[isTold] = append(took[isTold], (&onDemandLab{lab: l.lab}).untilSpread(t, connection))
			require.NoError(t, connection.Close())
			for node := range l.Nodes {
				require.NoError(t, l.managers[node].Restore(t.Context()))
				require.NoError(t, l.managers[node].Close())
				l.begin(t, node)
			}
		}
	}
	t.Logf("after so many ms, listened to: %.1f, and at rest: %.1f", took[false], took[true])
	require.Less(t, slices.Min(took[true]), slices.Min(took[false])+50) // the machine may be busy
	require.Less(t, median(took[true]), median(took[false])+500, "joins wait for the server's agent")
}
