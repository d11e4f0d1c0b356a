// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"braid.dev/braid/agent/node"
	"braid.dev/braid/agent/node/nodetest"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/testutil"
)

// lab is two pods of one node, of which a policy selects the first.
type lab struct {
	*network.Network
	client, server *network.Pod
	directory      string
	part           *Part
}

func newLab(t *testing.T) *lab {
	t.Helper()
	l := &lab{directory: testutil.BPFFS(t)}
	l.Network = network.ForTest(t, network.Spec{Nodes: 1, Paths: []string{"net1"}, PodsPerNode: 2})
	l.client, l.server = l.Nodes[0].Pods[0], l.Nodes[0].Pods[1]
	l.start(t)
	t.Cleanup(func() { require.NoError(t, l.part.Remove(context.Background())) })
	listener, err := l.server.Listen(context.Background(), "tcp", net.JoinHostPort(l.server.IPv4, port))
	require.NoError(t, err)
	var takers sync.WaitGroup
	takers.Go(func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			takers.Go(func() { _, _ = io.Copy(connection, connection); _ = connection.Close() })
		}
	})
	t.Cleanup(func() { _ = listener.Close(); takers.Wait() })
	return l
}

// start stands for an agent that starts anew: it knows nothing of the one before.
func (l *lab) start(t *testing.T) {
	t.Helper()
	l.part = Open(Options{PinPath: l.directory, NamespaceDirectories: []string{network.Directory}, Log: testr.New(t)})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	part := l.part
	go func() { done <- part.Run(ctx) }()
	t.Cleanup(func() { cancel(); require.NoError(t, <-done) })
}

const port = "5001"

// model has the client with these settings; with none it has none at all.
func (l *lab) model(of *v1alpha1.Transport) *node.Model {
	model := nodetest.Model(nodetest.Pod{UID: "client", Name: "shop/client", Namespace: l.client.Path()})
	model.Endpoints[0].Transport = of
	return model
}

func (l *lab) apply(t *testing.T, of *v1alpha1.Transport) node.Report {
	t.Helper()
	report := l.part.Apply(t.Context(), l.model(of))
	require.NoError(t, report.Err)
	return report
}

// dial opens a connection of the client, of this network of Go's, that has carried
// something.
func (l *lab) dial(t *testing.T, protocol string) net.Conn {
	t.Helper()
	var connection net.Conn
	err := l.client.Do(func() (err error) {
		dialer := net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: false}, KeepAlive: -1}
		dialer.SetMultipathTCP(protocol == "MPTCP")
		connection, err = dialer.DialContext(t.Context(), "tcp", net.JoinHostPort(l.server.IPv4, port))
		return err
	})
	require.NoError(t, err)
	t.Cleanup(func() { _ = connection.Close() })
	l.exchange(t, connection)
	return connection
}

func (*lab) exchange(t *testing.T, connection net.Conn) {
	t.Helper()
	_, err := connection.Write([]byte("hello"))
	require.NoError(t, err)
	_, err = io.ReadFull(connection, make([]byte, 5))
	require.NoError(t, err)
}

// options are what a plain TCP socket says of itself.
type options struct {
	congestion                        string
	userTimeout                       int // ms
	keepalive, idle, interval, probes int
	receiveBuffer                     int
}

func optionsOf(t *testing.T, connection net.Conn) (o options) {
	t.Helper()
	raw, err := connection.(*net.TCPConn).SyscallConn()
	require.NoError(t, err)
	var failed error
	require.NoError(t, raw.Control(func(fd uintptr) {
		get := func(level, option int) int {
			value, err := unix.GetsockoptInt(int(fd), level, option)
			failed = errors.Join(failed, err)
			return value
		}
		o.congestion, err = unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION)
		failed = errors.Join(failed, err)
		o.userTimeout = get(unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT)
		o.keepalive, o.idle = get(unix.SOL_SOCKET, unix.SO_KEEPALIVE), get(unix.IPPROTO_TCP, unix.TCP_KEEPIDLE)
		o.interval, o.probes = get(unix.IPPROTO_TCP, unix.TCP_KEEPINTVL), get(unix.IPPROTO_TCP, unix.TCP_KEEPCNT)
		o.receiveBuffer = get(unix.SOL_SOCKET, unix.SO_RCVBUF)
	}))
	require.NoError(t, failed)
	return o
}

