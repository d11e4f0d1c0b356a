// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"

	"braid.dev/braid/agent/node/nodetest"
	"braid.dev/braid/agent/pathmanager"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/testutil"
)

// A far server, and how much it sends to whoever connects.
const (
	roundTrip = 100 * time.Millisecond
	shortFlow = 100_000
)

// TestAShortFlowNeedsOneRoundTripWithAWideWindow measures what initialWindow of the sender
// and receiveBuffer of the receiver do together, and what they do when the receiver asks
// for the window, from the moment at which the connection is established.
func TestAShortFlowNeedsOneRoundTripWithAWideWindow(t *testing.T) {
	n := network.ForTest(t, network.Spec{Nodes: 2, Paths: []string{"net1"}, PodsPerNode: 1, PathDelays: map[string]time.Duration{"net1": roundTrip / 2}})
	client, server := n.Nodes[0].Pods[0], n.Nodes[1].Pods[0]
	serveShortFlows(t, server)
	part := openWide(t)
	plain := median(t, client, server)
	model := nodetest.Model(nodetest.Pod{UID: "client", Namespace: client.Path()}, nodetest.Pod{UID: "server", Namespace: server.Path()})
	model.Endpoints[0].Transport = &v1alpha1.Transport{ReceiveBuffer: resource.NewQuantity(1<<20, resource.BinarySI)}
	model.Endpoints[1].Transport = &v1alpha1.Transport{InitialWindow: new(int32(80))}
	require.NoError(t, nodetest.Failures(part.Apply(t.Context(), model)))
	buffer(t, client, 1<<20)
	wide := median(t, client, server)
	model.Endpoints[0].Transport.Request = &v1alpha1.TransportRequest{InitialWindow: new(int32(80))}
	model.Endpoints[1].Transport = &v1alpha1.Transport{Accept: &v1alpha1.TransportAcceptance{From: []v1alpha1.CIDR{"0.0.0.0/0"}, MaxInitialWindow: new(int32(80))}}
	require.NoError(t, nodetest.Failures(part.Apply(t.Context(), model)))
	asked := map[string]time.Duration{}
	for _, protocol := range []string{"TCP", "MPTCP"} {
		asked[protocol] = medianOf(t, protocol, client, server)
		testutil.Figure(t, "transport.iw."+protocol+".ms", "ms", float64(asked[protocol].Milliseconds()))
		if asked[protocol] > 3*roundTrip/2 {
			t.Errorf("100 kB by %s take %v with the window that the client asks for", protocol, asked[protocol])
		}
	}
	testutil.Figure(t, "transport.local_window.plain_rtt", "RTT", float64(plain)/float64(roundTrip))
	testutil.Figure(t, "transport.local_window.wide_rtt", "RTT", float64(wide)/float64(roundTrip))
	if plain < 5*roundTrip/2 || wide > 2*roundTrip {
		t.Errorf("100 kB take %v with the kernel's own window, and %v with one of 80 segments", plain, wide)
	}
}

func openWide(t *testing.T) *Part {
	t.Helper()
	part := Open(Options{PinPath: testutil.BPFFS(t), NamespaceDirectories: []string{network.Directory}, Log: testr.New(t)})
	t.Cleanup(func() { require.NoError(t, part.Remove(context.Background())) })
	return part
}

// buffer gives the sockets of MPTCP connections what the others have from this package, as the
// agent's path manager does.
func buffer(t *testing.T, pod *network.Pod, bytes int64) {
	t.Helper()
	manager, err := pathmanager.Open(pod.Path(), pathmanager.Options{StatePath: t.TempDir(), Log: testr.New(t)})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, manager.Close()) })
	require.NoError(t, manager.Configure(t.Context(), pathmanager.Settings{Manager: v1alpha1.SubflowManagerAgent, Count: 1}))
	require.NoError(t, manager.SetReceiveBuffer(bytes))
}

