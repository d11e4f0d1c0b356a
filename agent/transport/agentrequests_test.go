// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/go-logr/logr"
	"github.com/go-logr/logr/testr"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"braid.dev/braid/agent/node/nodetest"
	"braid.dev/braid/agent/schedule"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/bpf/transport"
	"braid.dev/braid/internal/lab/ends"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/mptcpnl"
	"braid.dev/braid/internal/testutil"
)

// Two paths: the connection begins on the first.
const first, second = 0, 1

// requesting are two hosts with two paths between them: the client asks, and the server, whose
// subflows the agent manages, has a thin stream to send.
type requesting struct {
	*network.Network
	client, server     *network.Node
	scheduler          *schedule.Scheduler
	part               *Part
	directory          string
	toClient, toServer net.Conn
	diagnostics        *mptcpnl.Diagnostics
	manager            v1alpha1.SubflowManager
}

func newScheduled(t *testing.T, delays map[string]time.Duration) *requesting {
	t.Helper()
	w := &requesting{directory: testutil.BPFFS(t), manager: v1alpha1.SubflowManagerAgent}
	w.Network = network.ForTest(t, network.Spec{Nodes: 2, Paths: []string{"first", "second"}, LinkMbit: 100, IPv4: true, PathDelays: delays})
	w.client, w.server = w.Nodes[0], w.Nodes[1]
	for _, host := range w.Nodes {
		require.NoError(t, host.Sysctl("net.mptcp.pm_type", "1"))
		w.listenForEvents(t, host)
	}
	var err error
	w.diagnostics, err = mptcpnl.DialDiagnosticsAt(w.server.Path())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.diagnostics.Close()) })
	w.start(t)
	t.Cleanup(func() {
		require.NoError(t, w.part.Remove(context.Background()))
		require.NoError(t, w.scheduler.Close())
	})
	return w
}

