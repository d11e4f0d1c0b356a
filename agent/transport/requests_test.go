// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/api/resource"

	"braid.dev/braid/agent/datapath"
	"braid.dev/braid/agent/node/nodetest"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/ends"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/testutil"
)

// pair is two pods: the client asks, and the server accepts.
type pair struct {
	*network.Network
	client, server *network.Pod
	part           *Part
	at             *ends.Server
}

func newPair(t *testing.T, flows func() (Flows, error)) *pair {
	t.Helper()
	return newPairOf(t, 2, flows)
}

func newPairOf(t testing.TB, pods int, flows func() (Flows, error)) *pair {
	t.Helper()
	p := &pair{Network: network.ForTest(t, network.Spec{Nodes: 1, Paths: []string{"net1"}, PodsPerNode: pods})}
	p.client, p.server = p.Nodes[0].Pods[0], p.Nodes[0].Pods[1]
	p.at = ends.ServerAt(p.server.Namespace, port)
	_, err := p.server.Run("sysctl", "-qw", "net.ipv4.tcp_congestion_control=reno") // another than is asked for
	require.NoError(t, err)
	p.part = Open(Options{PinPath: testutil.BPFFS(t), NamespaceDirectories: []string{network.Directory}, Flows: flows, Log: testr.NewWithInterface(t, testr.Options{})})
	t.Cleanup(func() { require.NoError(t, p.part.Remove(context.Background())) })
	return p
}

func (p *pair) apply(t *testing.T, client, server *v1alpha1.Transport) {
	t.Helper()
	model := nodetest.Model(nodetest.Pod{UID: "client", Namespace: p.client.Path()}, nodetest.Pod{UID: "server", Namespace: p.server.Path()})
	model.Endpoints[0].Transport, model.Endpoints[1].Transport = client, server
	model.Endpoints[1].Subflows.Manager = v1alpha1.SubflowManagerAgent
	require.NoError(t, nodetest.Failures(p.part.Apply(t.Context(), model)))
}

func (p *pair) serve(t *testing.T, address string) {
	t.Helper()
	p.at.Serve(t, address)
}

// connect returns both ends of a connection.
func (p *pair) connect(t *testing.T, protocol, address string) (client, server net.Conn) {
	t.Helper()
	client, server = p.at.Connect(t, p.client.Namespace, protocol, address)
	if protocol == "MPTCP" { // ss tells of a subflow's probes, and not whose request they are
		require.NoError(t, server.(*net.TCPConn).SetKeepAlive(false))
	}
	return client, server
}

// serverSocket is what ss tells of the server's socket, with its timers.
func (p *pair) serverSocket(t *testing.T) string {
	t.Helper()
	out, err := p.server.Run("ss", "-tinoHO", "state", "established")
	require.NoError(t, err)
	return out
}

func asksForAll() *v1alpha1.Transport {
	return &v1alpha1.Transport{Request: &v1alpha1.TransportRequest{
		CongestionControl: "cubic", InitialWindow: new(int32(40)), UserTimeout: after(7 * time.Second), DelayedAck: after(20 * time.Millisecond),
		Rates:             []v1alpha1.PathRate{{Path: "net1", Rate: resource.MustParse("20M")}},
		InactivityTimeout: after(time.Minute), DelayThreshold: after(100 * time.Millisecond), Schedule: v1alpha1.StrategyEarliestCompletionFirst,
	}}
}

func acceptsAll(from ...v1alpha1.CIDR) *v1alpha1.Transport {
	return &v1alpha1.Transport{Accept: &v1alpha1.TransportAcceptance{
		From: from, CongestionControls: []string{"reno", "cubic"}, MaxInitialWindow: new(int32(80)), MaxUserTimeout: after(time.Minute),
		MinDelayedAck: after(10 * time.Millisecond), MinRate: resource.NewQuantity(1e6, resource.DecimalSI),
		MaxInactivityTimeout: after(time.Hour), MinDelayThreshold: after(20 * time.Millisecond), Schedules: []string{v1alpha1.StrategyEarliestCompletionFirst},
	}}
}

// onNet1 says of all subflows that they are on the path net1.
type onNet1 struct{}

func (onNet1) Find(local, remote netip.AddrPort) (*datapath.Flow, error) {
	return &datapath.Flow{Local: local, Remote: remote, Path: "net1"}, nil
}
func (onNet1) Close() error { return nil }

func allOnNet1() (Flows, error) { return onNet1{}, nil }

// shown is what a server's socket has of what can be asked for.
type shown struct {
	window       uint32 // before it has sent
	cubic, paced bool
	userTimeout  int // ms
	delayedAck   int // us; 0 where the kernel does not tell
	probing      keepalive
}

// keepalive is how a socket is probed, in seconds.
type keepalive struct{ on, idle, interval, probes int }

func keepaliveOf(fd int) (k keepalive, failed error) {
	for option, value := range map[int]*int{unix.TCP_KEEPIDLE: &k.idle, unix.TCP_KEEPINTVL: &k.interval, unix.TCP_KEEPCNT: &k.probes} {
		got, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, option)
		*value, failed = got, errors.Join(failed, err)
	}
	on, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE)
	k.on = on
	return k, errors.Join(failed, err)
}

