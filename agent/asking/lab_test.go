// SPDX-License-Identifier: Apache-2.0

package asking

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"braid.dev/braid/agent/datapath"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/agent/node/nodetest"
	"braid.dev/braid/agent/transport"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/ends"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/pair"
	"braid.dev/braid/internal/testutil"
)

const (
	port     = "5001"
	guestUID = "vm"
)

// lab is a VM, whose sockets are in a namespace behind that of its interface, and a pod that
// accepts requests.
type lab struct {
	*network.Network
	guest   *pair.Host
	vm      *network.Pod
	server  *network.Pod
	pins    string
	options Options
	part    *Part
	accepts *transport.Part
	takes   *ends.Server
}

func newLab(t *testing.T) *lab {
	t.Helper()
	l := &lab{pins: testutil.BPFFS(t)}
	l.Network = network.ForTest(t, network.Spec{Nodes: 1, Paths: []string{"net1"}, PodsPerNode: 1})
	vm, err := l.Nodes[0].AddGuest("guest-1-1")
	require.NoError(t, err)
	l.vm, l.server = vm, l.Nodes[0].Pods[0]
	l.takes = ends.ServerAt(l.server.Namespace, port)
	l.guest = pair.HostOf(t, vm.Namespace, vm.IPv4, vm.IPv6)
	_, err = l.server.Run("sysctl", "-qw", "net.ipv4.tcp_congestion_control=reno") // another than is asked for
	require.NoError(t, err)
	l.options = Options{PinPath: filepath.Join(l.pins, "vm"), Flows: func() (transport.Flows, error) { return onNet1{}, nil }, Log: testr.New(t)}
	l.begin()
	t.Cleanup(func() {
		require.NoError(t, l.part.Close())
		require.NoError(t, l.Nodes[0].Do(func() error { return Open(l.options).Remove(context.Background()) }))
	})
	l.accepts = transport.Open(transport.Options{PinPath: filepath.Join(l.pins, "pod"), NamespaceDirectories: []string{network.Directory}, Log: testr.New(t)})
	t.Cleanup(func() { require.NoError(t, l.accepts.Remove(context.Background())) })
	return l
}

// begin is the start of an agent.
func (l *lab) begin() { l.part = Open(l.options) }

// onNet1 says of all subflows that they are on the path net1.
type onNet1 struct{}

func (onNet1) Find(local, remote netip.AddrPort) (*datapath.Flow, error) {
	return &datapath.Flow{Local: local, Remote: remote, Path: "net1"}, nil
}

func (onNet1) Close() error { return nil }

// accept has the pod accept what is asked from these prefixes; nothing where there are none.
func (l *lab) accept(t *testing.T, from ...v1alpha1.CIDR) {
	t.Helper()
	model := nodetest.Model(nodetest.Pod{UID: "server", Namespace: l.server.Path()})
	if len(from) > 0 {
		model.Endpoints[0].Transport = &v1alpha1.Transport{Accept: &v1alpha1.TransportAcceptance{
			From: from, CongestionControls: []string{"reno", "cubic"}, MaxInitialWindow: new(int32(80)), MaxUserTimeout: after(time.Minute),
			MinDelayedAck: after(10 * time.Millisecond), MinRate: resource.NewQuantity(1e6, resource.DecimalSI), MaxInactivityTimeout: after(time.Hour),
		}}
	}
	require.NoError(t, nodetest.Failures(l.accepts.Apply(t.Context(), model)))
}

func after(d time.Duration) *metav1.Duration { return &metav1.Duration{Duration: d} }

func everything() *v1alpha1.TransportRequest {
	return &v1alpha1.TransportRequest{
		CongestionControl: "cubic", InitialWindow: new(int32(40)), UserTimeout: after(7 * time.Second), DelayedAck: after(20 * time.Millisecond),
		Rates: []v1alpha1.PathRate{{Path: "net1", Rate: resource.MustParse("20M")}}, InactivityTimeout: after(time.Minute),
	}
}

// model is that of the node, whose VM's peers are asked for this.
func (l *lab) model(t *testing.T, request *v1alpha1.TransportRequest) *node.Model {
	t.Helper()
	index, err := l.Nodes[0].Index(l.vm.HostInterface)
	require.NoError(t, err)
	endpoint := &v1alpha1.PlanEndpoint{UID: guestUID, Namespace: "shop", Name: "vm", Guest: &v1alpha1.PlanGuest{}}
	if request != nil {
		endpoint.Transport = &v1alpha1.Transport{Request: request}
	}
	return &node.Model{Endpoints: []node.Endpoint{{HostInterface: index, PlanEndpoint: endpoint}}}
}

func (l *lab) ask(t *testing.T, request *v1alpha1.TransportRequest) (report node.Report) {
	t.Helper()
	require.NoError(t, l.Nodes[0].Do(func() error {
		report = l.part.Apply(t.Context(), l.model(t, request))
		return report.Err
	}))
	require.NoError(t, nodetest.Failures(report))
	return report
}

func (l *lab) serve(t *testing.T, address string) {
	t.Helper()
	l.takes.Serve(t, address)
}

// connect returns both ends of a connection of the VM.
func (l *lab) connect(t *testing.T, protocol, address string) (client, server net.Conn) {
	t.Helper()
	client, server = l.takes.Connect(t, l.vm.Namespace, protocol, address)
	require.NoError(t, server.(*net.TCPConn).SetKeepAlive(false))
	return client, server
}

// shown is what a server's socket of plain TCP has of what can be asked for.
type shown struct {
	congestion  string
	userTimeout int // ms
	keepalive   int
	paced       bool
}

var own = shown{congestion: "reno"}

func shownBy(t *testing.T, server net.Conn) (s shown) {
	t.Helper()
	raw, err := server.(*net.TCPConn).SyscallConn()
	require.NoError(t, err)
	var failed [4]error
	require.NoError(t, raw.Control(func(fd uintptr) {
		var pace int
		s.congestion, failed[0] = unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION)
		s.userTimeout, failed[1] = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT)
		s.keepalive, failed[2] = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_KEEPALIVE)
		pace, failed[3] = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE)
		s.paced = pace != -1 && pace != 0xffffffff
	}))
	require.NoError(t, errors.Join(failed[:]...))
	return s
}

// subflows is what ss tells of the server's sockets, those of MPTCP's subflows too.
func (l *lab) subflows(t *testing.T) string {
	t.Helper()
	out, err := l.server.Run("ss", "-tinoHO", "state", "established")
	require.NoError(t, err)
	return out
}

// await has both ends talk until the server's socket is as wanted.
func (l *lab) await(t *testing.T, client, server net.Conn, wanted shown) {
	t.Helper()
	testutil.Retry(t, 25*time.Second, func() error {
		require.NoError(t, l.part.look())
		ends.Talk(t, client, server)
		time.Sleep(50 * time.Millisecond)
		if got := shownBy(t, server); got != wanted {
			return fmt.Errorf("the server's socket has %+v, and not %+v", got, wanted)
		}
		return nil
	})
}