func after(d time.Duration) *metav1.Duration { return &metav1.Duration{Duration: d} }

// everything is other than the kernel's own.
func everything() *v1alpha1.Transport {
	return &v1alpha1.Transport{
		CongestionControl: "cubic", InitialWindow: new(int32(40)), UserTimeout: after(7 * time.Second),
		Keepalive:  &v1alpha1.Keepalive{Idle: after(11 * time.Second), Interval: after(3 * time.Second), Probes: new(int32(4))},
		DelayedAck: after(20 * time.Millisecond), MinRTO: after(20 * time.Millisecond),
		ReceiveBuffer: resource.NewQuantity(96<<10, resource.BinarySI),
	}
}

var everythingShown = options{congestion: "cubic", userTimeout: 7000, keepalive: 1, idle: 11, interval: 3, probes: 4, receiveBuffer: 192 << 10}

// inSockets is what ss tells of all sockets of the client to the server.
func (l *lab) inSockets(t *testing.T) []string {
	t.Helper()
	out, err := l.client.Run("ss", "-tinoHO", "state", "established")
	require.NoError(t, err)
	return strings.Split(strings.TrimSpace(out), "\n")
}

func TestNewConnectionsGetWhatThePolicyGives(t *testing.T) {
	l := newLab(t)
	before := optionsOf(t, l.dial(t, "TCP"))
	report := l.apply(t, everything())
	require.NoError(t, nodetest.Failures(report))
	connection := l.dial(t, "TCP")
	if got := optionsOf(t, connection); got != everythingShown {
		t.Errorf("a new connection has %+v", got)
	}
	l.expectWindow(t, 40)
	l.expectTimers(t, connection, 20, 20)
	l.part.mutex.Lock()
	for cookie := range l.part.pods {
		if refused := refusals(l.part.refusedTo(cookie).settings); refused != "" {
			t.Errorf("the kernel refused %s", refused)
		}
	}
	l.part.mutex.Unlock()
	l.apply(t, nil)
	l.expectTimers(t, connection, 200, 200)
	after := optionsOf(t, connection)
	if before.receiveBuffer = after.receiveBuffer; after != before {
		t.Errorf("when the policy is gone the connection has %+v, and others had %+v before", after, before)
	}
	if again := optionsOf(t, l.dial(t, "TCP")); again.congestion != before.congestion || again.keepalive != before.keepalive || again.userTimeout != 0 {
		t.Errorf("when the policy is gone a new connection has %+v", again)
	}
}

// Options by which Linux 6.15 and later tell of these times, in µs.
const (
	tcpRTOMin    = 45
	tcpDelackMax = 46
)

// expectTimers looks at the least time after which a segment is sent again, and at the delay
// of acknowledgements, in ms. An older kernel tells neither.
func (*lab) expectTimers(t *testing.T, connection net.Conn, minRTO, delayedAck int) {
	t.Helper()
	raw, err := connection.(*net.TCPConn).SyscallConn()
	require.NoError(t, err)
	for option, wanted := range map[int]int{tcpRTOMin: minRTO, tcpDelackMax: delayedAck} {
		var got int
		require.NoError(t, raw.Control(func(fd uintptr) { got, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, option) }))
		if errors.Is(err, unix.ENOPROTOOPT) {
			continue
		}
		require.NoError(t, err)
		if got != 1000*wanted {
			t.Errorf("option %d of the connection is %d µs instead of %d ms", option, got, wanted)
		}
	}
}