func state(t *testing.T, server net.Conn) (s shown) {
	t.Helper()
	raw, err := server.(*net.TCPConn).SyscallConn()
	require.NoError(t, err)
	var failed error
	require.NoError(t, raw.Control(func(fd uintptr) {
		var name string
		name, failed = unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION)
		s.cubic = name == "cubic"
		s.userTimeout, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT)
		failed = errors.Join(failed, err)
		pace, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE)
		failed = errors.Join(failed, err)
		s.paced = pace != -1 && pace != 0xffffffff
		s.delayedAck, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, tcpDelackMax)
		if err != nil {
			s.delayedAck = 0
		}
		s.probing, err = keepaliveOf(int(fd))
		failed = errors.Join(failed, err)
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			s.window = info.Snd_cwnd
		}
	}))
	require.NoError(t, failed)
	return s
}

// isAbout allows one of the kernel's ticks, and a kernel that does not tell.
func isAbout(got int, wanted time.Duration) bool {
	return got == 0 || got >= int(wanted.Microseconds()) && got <= int((wanted+4*time.Millisecond).Microseconds())
}

// await has both ends talk until the server's socket is as wanted.
func await(t *testing.T, p *pair, client, server net.Conn, wanted func(shown) error) {
	t.Helper()
	testutil.Retry(t, 20*time.Second, func() error {
		p.part.look(false)
		ends.Talk(t, client, server)
		time.Sleep(50 * time.Millisecond)
		return wanted(state(t, server))
	})
}

func TestAServerDoesWhatAClientAsksForAndItAccepts(t *testing.T) {
	p := newPair(t, allOnNet1)
	p.apply(t, asksForAll(), acceptsAll("10.0.0.0/8", "fd00::/8"))
	for _, address := range []string{p.server.IPv4, p.server.IPv6} {
		p.serve(t, address)
		client, server := p.connect(t, "TCP", address)
		if got := state(t, server).window; got != 40 {
			t.Errorf("%s: the server's initial window is %d, not 40", address, got)
		}
		await(t, p, client, server, func(s shown) error {
			if !s.cubic || s.userTimeout != 7000 || !isAbout(s.delayedAck, 20*time.Millisecond) || !s.paced || s.probing != (keepalive{1, 30, 10, 3}) {
				return fmt.Errorf("%s: the server's socket has %+v", address, s)
			}
			return nil
		})
	}
}

func TestWhatIsAskedForIsBroughtToTheBoundOfThePeer(t *testing.T) {
	p := newPair(t, allOnNet1)
	accepts := acceptsAll("10.0.0.0/8")
	accepts.Accept.MaxInitialWindow, accepts.Accept.MaxUserTimeout = new(int32(20)), after(3*time.Second)
	accepts.Accept.CongestionControls, accepts.Accept.MinDelayedAck = []string{"reno"}, after(50*time.Millisecond)
	accepts.Accept.MaxInactivityTimeout = after(5 * time.Second)
	p.apply(t, asksForAll(), accepts)
	p.serve(t, p.server.IPv4)
	client, server := p.connect(t, "TCP", p.server.IPv4)
	if got := state(t, server).window; got != 20 {
		t.Errorf("the server's initial window is %d, not 20", got)
	}
	await(t, p, client, server, func(s shown) error {
		if s.cubic || s.userTimeout != 3000 || !isAbout(s.delayedAck, 50*time.Millisecond) || !s.paced || s.probing != (keepalive{1, 4, 1, 1}) {
			return fmt.Errorf("the server's socket has %+v", s)
		}
		return nil
	})
	testutil.Retry(t, 5*time.Second, func() error {
		honoured, refused := p.counts(t)
		if honoured == 0 || refused == 0 {
			return fmt.Errorf("%d requests are counted as honoured and %d as refused", honoured, refused)
		}
		ends.Talk(t, client, server)
		return nil
	})
}

// counts are the requests that the server honoured and refused.
func (p *pair) counts(t *testing.T) (honoured, refused uint64) {
	t.Helper()
	all, loaded := p.part.requests()
	require.True(t, loaded)
	for request := range requestNames {
		honoured, refused = honoured+all.honoured[request], refused+all.refused[request]
	}
	return honoured, refused
}

func TestNothingIsDoneForWhoIsNotAcceptedFrom(t *testing.T) {
	for name, accepts := range map[string]*v1alpha1.Transport{
		"a policy that accepts from others alone": acceptsAll("192.0.2.0/24", "::/0"),
		"a policy that accepts nothing":           {UserTimeout: after(time.Minute)},
		"no policy":                               nil,
	} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, allOnNet1)
			p.serve(t, p.server.IPv4)
			p.apply(t, nil, accepts)
			client, server := p.connect(t, "TCP", p.server.IPv4)
			ends.Talk(t, client, server)
			before := state(t, server)
			p.apply(t, asksForAll(), accepts)
			client, server = p.connect(t, "TCP", p.server.IPv4)
			if got := state(t, server).window; got != 10 {
				t.Errorf("the server's initial window is %d", got)
			}
			p.askInVain(t, client, server)
			after := state(t, server)
			if before.window = after.window; before != after {
				t.Errorf("the server's socket has %+v, and had %+v without requests", after, before)
			}
		})
	}
}