// start begins an agent, which knows nothing of one before.
func (w *requesting) start(t *testing.T) {
	t.Helper()
	w.scheduler = schedule.Open(func(uint32, netip.AddrPort, netip.AddrPort) uint64 { return 0 }, logr.Discard())
	w.part = Open(Options{
		PinPath: w.directory, NamespaceDirectories: []string{network.Directory}, AgentRequests: w.scheduler.SetRequests, Log: testr.NewWithInterface(t, testr.Options{}),
	})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	part, scheduler := w.part, w.scheduler
	running.Go(func() { _ = part.Run(ctx) })
	running.Go(func() { _ = scheduler.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
}

// listenForEvents has joins accepted, as with an agent that manages subflows.
func (*requesting) listenForEvents(t *testing.T, host *network.Node) {
	t.Helper()
	file, err := os.Open(host.Path())
	require.NoError(t, err)
	defer file.Close()
	subscription, err := mptcpnl.Subscribe(int(file.Fd()))
	require.NoError(t, err)
	t.Cleanup(func() { _ = subscription.Close() })
}

func (w *requesting) apply(t *testing.T, client, server *v1alpha1.Transport) {
	t.Helper()
	model := nodetest.Model(nodetest.Pod{UID: "client", Namespace: w.client.Path()}, nodetest.Pod{UID: "server", Namespace: w.server.Path()})
	model.Endpoints[0].Transport, model.Endpoints[1].Transport = client, server
	model.Endpoints[1].Subflows.Manager = w.manager
	require.NoError(t, nodetest.Failures(w.part.Apply(t.Context(), model)))
}

// connect makes a connection of two subflows.
func (w *requesting) connect(t *testing.T) {
	t.Helper()
	listener, err := w.server.Listen(context.Background(), "tcp", net.JoinHostPort("0.0.0.0", port))
	require.NoError(t, err)
	defer listener.Close()
	w.toServer, err = w.client.Dial(context.Background(), "tcp", net.JoinHostPort(w.server.Address(first, 4), port))
	require.NoError(t, err)
	w.toClient, err = listener.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { _ = w.toServer.Close(); _ = w.toClient.Close() })
	w.exchange(t, 1000)
	file, err := os.Open(w.client.Path())
	require.NoError(t, err)
	defer file.Close()
	manager, err := mptcpnl.Dial(int(file.Fd()))
	require.NoError(t, err)
	defer manager.Close()
	diagnostics, err := mptcpnl.DialDiagnosticsAt(w.client.Path())
	require.NoError(t, err)
	defer diagnostics.Close()
	subflows, err := diagnostics.Subflows(0)
	require.NoError(t, err)
	require.Len(t, subflows, 1)
	local := mptcpnl.Endpoint{Address: netip.MustParseAddr(w.client.Address(second, 4)), ID: 2}
	to := netip.MustParseAddrPort(net.JoinHostPort(w.server.Address(second, 4), port))
	require.NoError(t, manager.CreateSubflow(subflows[0].Token, local, to))
	w.eventually(t, 10*time.Second, "there are two subflows", func(of [2]mptcpnl.Subflow) bool { return of[second].Established })
}

// exchange has the server send, and the client acknowledge.
func (w *requesting) exchange(t *testing.T, bytes int) {
	t.Helper()
	require.NoError(t, errors.Join(w.toClient.SetDeadline(time.Now().Add(20*time.Second)), w.toServer.SetDeadline(time.Now().Add(20*time.Second))))
	failed := make(chan error, 1) // both ends may not have room for all of it
	go func() { _, err := w.toClient.Write(make([]byte, bytes)); failed <- err }()
	_, err := io.ReadFull(w.toServer, make([]byte, bytes))
	require.NoError(t, errors.Join(err, <-failed))
}

// subflows are the server's.
func (w *requesting) subflows(t *testing.T) (of [2]mptcpnl.Subflow) {
	t.Helper()
	all, err := w.diagnostics.Subflows(0)
	require.NoError(t, err)
	for _, subflow := range all {
		if subflow.Local.Addr().String() == w.server.Address(second, 4) {
			of[second] = subflow
		} else {
			of[first] = subflow
		}
	}
	return of
}

// eventually has a thin stream flow until something is so.
func (w *requesting) eventually(t *testing.T, within time.Duration, what string, so func([2]mptcpnl.Subflow) bool) {
	t.Helper()
	testutil.Eventually(t, within, what, func() bool {
		w.exchange(t, 500)
		return so(w.subflows(t))
	})
}

// carried is what each subflow has sent of a thin stream of so many messages.
func (w *requesting) carried(t *testing.T, messages int) (bytes [2]uint64) {
	t.Helper()
	before := w.subflows(t)
	for range messages {
		w.exchange(t, 500)
	}
	after := w.subflows(t)
	return [2]uint64{after[first].TCP.SentBytes - before[first].TCP.SentBytes, after[second].TCP.SentBytes - before[second].TCP.SentBytes}
}

func only(used int) func([2]mptcpnl.Subflow) bool {
	return func(of [2]mptcpnl.Subflow) bool { return !of[used].BackupWanted && of[1-used].BackupWanted }
}

func noneRests(of [2]mptcpnl.Subflow) bool {
	return !of[first].BackupWanted && !of[second].BackupWanted
}

func asksThreshold() *v1alpha1.Transport {
	return &v1alpha1.Transport{Request: &v1alpha1.TransportRequest{DelayThreshold: after(100 * time.Millisecond)}}
}

func acceptsThreshold(least time.Duration, from v1alpha1.CIDR) *v1alpha1.Transport {
	return &v1alpha1.Transport{Accept: &v1alpha1.TransportAcceptance{From: []v1alpha1.CIDR{from}, MinDelayThreshold: after(least)}}
}

const anybody = "0.0.0.0/0"

func TestAThinStreamMovesAboveTheDelayThresholdAndComesBack(t *testing.T) {
	w := newScheduled(t, map[string]time.Duration{"first": 5 * time.Millisecond, "second": 20 * time.Millisecond})
	w.apply(t, asksThreshold(), acceptsThreshold(20*time.Millisecond, anybody))
	w.connect(t)
	w.eventually(t, 15*time.Second, "the second subflow rests", only(first))
	if got := w.carried(t, 20); got[first] < 10_000 || got[second] > 0 {
		t.Errorf("of 20 messages the subflows carried %v bytes", got)
	}
	require.NoError(t, w.SetDelay("first", 150*time.Millisecond))
	slow := time.Now()
	w.eventually(t, 30*time.Second, "the first subflow rests", only(second))
	t.Logf("the stream moved %s after the first path became slow", time.Since(slow).Round(10*time.Millisecond))
	if got := w.carried(t, 20); got[second] < 10_000 || got[first] > 0 {
		t.Errorf("while the first path is slow the subflows carried %v bytes of 20 messages", got)
	}
	require.NoError(t, w.SetDelay("first", 5*time.Millisecond))
	fast := time.Now()
	w.eventually(t, 60*time.Second, "the second subflow rests again", only(first))
	t.Logf("it was back %s after that path was fast again", time.Since(fast).Round(10*time.Millisecond))
	w.apply(t, nil, acceptsThreshold(20*time.Millisecond, anybody))
	w.eventually(t, 30*time.Second, "nothing rests when nobody asks any more", noneRests)
}

func TestAThresholdIsBroughtToWhatIsAcceptedAndNothingRestsOtherwise(t *testing.T) {
	for name, c := range map[string]struct {
		accepts *v1alpha1.Transport
		manager v1alpha1.SubflowManager
		moves   bool // above 100 ms
		rests   bool
	}{
		"a least threshold of a second":           {acceptsThreshold(time.Second, anybody), v1alpha1.SubflowManagerAgent, false, true},
		"a policy that accepts from others alone": {acceptsThreshold(time.Millisecond, "192.0.2.0/24"), v1alpha1.SubflowManagerAgent, false, false},
		"a kernel's path manager":                 {acceptsThreshold(time.Millisecond, anybody), v1alpha1.SubflowManagerKernel, false, false},
		"no policy":                               {nil, v1alpha1.SubflowManagerAgent, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newScheduled(t, map[string]time.Duration{"first": 100 * time.Millisecond, "second": 5 * time.Millisecond})
			w.manager = c.manager
			w.apply(t, asksThreshold(), c.accepts)
			w.connect(t)
			if c.rests {
				w.eventually(t, 15*time.Second, "the second subflow rests", only(first))
			}
			for begun := time.Now(); time.Since(begun) < 3*time.Second; {
				w.exchange(t, 500)
				if of := w.subflows(t); c.rests != only(first)(of) || !c.rests && !noneRests(of) {
					t.Fatalf("the subflows are %+v", of)
				}
			}
		})
	}
}