// expectWindow looks at a connection that has sent nothing yet.
func (l *lab) expectWindow(t *testing.T, segments uint32) {
	t.Helper()
	var connection net.Conn
	require.NoError(t, l.client.Do(func() (err error) {
		dialer := net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: false}, KeepAlive: -1}
		dialer.SetMultipathTCP(false)
		connection, err = dialer.DialContext(t.Context(), "tcp", net.JoinHostPort(l.server.IPv4, port))
		return err
	}))
	defer connection.Close()
	raw, err := connection.(*net.TCPConn).SyscallConn()
	require.NoError(t, err)
	var info *unix.TCPInfo
	require.NoError(t, raw.Control(func(fd uintptr) { info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) }))
	require.NoError(t, err)
	if info.Snd_cwnd != segments {
		t.Errorf("a new connection may send %d segments, not %d", info.Snd_cwnd, segments)
	}
}

func TestConnectionsThatExistGetItAndHaveTheirOwnBack(t *testing.T) {
	l := newLab(t)
	connection := l.dial(t, "TCP")
	raw, err := connection.(*net.TCPConn).SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Control(func(fd uintptr) {
		err = errors.Join(unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 1234),
			unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 77))
	}))
	require.NoError(t, err)
	own := optionsOf(t, connection)
	l.apply(t, everything())
	if got := optionsOf(t, connection); got != everythingShown {
		t.Errorf("the connection has %+v", got)
	}
	other := everything()
	other.UserTimeout, other.Keepalive = after(9*time.Second), nil
	l.apply(t, other)
	if got := optionsOf(t, connection); got.userTimeout != 9000 || got.keepalive != own.keepalive || got.idle != 77 {
		t.Errorf("after a change of the policy it has %+v", got)
	}
	require.NoError(t, l.part.Close())
	l.start(t) // an agent that knows nothing of the pod
	l.apply(t, nil)
	got := optionsOf(t, connection)
	if got.receiveBuffer = own.receiveBuffer; got != own {
		t.Errorf("when the policy went while no agent ran it has %+v, and had %+v", got, own)
	}
	l.exchange(t, connection)
}

// Programs in Go do so right after connecting.
func TestAnApplicationThatHasIdleConnectionsProbedKeepsThatWhenThePolicyGoes(t *testing.T) {
	l := newLab(t)
	l.apply(t, everything())
	var connection net.Conn
	require.NoError(t, l.client.Do(func() (err error) {
		dialer := net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 33 * time.Second, Interval: 5 * time.Second, Count: 2}}
		connection, err = dialer.DialContext(t.Context(), "tcp", net.JoinHostPort(l.server.IPv4, port))
		return err
	}))
	defer connection.Close()
	time.Sleep(100 * time.Millisecond)
	l.exchange(t, connection)
	l.part.look(true)
	if got := optionsOf(t, connection); got != everythingShown {
		t.Errorf("the connection has %+v", got)
	}
	l.apply(t, nil)
	if got := optionsOf(t, connection); got.keepalive != 1 || got.idle != 33 || got.interval != 5 || got.probes != 2 {
		t.Errorf("when the policy is gone it has %+v", got)
	}
}

func TestWhatAnApplicationChoosesLaterStands(t *testing.T) {
	l := newLab(t)
	l.apply(t, everything())
	connection := l.dial(t, "TCP")
	time.Sleep(200 * time.Millisecond) // until it has settled
	l.exchange(t, connection)
	raw, err := connection.(*net.TCPConn).SyscallConn()
	require.NoError(t, err)
	set := func() {
		require.NoError(t, raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 4321) }))
		require.NoError(t, err)
	}
	set()
	for range 3 {
		l.exchange(t, connection)
	}
	l.part.look(true)
	if got := optionsOf(t, connection).userTimeout; got != 4321 {
		t.Errorf("its user timeout is %d ms", got)
	}
	l.apply(t, nil)
	if got := optionsOf(t, connection).userTimeout; got != 4321 {
		t.Errorf("when the policy is gone its user timeout is %d ms", got)
	}
}