// By what the server's kernel tells of its subflow.
func TestASubflowDoesWhatThePeerAsksForAndGoesBackWhenThePolicyGoes(t *testing.T) {
	p := newPair(t, allOnNet1)
	p.apply(t, asksForAll(), acceptsAll("0.0.0.0/0"))
	p.serve(t, p.server.IPv4)
	client, server := p.connect(t, "MPTCP", p.server.IPv4)
	if socket := p.serverSocket(t); !strings.Contains(socket, "cwnd:40 ") {
		t.Errorf("the server's subflow does not begin with 40 segments: %s", socket)
	}
	isPaced := func(socket string) bool { return strings.Contains(socket, "/20000000bps") }
	testutil.Retry(t, 20*time.Second, func() error {
		p.part.look(false)
		ends.Talk(t, client, server)
		if socket := p.serverSocket(t); !strings.Contains(socket, " cubic ") || !isPaced(socket) || !strings.Contains(socket, "timer:(keepalive,") {
			return fmt.Errorf("the server's subflow has %s", socket)
		}
		return nil
	})
	p.apply(t, asksForAll(), nil)
	if socket := p.serverSocket(t); strings.Contains(socket, " cubic ") || isPaced(socket) || strings.Contains(socket, "timer:(keepalive,") {
		t.Errorf("when the server's policy is gone its subflow has %s", socket)
	}
}

// maximum is what ss shows of a socket that is paced.
var maximum = regexp.MustCompile(`/\d+bps`)

// By what the server's kernel tells of its subflow, as above.
func TestASubflowDoesNoMoreThanItsPolicyAccepts(t *testing.T) {
	bounds := acceptsAll("10.0.0.0/8")
	bounds.Accept.MaxInitialWindow, bounds.Accept.MinRate = new(int32(20)), resource.NewQuantity(30e6, resource.DecimalSI)
	bounds.Accept.CongestionControls, bounds.Accept.MaxInactivityTimeout = []string{"reno"}, after(12*time.Second)
	for name, test := range map[string]struct {
		accepts *v1alpha1.Transport
		window  string
		pace    string // "" for none
		probed  string // the time until the first probe; "" for none
	}{
		"lower bounds": {bounds, "cwnd:20 ", "/30000000bps", "timer:(keepalive,5."},
		"a policy that accepts from others alone": {acceptsAll("192.0.2.0/24", "::/0"), "cwnd:10 ", "", ""},
		"a policy that accepts nothing":           {&v1alpha1.Transport{UserTimeout: after(time.Minute)}, "cwnd:10 ", "", ""},
		"no policy":                               {nil, "cwnd:10 ", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, allOnNet1)
			p.apply(t, asksForAll(), test.accepts)
			p.serve(t, p.server.IPv4)
			client, server := p.connect(t, "MPTCP", p.server.IPv4)
			if socket := p.serverSocket(t); !strings.Contains(socket, test.window) {
				t.Errorf("the server's subflow does not begin with %s: %s", test.window, socket)
			}
			if test.pace == "" {
				p.askInVain(t, client, server)
			}
			testutil.Retry(t, 20*time.Second, func() error {
				p.part.look(false)
				ends.Talk(t, client, server)
				socket := p.serverSocket(t)
				if strings.Contains(socket, " cubic ") || maximum.FindString(socket) != test.pace ||
					strings.Contains(socket, "timer:(keepalive,") != (test.probed != "") || !strings.Contains(socket, test.probed) {
					return fmt.Errorf("the server's subflow has %s", socket)
				}
				return nil
			})
		})
	}
}

// askInVain gives requests the time in which they would be honoured.
func (p *pair) askInVain(t *testing.T, client, server net.Conn) {
	t.Helper()
	for range 20 {
		p.part.look(false)
		ends.Talk(t, client, server)
		time.Sleep(20 * time.Millisecond)
	}
}

func TestWhatIsNotAskedForAnyMoreLapses(t *testing.T) {
	p := newPair(t, allOnNet1)
	p.serve(t, p.server.IPv4)
	p.apply(t, nil, acceptsAll("10.0.0.0/8"))
	client, server := p.connect(t, "TCP", p.server.IPv4)
	own := state(t, server)
	_ = client.Close()
	p.apply(t, asksForAll(), acceptsAll("10.0.0.0/8"))
	client, server = p.connect(t, "TCP", p.server.IPv4)
	await(t, p, client, server, func(s shown) error {
		if s.userTimeout != 7000 || !s.paced {
			return fmt.Errorf("the server's socket has %+v", s)
		}
		return nil
	})
	p.apply(t, nil, acceptsAll("10.0.0.0/8"))
	await(t, p, client, server, func(s shown) error {
		if s.window = own.window; s != own {
			return fmt.Errorf("the server's socket has %+v, and had %+v before", s, own)
		}
		return nil
	})
}
