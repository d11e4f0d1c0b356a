// SPDX-License-Identifier: Apache-2.0

package network_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/testutil"
)

func build(t *testing.T, spec network.Spec) *network.Network {
	t.Helper()
	spec.Nodes, spec.PodsPerNode = 2, 1
	spec.Paths = []string{"blue", "green"}
	return network.ForTest(t, spec)
}

// reach opens a connection from one namespace to an address of another.
func reach(from, to *network.Namespace, address string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	listener, err := to.Listen(ctx, "tcp", net.JoinHostPort(address, "0"))
	if err != nil {
		return err
	}
	defer listener.Close()
	connection, err := from.Dial(ctx, "tcp", listener.Addr().String())
	if err != nil {
		return err
	}
	return connection.Close()
}

func expectReach(t *testing.T, from, to *network.Namespace, address string) {
	t.Helper()
	if err := reach(from, to, address); err != nil {
		t.Errorf("from %s to %s: %v", from.Name, to.Name, err)
	}
}

func TestPodsReachEachOtherAndTheirNodes(t *testing.T) {
	n := build(t, network.Spec{})
	a, b := n.Pod("pod-1-1"), n.Pod("pod-2-1")
	for _, version := range []int{4, 6} {
		expectReach(t, a.Namespace, b.Namespace, b.Address(version))
		expectReach(t, a.Namespace, a.Node.Namespace, a.Node.Address(0, version))
		expectReach(t, a.Node.Namespace, a.Namespace, a.Address(version))
		expectReach(t, a.Node.Namespace, b.Node.Namespace, b.Node.Address(1, version))
	}
}

func TestANetworkOfOneVersionHasNoAddressesOfTheOther(t *testing.T) {
	n := build(t, network.Spec{IPv6: true})
	pod := n.Pod("pod-1-1")
	if pod.IPv4 != "" || pod.IPv6 == "" {
		t.Errorf("addresses %q and %q", pod.IPv4, pod.IPv6)
	}
	other := n.Pod("pod-2-1")
	expectReach(t, pod.Namespace, other.Namespace, other.IPv6)
}

func TestPodTrafficUsesTheFirstPathAlone(t *testing.T) {
	n := build(t, network.Spec{IPv4: true})
	from, to := n.Pod("pod-1-1"), n.Pod("pod-2-1")
	send(t, from, to, 1<<20)
	counters, err := n.NICCounters(from.Node)
	if err != nil {
		t.Fatal(err)
	}
	if counters["blue"].TxBytes < 1<<20 || counters["green"].TxBytes > 10_000 {
		t.Errorf("counters %+v", counters)
	}
}