func TestAStreamThatIsNotThinUsesAllSubflows(t *testing.T) {
	w := newScheduled(t, map[string]time.Duration{"first": 5 * time.Millisecond, "second": 5 * time.Millisecond})
	w.apply(t, asksThreshold(), acceptsThreshold(time.Millisecond, anybody))
	w.connect(t)
	w.eventually(t, 15*time.Second, "the second subflow rests", only(first))
	testutil.Eventually(t, 15*time.Second, "nothing rests", func() bool {
		w.exchange(t, 2<<20)
		return noneRests(w.subflows(t))
	})
	w.eventually(t, 15*time.Second, "the second subflow rests again", only(first))
}

func TestAServerSchedulesAsItsPeerAsksAndGoesBackWhenItsPolicyGoes(t *testing.T) {
	w := newScheduled(t, map[string]time.Duration{"first": 2 * time.Millisecond, "second": 100 * time.Millisecond})
	asks := &v1alpha1.Transport{Request: &v1alpha1.TransportRequest{Schedule: v1alpha1.StrategyEarliestCompletionFirst}}
	accepts := &v1alpha1.Transport{Accept: &v1alpha1.TransportAcceptance{From: []v1alpha1.CIDR{anybody}, Schedules: []string{v1alpha1.StrategyEarliestCompletionFirst}}}
	w.apply(t, asks, acceptsThreshold(time.Millisecond, anybody)) // but no strategy
	w.connect(t)
	for range 20 {
		w.exchange(t, 64<<10)
	}
	require.True(t, noneRests(w.subflows(t)), "a strategy that is not accepted is not carried out")
	w.apply(t, asks, accepts)
	rests := func() bool { w.exchange(t, 64<<10); return only(first)(w.subflows(t)) }
	testutil.Eventually(t, 20*time.Second, "the slow subflow rests", rests)
	begun := time.Now()
	for range 20 {
		w.exchange(t, 64<<10)
	}
	if took := time.Since(begun); took > 20*100*time.Millisecond {
		t.Errorf("20 chunks took %s, as if half of them had gone the slow way", took)
	}
	w.apply(t, asks, nil)
	require.True(t, noneRests(w.subflows(t)), "when its policy is gone nothing rests")
}

// What an earlier agent did is undone also where nobody asks any more, or its policy went.
func TestAnAgentUndoesWhatPeersAskedTheOneBeforeFor(t *testing.T) {
	for name, end := range map[string]func(*testing.T, *requesting){
		"the policy went":            func(t *testing.T, w *requesting) { w.apply(t, nil, nil) },
		"the agent's work is undone": func(t *testing.T, w *requesting) { require.NoError(t, w.part.Remove(t.Context())) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newScheduled(t, map[string]time.Duration{"first": 5 * time.Millisecond, "second": 20 * time.Millisecond})
			w.apply(t, asksThreshold(), acceptsThreshold(time.Millisecond, anybody))
			w.connect(t)
			w.eventually(t, 15*time.Second, "the second subflow rests", only(first))
			require.NoError(t, errors.Join(w.part.Close(), w.scheduler.Close()))
			require.True(t, only(first)(w.subflows(t)))
			w.start(t)
			end(t, w)
			require.True(t, noneRests(w.subflows(t)))
		})
	}
}

