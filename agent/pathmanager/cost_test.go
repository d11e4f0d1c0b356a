// SPDX-License-Identifier: Apache-2.0

package pathmanager_test

import (
	"context"
	"net"
	"net/netip"
	"os"
	"testing"

	"braid.dev/braid/agent/pathmanager/conntrack"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/mptcpnl"
)

// busyNamespace is a namespace with many connections to itself, and one of them.
func busyNamespace(b *testing.B, connections int) (file *os.File, local, remote netip.AddrPort) {
	b.Helper()
	namespace := network.NamespaceForTest(b)
	listener, err := namespace.Listen(context.Background(), "tcp", "127.0.0.1:0")
	fail(b, err)
	b.Cleanup(func() { listener.Close() })
	remote = netip.MustParseAddrPort(listener.Addr().String())
	for range connections {
		client, err := namespace.Dial(context.Background(), "tcp", remote.String())
		fail(b, err)
		server, err := listener.Accept()
		fail(b, err)
		b.Cleanup(func() { closeAll(client, server) })
		local = netip.MustParseAddrPort(client.LocalAddr().String())
	}
	file, err = os.Open(namespace.Path())
	fail(b, err)
	b.Cleanup(func() { file.Close() })
	return file, local, remote
}

func closeAll(connections ...net.Conn) {
	for _, connection := range connections {
		connection.Close()
	}
}

func fail(b *testing.B, err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// What it costs to look at one connection that waits for its further subflows.
func BenchmarkLookingAtASubflow(b *testing.B) {
	file, local, remote := busyNamespace(b, 1000)
	diagnostics, err := mptcpnl.DialDiagnostics(int(file.Fd()))
	fail(b, err)
	defer diagnostics.Close()
	for b.Loop() {
		if _, found, err := diagnostics.Subflow(local, remote); err != nil || !found {
			b.Fatalf("found: %t, error: %v", found, err)
		}
	}
}

// What it costs to find where a connection goes, once for each that gets further
// subflows.
func BenchmarkFindingADestination(b *testing.B) {
	file, local, remote := busyNamespace(b, 1000)
	table, err := conntrack.Dial(int(file.Fd()))
	fail(b, err)
	defer table.Close()
	for b.Loop() {
		if _, _, err := table.Destination(local, remote); err != nil {
			b.Fatal(err)
		}
	}
}