// A receiver whose application reads late has room for what the wide window brings meanwhile:
// else its kernel would drop what it had announced a window for, and say that there is none.
func TestAReaderThatIsLateLosesNothingOfAWideWindow(t *testing.T) {
	n := network.ForTest(t, network.Spec{Nodes: 2, Paths: []string{"net1"}, PodsPerNode: 1, PathDelays: map[string]time.Duration{"net1": roundTrip / 2}})
	client, server := n.Nodes[0].Pods[0], n.Nodes[1].Pods[0]
	serveShortFlows(t, server)
	part := openWide(t)
	model := nodetest.Model(nodetest.Pod{UID: "client", Namespace: client.Path()}, nodetest.Pod{UID: "server", Namespace: server.Path()})
	model.Endpoints[0].Transport = &v1alpha1.Transport{ReceiveBuffer: resource.NewQuantity(1<<20, resource.BinarySI)}
	model.Endpoints[1].Transport = &v1alpha1.Transport{InitialWindow: new(int32(80))}
	require.NoError(t, nodetest.Failures(part.Apply(t.Context(), model)))
	buffer(t, client, 1<<20)
	for _, protocol := range []string{"TCP", "MPTCP"} {
		before := sentAgain(t, server)
		connection := dial(t, protocol, client, server)
		time.Sleep(5 * roundTrip) // all has come by then
		received, err := io.Copy(io.Discard, connection)
		require.NoError(t, err)
		require.EqualValues(t, shortFlow, received)
		require.NoError(t, connection.Close())
		if again := sentAgain(t, server) - before; again > 0 {
			t.Errorf("the sender sent %d segments again by %s", again, protocol)
		}
	}
}

func serveShortFlows(t *testing.T, server *network.Pod) {
	t.Helper()
	listener, err := server.Listen(context.Background(), "tcp", net.JoinHostPort(server.IPv4, port))
	require.NoError(t, err)
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = connection.Write(make([]byte, shortFlow))
			_ = connection.Close()
		}
	})
	t.Cleanup(func() { _ = listener.Close(); serving.Wait() })
}

func median(t *testing.T, client, server *network.Pod) time.Duration {
	t.Helper()
	return medianOf(t, "TCP", client, server)
}

// medianOf five, of the time from the connection's being established.
func medianOf(t *testing.T, protocol string, client, server *network.Pod) time.Duration {
	t.Helper()
	var times []time.Duration
	for range 5 {
		connection := dial(t, protocol, client, server)
		begun := time.Now()
		received, err := io.Copy(io.Discard, connection)
		require.NoError(t, err)
		times = append(times, time.Since(begun))
		require.EqualValues(t, shortFlow, received)
		require.NoError(t, connection.Close())
	}
	slices.Sort(times)
	return times[len(times)/2]
}

func dial(t *testing.T, protocol string, client, server *network.Pod) (connection net.Conn) {
	t.Helper()
	require.NoError(t, client.Do(func() (err error) {
		dialer := net.Dialer{}
		dialer.SetMultipathTCP(protocol == "MPTCP")
		connection, err = dialer.DialContext(t.Context(), "tcp", net.JoinHostPort(server.IPv4, port))
		return err
	}))
	return connection
}

// sentAgain is how many segments the pod's kernel has sent again so far.
func sentAgain(t *testing.T, pod *network.Pod) int {
	t.Helper()
	segments, err := pod.KernelCounter("TcpRetransSegs")
	require.NoError(t, err)
	return segments
}

func TestWhereNobodyReachesTheBuffersOfConnectionsTheStatusSaysSo(t *testing.T) {
	const none, kernel = v1alpha1.SubflowManagerNone, v1alpha1.SubflowManagerKernel
	for _, test := range []struct {
		name     string
		keep     bool // connections have a buffer of their own
		manager  v1alpha1.SubflowManager
		buffer   *resource.Quantity
		mentions bool
	}{
		{"the path manager sets them", true, kernel, resource.NewQuantity(1<<20, resource.BinarySI), false},
		{"no path manager", true, none, resource.NewQuantity(1<<20, resource.BinarySI), true},
		{"a kernel where they follow the subflows'", false, none, resource.NewQuantity(1<<20, resource.BinarySI), false},
		{"no size is given", true, none, nil, false},
	} {
		endpoint := &nodetest.Model(nodetest.Pod{UID: "client"}).Endpoints[0]
		endpoint.Subflows.Manager, endpoint.Transport = test.manager, &v1alpha1.Transport{ReceiveBuffer: test.buffer}
		if got := withoutManager(test.keep, endpoint); (got != "") != test.mentions {
			t.Errorf("%s: the message is %q", test.name, got)
		}
	}
}