// A peer that is silent, here because nothing passes any more, is given up in time.
func TestAConnectionOfASilentPeerEndsAfterTheInactivityTimeout(t *testing.T) {
	p := newPair(t, nil)
	asks := &v1alpha1.Transport{Request: &v1alpha1.TransportRequest{InactivityTimeout: after(4 * time.Second)}}
	accepts := &v1alpha1.Transport{Accept: &v1alpha1.TransportAcceptance{From: []v1alpha1.CIDR{"10.0.0.0/8"}, MaxInactivityTimeout: after(time.Hour)}}
	p.apply(t, asks, accepts)
	p.serve(t, p.server.IPv4)
	client, server := p.connect(t, "TCP", p.server.IPv4)
	await(t, p, client, server, func(s shown) error {
		if s.probing != (keepalive{1, 3, 1, 1}) {
			return fmt.Errorf("the server's socket has %+v", s)
		}
		return nil
	})
	time.Sleep(5 * time.Second)
	ends.Talk(t, client, server) // a peer that lives answers probes
	require.NoError(t, server.SetReadDeadline(time.Now().Add(20*time.Second)))
	_, err := p.client.Node.Run("ip", "link", "set", p.client.HostInterface, "down")
	require.NoError(t, err)
	begun := time.Now()
	_, err = server.Read(make([]byte, 1))
	require.ErrorIs(t, err, unix.ETIMEDOUT)
	if took := time.Since(begun); took < 3*time.Second || took > 7*time.Second {
		t.Errorf("it was given up after %s, and 4 s were asked for", took)
	}
}

// Of one endpoint peers can have no more noted than there is room for.
func TestPeersOfOneEndpointTakeNoRoomOfOthers(t *testing.T) {
	w := newScheduled(t, nil)
	w.apply(t, asksThreshold(), acceptsThreshold(time.Millisecond, anybody))
	w.connect(t)
	w.part.mutex.Lock()
	counts, requests := w.part.loaded.Value.AgentRequestCounts, w.part.loaded.Value.AgentRequests
	w.part.mutex.Unlock()
	var cookie uint64
	var noted uint32
	keys := counts.Iterate()
	require.True(t, keys.Next(&cookie, &noted))
	var key agentRequestKey
	var request transport.TransportAgentRequest
	w.part.mutex.Lock() // nobody counts anew
	defer w.part.mutex.Unlock()
	all := requests.Iterate()
	for all.Next(&key, &request) {
		require.NoError(t, requests.Delete(key))
		all = requests.Iterate()
	}
	require.NoError(t, counts.Put(cookie, uint32(transport.MaxAgentRequestsOfEndpoint)))
	for range 30 {
		w.exchange(t, 500)
		time.Sleep(100 * time.Millisecond)
	}
	require.False(t, requests.Iterate().Next(&key, &request), "an endpoint whose room is used has one more noted")
	require.NoError(t, counts.Put(cookie, uint32(0)))
	testutil.Eventually(t, 10*time.Second, "it is noted where there is room", func() bool {
		w.exchange(t, 500)
		return !errors.Is(counts.Lookup(cookie, &noted), ebpf.ErrKeyNotExist) && noted > 0
	})
}

func TestWhereNobodyKnowsWhichStreamsAreThinAThresholdIsNotAccepted(t *testing.T) {
	for _, tells := range []bool{true, false} {
		exchange := exchangeOf(acceptsThreshold(time.Millisecond, anybody), nil, false)
		message := withoutBacklog(tells, &exchange)
		require.Equal(t, tells, message == "")
		require.Equal(t, tells, exchange.Acceptance.Allowed != 0)
	}
}

func TestAPodWithoutItsAgentsPathManagerIsToldWhatNoPeerGets(t *testing.T) {
	w := newScheduled(t, nil)
	model := nodetest.Model(nodetest.Pod{UID: "server", Namespace: w.server.Path()})
	model.Endpoints[0].Transport = acceptsThreshold(time.Millisecond, anybody)
	model.Endpoints[0].Subflows.Manager = v1alpha1.SubflowManagerKernel
	report := w.part.Apply(t.Context(), model)
	require.NoError(t, nodetest.Failures(report))
	var status v1alpha1.EndpointStatus
	report.Endpoints["server"].Describe(&status)
	require.Contains(t, status.Message, "schedules and minDelayThreshold need subflows.manager: Agent")
}