// send moves bytes over one MPTCP connection and waits until all have come.
func send(t *testing.T, from, to *network.Pod, size int64) time.Duration {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	listener, err := to.Listen(ctx, "tcp", net.JoinHostPort(to.IPv4, "5001"))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	received := make(chan error, 1)
	go func() { received <- receive(listener, size) }()
	connection, err := from.Dial(ctx, "tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	expectMultipath(t, connection)
	start := time.Now()
	if _, err := connection.Write(make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	if err := <-received; err != nil {
		t.Fatal(err)
	}
	return time.Since(start)
}

func receive(listener net.Listener, size int64) error {
	connection, err := listener.Accept()
	if err != nil {
		return err
	}
	defer connection.Close()
	_, err = io.CopyN(io.Discard, connection, size)
	return err
}

func expectMultipath(t *testing.T, connection net.Conn) {
	t.Helper()
	multipath, err := connection.(*net.TCPConn).MultipathTCP()
	if err != nil || !multipath {
		t.Errorf("connection is not MPTCP: %v", err)
	}
}

func TestAShapedLinkCarriesItsRate(t *testing.T) {
	n := build(t, network.Spec{IPv4: true, LinkMbit: 100})
	const size = 12_500_000 // one second's worth
	took := send(t, n.Pod("pod-1-1"), n.Pod("pod-2-1"), size)
	rate := size * 8 / took.Seconds() / 1e6
	if rate < 60 || rate > 105 {
		t.Errorf("a link of 100 Mbit/s carried %.1f Mbit/s", rate)
	}
}

func TestANICThatWentDownWorksAgainAfterItsReturn(t *testing.T) {
	n := build(t, network.Spec{})
	from, to := n.Pod("pod-1-1"), n.Pod("pod-2-1")
	for name, set := range map[string]func(*network.Node, string, bool) error{"from the node": n.SetNIC, "from the fabric": n.SetCarrier} {
		t.Run(name, func(t *testing.T) {
			change(t, set, from.Node, false)
			if reach(from.Namespace, to.Namespace, to.IPv4) == nil {
				t.Error("the NIC is down and traffic still passes")
			}
			change(t, set, from.Node, true)
			// The kernel may take a second to see the carrier, at the other end too, and SYNs before are lost.
			testutil.Eventually(t, 10*time.Second, "the NIC has its carrier", func() bool {
				out, err := from.Node.Run("ip", "-oneline", "link", "show", "blue")
				return err == nil && strings.Contains(out, "state UP")
			})
			for _, address := range []string{to.IPv4, to.IPv6} {
				testutil.Retry(t, 10*time.Second, func() error { return reach(from.Namespace, to.Namespace, address) })
			}
		})
	}
}

func change(t *testing.T, set func(*network.Node, string, bool) error, node *network.Node, up bool) {
	t.Helper()
	if err := set(node, "blue", up); err != nil {
		t.Fatal(err)
	}
}

func TestTeardownKillsProcessesAndMayBeRepeated(t *testing.T) {
	name := network.TestName()
	n, err := network.Build(network.Spec{Name: name, Nodes: 1, Paths: []string{"blue"}, PodsPerNode: 1})
	if err != nil {
		t.Fatal(err)
	}
	sleeper, inside := n.Pod("pod-1-1").Command(context.Background(), "sh", "-c", "echo inside && exec sleep 60"), make(written, 1)
	sleeper.Stdout = inside
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- sleeper.Wait() }()
	select {
	case <-inside:
	case err := <-ended:
		t.Fatalf("the process ended: %v", err)
	}
	for range 2 {
		if err := network.Teardown(name); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-ended; err == nil {
		t.Error("the process ended by itself")
	}
	if left, err := network.Namespaces(name); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

// written has a value once something was written.
type written chan struct{}

func (w written) Write(data []byte) (int, error) {
	w <- struct{}{}
	return len(data), nil
}

func TestTeardownRemovesANameWithoutANamespace(t *testing.T) {
	name := network.TestName()
	file := network.Directory + "/" + name + "-half"
	if err := os.MkdirAll(network.Directory, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, nil, 0o444); err != nil {
		t.Fatal(err)
	}
	if err := network.Teardown(name); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file is still there: %v", err)
	}
}

func TestNamesThatWouldMatchOthersAreRefused(t *testing.T) {
	for _, name := range []string{"", "a-b", "A", "*", "a/b", "abcdefghijklmnopq"} {
		if _, err := network.Build(network.Spec{Name: name, Nodes: 1, Paths: []string{"blue"}}); err == nil {
			t.Errorf("name %q was accepted", name)
		}
		if err := network.Teardown(name); err == nil {
			t.Errorf("teardown of name %q was accepted", name)
		}
	}
}

func TestOnlySettingsOfTheNamespaceCanBeSet(t *testing.T) {
	ns := network.NamespaceForTest(t)
	for _, key := range []string{"kernel.hostname", "net.core.rmem_max"} {
		if err := ns.Sysctl(key, "1"); err == nil {
			t.Errorf("%s was accepted", key)
		}
	}
	if err := ns.Sysctl("net.mptcp.checksum_enabled", "1"); err != nil {
		t.Error(err)
	}
}

func TestDoComesBack(t *testing.T) {
	ns := network.NamespaceForTest(t)
	before, inside := inode(t), uint64(0)
	if err := ns.Do(func() error { inside = inode(t); return nil }); err != nil {
		t.Fatal(err)
	}
	if inside == before || inode(t) != before {
		t.Errorf("before %d, inside %d, after %d", before, inside, inode(t))
	}
}

func inode(t *testing.T) uint64 {
	t.Helper()
	var stat unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &stat); err != nil {
		t.Fatal(err)
	}
	return stat.Ino
}
