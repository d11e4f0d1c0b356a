// SPDX-License-Identifier: Apache-2.0

package programs_test

import (
	"context"
	"errors"
	"net"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf/btf"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/network"
)

func (n *node) congestion(t *testing.T, name, source string, defines ...string) v1alpha1.PlanProgram {
	t.Helper()
	wanted := n.put(t, name, source, "", defines...)
	wanted.Type = v1alpha1.ProgramCongestion
	return wanted
}

// needsLinks ends a test on a kernel where congestion controls have no links.
func needsLinks(t *testing.T) {
	t.Helper()
	kernel, err := btf.LoadKernelSpec()
	require.NoError(t, err)
	var link *btf.Struct
	if err := kernel.TypeByName("bpf_struct_ops_link", &link); errors.Is(err, btf.ErrNotFound) {
		t.Skip("this kernel has no links for congestion controls (Linux 6.4)")
	}
}

func (n *node) schedule(t *testing.T, name, source string, defines ...string) v1alpha1.PlanProgram {
	t.Helper()
	wanted := n.put(t, name, source, "", defines...)
	wanted.Type = v1alpha1.ProgramSchedule
	return wanted
}

func algorithms(t *testing.T) []string {
	t.Helper()
	list, err := os.ReadFile("/proc/sys/net/ipv4/tcp_available_congestion_control")
	require.NoError(t, err)
	return strings.Fields(string(list))
}

// algorithm is the name under which the template of a test is registered: other
// tests may run at the same time.
const algorithm = "braid_test"

func named(name string) string { return `NAME="` + name + `"` }

// pair is a namespace with a TCP connection in it to itself.
type pair struct {
	client, server *net.TCPConn
	cookie         uint64
}

