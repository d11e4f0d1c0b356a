// SPDX-License-Identifier: Apache-2.0

package traffic_test

import (
	"context"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
	"braid.dev/braid/internal/testutil"
)

func TestASubflowIsSeenWithWhatItSent(t *testing.T) {
	n := network.ForTest(t, network.Spec{Nodes: 2, Paths: []string{"blue", "green"}})
	client, server := n.Nodes[0], n.Nodes[1]
	for _, node := range n.Nodes {
		command(t, node, "ip", "mptcp", "limits", "set", "subflow", "4", "add_addr_accepted", "4")
	}
	second := client.Address(1, 4)
	command(t, client, "ip", "mptcp", "endpoint", "add", second, "subflow")
	for _, version := range []int{4, 6} {
		connection := connect(t, client.Namespace, server.Namespace, server.Address(0, version))
		const size = 1 << 20
		go func() { _, _ = connection.Write(make([]byte, size)) }()
		// IPv6 has no second endpoint here. The second subflow may come after everything was sent.
		count := map[int]int{4: 2, 6: 1}[version]
		subflows := waitForSent(t, connection, size, count)
		if subflows[0].Local.Addr() != netip.MustParseAddr(client.Address(0, version)) || subflows[0].RTT <= 0 || subflows[0].Window == 0 {
			t.Errorf("IPv%d: the first subflow is %+v", version, subflows[0])
		}
		if len(subflows) != count || version == 4 && subflows[1].Local.Addr() != netip.MustParseAddr(second) {
			t.Errorf("subflows %+v", subflows)
		}
	}
}

func command(t *testing.T, node *network.Node, name string, args ...string) {
	t.Helper()
	if _, err := node.Run(name, args...); err != nil {
		t.Fatal(err)
	}
}

// connect opens a connection to a server that reads everything.
func connect(t *testing.T, from, to *network.Namespace, address string) *net.TCPConn {
	t.Helper()
	listener, err := to.Listen(t.Context(), "tcp", net.JoinHostPort(address, "0"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		connection, err := listener.Accept()
		if err == nil {
			_, _ = io.Copy(io.Discard, connection)
			_ = connection.Close()
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	connection, err := from.Dial(ctx, "tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { connection.Close() })
	return connection.(*net.TCPConn)
}

// waitForSent waits until there are so many subflows and they have sent so much together.
func waitForSent(t *testing.T, connection *net.TCPConn, size uint64, count int) (subflows []traffic.Subflow) {
	t.Helper()
	testutil.Eventually(t, 10*time.Second, "it was sent", func() bool {
		var err error
		subflows, err = traffic.Subflows(connection)
		require.NoError(t, err)
		var sent uint64
		for _, subflow := range subflows {
			sent += subflow.Sent
		}
		return sent >= size && len(subflows) >= count
	})
	return subflows
}
