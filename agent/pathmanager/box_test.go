// SPDX-License-Identifier: Apache-2.0

package pathmanager_test

import (
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/internal/lab/pair"
)

// withoutOptions takes MPTCP's options from each SYN that the host gets, as a box on its way
// does, until it is told to end.
func withoutOptions(t *testing.T, host *pair.Host) (end func()) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "rules.nft")
	require.NoError(t, os.WriteFile(path, []byte(`
table inet box {
	chain incoming {
		type filter hook prerouting priority raw;
		tcp flags & syn == syn reset tcp option mptcp
	}
}
`), 0o600))
	_, err := host.Run("nft", "-f", path)
	require.NoError(t, err)
	return func() {
		_, err := host.Run("nft", "delete", "table", "inet", "box")
		require.NoError(t, err)
	}
}

// joinsSent is how many SYNs with MP_JOIN a host has sent, without those that TCP repeats.
func joinsSent(t *testing.T, host *pair.Host) int {
	t.Helper()
	count, err := host.KernelCounter("MPTcpExtMPJoinSynTx")
	require.NoError(t, err)
	return count
}

// The kernel says of a join that was answered without MPTCP that it closed by no error.
func TestJoinsThroughABoxThatTakesTheirOptionAreRareAndComeBackForAllConnections(t *testing.T) {
	t.Parallel()
	client, server := pair.New(t)
	address := server.Serve(4)
	one, other := client.Connect(address), client.Connect(address)
	end := withoutOptions(t, server)
	manage(t, server, agent, 2)
	manage(t, client, agent, 2)
	pair.Eventually(t, func() bool { return joinsSent(t, client) > 0 }, func() string { return "nothing was joined" })
	time.Sleep(3 * time.Second)
	tried := joinsSent(t, client)
	require.LessOrEqual(t, tried, 2, "joins of two connections: after one failed no other is tried")
	end()
	begin := time.Now()
	for _, connection := range []net.Conn{one, other} {
		for time.Since(begin) < 15*time.Second && len(client.Subflows(connection.LocalAddr())) < 2 {
			time.Sleep(50 * time.Millisecond)
		}
		client.ExpectSubflows(connection, 2)
	}
	require.LessOrEqual(t, joinsSent(t, client), tried+2, "each joined at its first attempt")
}