func TestEachSubflowGetsIt(t *testing.T) {
	l := newLab(t)
	for _, pod := range []*network.Pod{l.client, l.server} {
		_, err := pod.Run("ip", "mptcp", "limits", "set", "subflows", "1")
		require.NoError(t, err)
	}
	require.NoError(t, l.client.AddAddress("eth0", "10.244.9.1/32"))
	require.NoError(t, l.Nodes[0].AddRoute(network.Route{Destination: "10.244.9.1/32", Interface: l.client.HostInterface}))
	_, err := l.client.Run("ip", "mptcp", "endpoint", "add", "10.244.9.1", "subflow")
	require.NoError(t, err)
	l.apply(t, everything())
	connection := l.dial(t, "MPTCP")
	var sockets []string
	testutil.Retry(t, 10*time.Second, func() error {
		l.exchange(t, connection)
		l.part.look(true)
		if sockets = l.inSockets(t); len(sockets) != 2 {
			return fmt.Errorf("the client has %d subflows", len(sockets))
		}
		for _, socket := range sockets {
			if !strings.Contains(socket, " cubic ") || !strings.Contains(socket, "keepalive") {
				return errors.New("not all subflows have settled")
			}
		}
		return nil
	})
	l.apply(t, nil)
	for _, socket := range l.inSockets(t) {
		if strings.Contains(socket, " cubic ") || strings.Contains(socket, "keepalive") {
			t.Errorf("when the policy is gone a subflow has %s", socket)
		}
	}
}

func TestAnotherPodsSocketsStayAsTheyAre(t *testing.T) {
	l := newLab(t)
	l.apply(t, everything())
	l.dial(t, "TCP")
	out, err := l.server.Run("ss", "-tinoHO", "state", "established")
	require.NoError(t, err)
	if out == "" || strings.Contains(out, " cubic ") {
		t.Errorf("the server, which no policy selects, has %s", out)
	}
}

func TestACongestionControlThatTheKernelLacksIsTold(t *testing.T) {
	l := newLab(t)
	of := everything()
	of.CongestionControl = "none_such"
	report := l.apply(t, of)
	if err := nodetest.Failures(report); err == nil || !strings.Contains(err.Error(), `spec.transport.congestionControl: this node's kernel has no congestion control "none_such"`) {
		t.Errorf("the endpoint's failure is %v", err)
	}
	connection := l.dial(t, "TCP")
	if got := optionsOf(t, connection); got.userTimeout != 7000 || got.idle != 11 {
		t.Errorf("the other settings are not given: %+v", got)
	}
	report = l.apply(t, of)
	status := v1alpha1.EndpointStatus{}
	report.Endpoints["client"].Describe(&status)
	if !strings.Contains(status.Message, "spec.transport.congestionControl") {
		t.Errorf("the status says %q", status.Message)
	}
}

// A map that cannot be written stands for whatever may go wrong there.
func TestAPodWhoseSettingsWereNotWrittenHasFailedAndIsTriedAgain(t *testing.T) {
	l := newLab(t)
	l.apply(t, everything())
	whole := l.part.loaded.Value.TransportSettings
	frozen, err := whole.Clone()
	require.NoError(t, err)
	require.NoError(t, frozen.Close())
	l.part.mutex.Lock()
	l.part.loaded.Value.TransportSettings = frozen
	l.part.mutex.Unlock()
	other := everything()
	other.UserTimeout = after(9 * time.Second)
	report := l.part.Apply(t.Context(), l.model(other))
	if failed := report.Endpoints["client"].Failed; failed == nil || !strings.Contains(failed.Error(), "failed to write spec.transport") {
		t.Errorf("the endpoint's failure is %v", failed)
	}
	l.part.mutex.Lock()
	l.part.loaded.Value.TransportSettings = whole
	l.part.mutex.Unlock()
	require.NoError(t, nodetest.Failures(l.apply(t, other)))
	if got := optionsOf(t, l.dial(t, "TCP")).userTimeout; got != 9000 {
		t.Errorf("after another try a new connection has a user timeout of %d ms", got)
	}
}

func TestNothingIsLeft(t *testing.T) {
	l := newLab(t)
	l.apply(t, everything())
	l.dial(t, "TCP")
	require.NoError(t, l.part.Remove(t.Context()))
	if _, err := os.Stat(filepath.Join(l.directory, "transport")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("there are still pins: %v", err)
	}
}