func connect(t *testing.T, namespace *network.Namespace) *pair {
	t.Helper()
	listener, err := namespace.Listen(t.Context(), "tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	client, err := namespace.Dial(t.Context(), "tcp4", listener.Addr().String())
	require.NoError(t, err)
	server, err := listener.Accept()
	require.NoError(t, err)
	require.NoError(t, listener.Close())
	t.Cleanup(func() { require.NoError(t, errors.Join(client.Close(), server.Close())) })
	return &pair{client: client.(*net.TCPConn), server: server.(*net.TCPConn), cookie: cookieOf(t, namespace)}
}

func cookieOf(t *testing.T, namespace *network.Namespace) (cookie uint64) {
	t.Helper()
	require.NoError(t, namespace.Do(func() error {
		socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(socket)
		cookie, err = unix.GetsockoptUint64(socket, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
		return err
	}))
	return cookie
}

func control(t *testing.T, connection *net.TCPConn, f func(socket int) error) error {
	t.Helper()
	raw, err := connection.SyscallConn()
	require.NoError(t, err)
	var failed error
	require.NoError(t, raw.Control(func(fd uintptr) { failed = f(int(fd)) }))
	return failed
}

// choose sets the congestion control of a connection.
func (p *pair) choose(t *testing.T, name string) error {
	t.Helper()
	return control(t, p.client, func(socket int) error {
		return unix.SetsockoptString(socket, unix.IPPROTO_TCP, unix.TCP_CONGESTION, name)
	})
}

func (p *pair) chosen(t *testing.T) (name string) {
	t.Helper()
	require.NoError(t, control(t, p.client, func(socket int) (err error) {
		name, err = unix.GetsockoptString(socket, unix.IPPROTO_TCP, unix.TCP_CONGESTION)
		return err
	}))
	return strings.TrimRight(name, "\x00")
}

// transfer sends 4 MiB and reads them again.
func (p *pair) transfer(t *testing.T) {
	t.Helper()
	sent := make(chan error, 1)
	go func() {
		_, err := p.client.Write(make([]byte, 4<<20))
		sent <- err
	}()
	for received, buffer := 0, make([]byte, 64<<10); received < 4<<20; {
		count, err := p.server.Read(buffer)
		require.NoError(t, err)
		received += count
	}
	require.NoError(t, <-sent)
}

func TestACongestionControlIsRegisteredWhileItsBlockIsWanted(t *testing.T) {
	needsLinks(t)
	n := newNode(t)
	namespace := network.NamespaceForTest(t)
	require.NoError(t, namespace.SetUp("lo"))
	aimd := n.congestion(t, "aimd", "examples/aimd.bpf.c", named(algorithm))
	result := n.applyAll(t, aimd)
	if result.Algorithms["policy/aimd"] != algorithm || !slices.Contains(algorithms(t), algorithm) {
		t.Fatalf("the result is %v; the kernel knows %v", result.Algorithms, algorithms(t))
	}
	p := connect(t, namespace)
	require.NoError(t, p.choose(t, algorithm))
	p.transfer(t)

	n.restart(t)
	if again := n.applyAll(t, aimd).Algorithms; again["policy/aimd"] != algorithm {
		t.Errorf("the next agent has %v", again)
	}

	n.applyAll(t)
	if slices.Contains(algorithms(t), algorithm) {
		t.Error("the algorithm is still registered")
	}
	if p.chosen(t) != algorithm {
		t.Errorf("the connection that was there has %s now", p.chosen(t))
	}
	p.transfer(t)
}

func TestACongestionControlIsExchanged(t *testing.T) {
	needsLinks(t)
	n := newNode(t)
	namespace := network.NamespaceForTest(t)
	require.NoError(t, namespace.SetUp("lo"))
	n.applyAll(t, n.congestion(t, "aimd", "examples/aimd.bpf.c", named(algorithm)))
	p := connect(t, namespace)
	require.NoError(t, p.choose(t, algorithm))
	n.applyAll(t, n.congestion(t, "aimd", "examples/aimd.bpf.c", named(algorithm), "LEAST=4"))
	if p.chosen(t) != algorithm || !slices.Contains(algorithms(t), algorithm) {
		t.Errorf("the connection has %s; the kernel knows %v", p.chosen(t), algorithms(t))
	}
	p.transfer(t)
	n.expectPins(t, 1)
	faulty := n.congestion(t, "aimd", "examples/stamp.bpf.c")
	if result := n.apply(t, faulty); result.Errors["policy/aimd"] == nil || result.Algorithms["policy/aimd"] != algorithm {
		t.Errorf("with a faulty version: %+v", result)
	}

	const other = "braid_other"
	n.applyAll(t, n.congestion(t, "aimd", "examples/aimd.bpf.c", named(other)))
	if known := algorithms(t); slices.Contains(known, algorithm) || !slices.Contains(known, other) {
		t.Errorf("under another name: the kernel knows %v", known)
	}
	n.expectPins(t, 1)
}

func TestTheNamesOfTheKernelsOwnCongestionControlsAreTaken(t *testing.T) {
	n := newNode(t)
	for name, reason := range map[string]string{
		"reno": "already", "a b": "is not one of", "a-b": "is not one of", "": "is not one of",
	} {
		result := n.apply(t, n.congestion(t, "program", "examples/aimd.bpf.c", named(name)))
		if err := result.Errors["policy/program"]; err == nil || !strings.Contains(err.Error(), reason) {
			t.Errorf("%q: the error is %v, wanted %q in it", name, err, reason)
		}
	}
}

// pacing is the rate that a connection's socket is bound to, in bytes a second.
func pacing(t *testing.T, connection *net.TCPConn) (rate int) {
	t.Helper()
	require.NoError(t, control(t, connection, func(socket int) (err error) {
		rate, err = unix.GetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE)
		return err
	}))
	return rate
}

// plain opens a connection of plain TCP, whose socket tells what its pace is.
func plain(t *testing.T, namespace *network.Namespace) *pair {
	t.Helper()
	var p *pair
	require.NoError(t, namespace.Do(func() error {
		listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp4", "127.0.0.1:0")
		if err != nil {
			return err
		}
		client, err := (&net.Dialer{}).DialContext(context.WithoutCancel(t.Context()), "tcp4", listener.Addr().String())
		if err != nil {
			return errors.Join(err, listener.Close())
		}
		server, err := listener.Accept()
		if err != nil {
			return errors.Join(err, client.Close(), listener.Close())
		}
		p = &pair{client: client.(*net.TCPConn), server: server.(*net.TCPConn)}
		return listener.Close()
	}))
	t.Cleanup(func() { require.NoError(t, errors.Join(p.client.Close(), p.server.Close())) })
	return p
}

func TestAScheduleGovernsTheSocketsOfItsPodsAlone(t *testing.T) {
	n := newNode(t)
	governed, other := network.NamespaceForTest(t), network.NamespaceForTest(t)
	require.NoError(t, errors.Join(governed.SetUp("lo"), other.SetUp("lo")))
	expect := func(namespace *network.Namespace, wanted int) {
		t.Helper()
		if got := pacing(t, plain(t, namespace).client); got != wanted {
			t.Errorf("a new socket is paced to %d bytes a second, wanted %d", got, wanted)
		}
	}
	const unpaced = -1
	slow := n.schedule(t, "slow", "testdata/slow.bpf.c")
	if result := n.applyAll(t, slow); !result.Schedules["policy/slow"] {
		t.Fatalf("the schedules are %v", result.Schedules)
	}
	expect(governed, unpaced)
	require.NoError(t, n.Govern("policy/slow", []uint64{cookieOf(t, governed)}))
	expect(governed, 1000000)
	expect(other, unpaced)

	n.applyAll(t, n.schedule(t, "slow", "testdata/slow.bpf.c", "RATE=2000000"))
	expect(governed, 2000000)
	if result := n.apply(t, n.schedule(t, "slow", "examples/stamp.bpf.c")); result.Errors["policy/slow"] == nil || !result.Schedules["policy/slow"] {
		t.Errorf("with a faulty version: %+v", result)
	}
	expect(governed, 2000000)
	n.expectPins(t, 2)

	n.restart(t)
	expect(governed, 2000000)
	n.applyAll(t, n.schedule(t, "slow", "testdata/slow.bpf.c", "RATE=2000000"))
	require.NoError(t, n.Govern("policy/slow", []uint64{cookieOf(t, other)}))
	expect(governed, unpaced)
	expect(other, 2000000)

	n.applyAll(t)
	expect(other, unpaced)
	n.expectPins(t, 0)
	if err := n.Govern("policy/slow", nil); err == nil {
		t.Error("a schedule that is gone governs")
	}
}

func TestTheScheduleTemplateRunsOnMPTCP(t *testing.T) {
	n := newNode(t)
	namespace := network.NamespaceForTest(t)
	require.NoError(t, namespace.SetUp("lo"))
	n.applyAll(t, n.schedule(t, "hold-back", "examples/hold_back.bpf.c"))
	require.NoError(t, n.Govern("policy/hold-back", []uint64{cookieOf(t, namespace)}))
	p := connect(t, namespace)
	p.transfer(t)
	counted := 0
	for _, id := range mapIDs(t, "held_connection") {
		counted += entries(t, id)
	}
	if counted == 0 {
		t.Error("the schedule has not noted the connection")
	}
}
