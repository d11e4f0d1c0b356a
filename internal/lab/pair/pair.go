// SPDX-License-Identifier: Apache-2.0

// Package pair makes two network namespaces that are joined by one link, and
// MPTCP traffic between them, for tests.
package pair

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/mptcpnl"
	"braid.dev/braid/internal/testutil"
)

// Wait is how long a test waits for what takes milliseconds.
const Wait = 20 * time.Second

// Host is one of the two namespaces.
type Host struct {
	*network.Namespace
	IPv4, IPv6 netip.Addr

	t    *testing.T
	diag *mptcpnl.Diagnostics
}

// New makes the two hosts.
func New(t *testing.T) (client, server *Host) {
	t.Helper()
	client = newHost(t, "10.9.0.1", "fd09::1")
	server = newHost(t, "10.9.0.2", "fd09::2")
	options := network.Options{AddressesA: client.prefixes(), AddressesB: server.prefixes()}
	if err := network.Connect(client.Namespace, "eth0", server.Namespace, "eth0", options); err != nil {
		t.Fatal(err)
	}
	return client, server
}

func newHost(t *testing.T, ipv4, ipv6 string) *Host {
	return HostOf(t, network.NamespaceForTest(t), ipv4, ipv6)
}

// HostOf makes a host of a namespace that has these addresses.
func HostOf(t *testing.T, namespace *network.Namespace, ipv4, ipv6 string) *Host {
	t.Helper()
	h := &Host{Namespace: namespace, t: t, IPv4: netip.MustParseAddr(ipv4), IPv6: netip.MustParseAddr(ipv6)}
	file := h.Open()
	defer file.Close()
	var err error
	if h.diag, err = mptcpnl.DialDiagnostics(int(file.Fd())); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.diag.Close() })
	return h
}

func (h *Host) prefixes() []string { return []string{h.IPv4.String() + "/24", h.IPv6.String() + "/64"} }

// Address is the host's address of IP version 4 or 6.
func (h *Host) Address(version int) netip.Addr {
	if version == 6 {
		return h.IPv6
	}
	return h.IPv4
}

// Open opens the namespace's file.
func (h *Host) Open() *os.File {
	h.t.Helper()
	file, err := os.Open(h.Path())
	if err != nil {
		h.t.Fatal(err)
	}
	return file
}

// Diagnostics are those of the namespace.
func (h *Host) Diagnostics() *mptcpnl.Diagnostics { return h.diag }

// Serve echoes what it is sent, on a port that the kernel chooses, until the
// test ends.
func (h *Host) Serve(version int) netip.AddrPort {
	h.t.Helper()
	return h.ServeAt(netip.AddrPortFrom(h.Address(version), 0))
}

// ServeAt is Serve at an address, and at a port if it is not 0.
func (h *Host) ServeAt(address netip.AddrPort) netip.AddrPort {
	h.t.Helper()
	listener, err := h.Listen(context.Background(), "tcp", address.String())
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(connection, connection)
				connection.Close()
			}()
		}
	}()
	return netip.MustParseAddrPort(listener.Addr().String())
}

// Connect opens a connection that sends a little all the time, and fails the
// test if an answer is not what was sent. The test's end closes it. A first answer
// has come when it returns: before that, the kernel adds no subflows.
func (h *Host) Connect(server netip.AddrPort) net.Conn {
	h.t.Helper()
	connection, err := h.Dial(context.Background(), "tcp", server.String())
	if err != nil {
		h.t.Fatal(err)
	}
	if err := exchange(connection, 0); err != nil {
		connection.Close()
		h.t.Fatalf("connection to %s: %v", server, err)
	}
	stopped := make(chan error, 1)
	go func() { stopped <- chat(connection) }()
	h.t.Cleanup(func() {
		connection.Close()
		if err := <-stopped; err != nil && !errors.Is(err, net.ErrClosed) {
			h.t.Errorf("connection to %s: %v", server, err)
		}
	})
	return connection
}

func chat(connection net.Conn) error {
	for i := 1; ; i++ {
		if err := exchange(connection, i); err != nil {
			return err
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// exchange sends a few bytes and reads them again.
func exchange(connection net.Conn, number int) error {
	sent, received := fmt.Sprintf("%08d", number%1e8), make([]byte, 8)
	if _, err := connection.Write([]byte(sent)); err != nil {
		return err
	}
	if _, err := io.ReadFull(connection, received); err != nil {
		return err
	}
	if string(received) != sent {
		return fmt.Errorf("sent %q and received %q", sent, received)
	}
	return nil
}

// Subflows lists the established subflows of the connection that began at this
// local address and port.
func (h *Host) Subflows(local net.Addr) []mptcpnl.Subflow {
	h.t.Helper()
	token, ok := h.Token(local)
	if !ok {
		return nil
	}
	all, err := h.diag.Subflows(0)
	if err != nil {
		h.t.Fatal(err)
	}
	var subflows []mptcpnl.Subflow
	for _, subflow := range all {
		if subflow.Token == token && subflow.Established {
			subflows = append(subflows, subflow)
		}
	}
	return subflows
}

// Token finds the token of the connection that began at this local address.
func (h *Host) Token(local net.Addr) (uint32, bool) {
	h.t.Helper()
	connections, err := h.diag.Connections(0)
	if err != nil {
		h.t.Fatal(err)
	}
	for _, connection := range connections {
		if connection.Local.String() == local.String() {
			return connection.Token, true
		}
	}
	return 0, false
}

// ExpectSubflows waits until the connection has this many subflows.
func (h *Host) ExpectSubflows(connection net.Conn, count int) {
	h.t.Helper()
	var subflows []mptcpnl.Subflow
	Eventually(h.t, func() bool {
		subflows = h.Subflows(connection.LocalAddr())
		return len(subflows) == count
	}, func() string { return fmt.Sprintf("a connection has subflows %v, not %d", subflows, count) })
}

// Kill resets one subflow as a middlebox would, with no word to the path
// manager.
func (h *Host) Kill(subflow mptcpnl.Subflow) {
	h.t.Helper()
	_, err := h.Run("ss", "--kill", "--tcp", "state", "established",
		"src", subflow.Local.String(), "dst", subflow.Remote.String())
	if err != nil {
		h.t.Fatal(err)
	}
}

// Eventually waits until done returns true.
func Eventually(t *testing.T, done func() bool, message func() string) {
	t.Helper()
	testutil.Retry(t, Wait, func() error {
		if done() {
			return nil
		}
		return errors.New(message())
	})
}
