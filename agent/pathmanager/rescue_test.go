// SPDX-License-Identifier: Apache-2.0

package pathmanager_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	"github.com/stretchr/testify/require"

	"braid.dev/braid/agent/crowd"
	"braid.dev/braid/agent/pathmanager"
	"braid.dev/braid/internal/lab/pair"
)

// loseFirst has a host lose all that comes in from the end of a connection's first subflow.
func loseFirst(t *testing.T, host *pair.Host, connection net.Conn) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "rules.nft")
	require.NoError(t, os.WriteFile(path, fmt.Appendf(nil, `
table inet loss {
	chain incoming {
		type filter hook prerouting priority raw;
		tcp sport %d drop
	}
}
`, connection.LocalAddr().(*net.TCPAddr).Port), 0o600))
	_, err := host.Run("nft", "-f", path)
	require.NoError(t, err)
}

func TestAConnectionThatStandsStillDoesNotWaitForRoomOnThePaths(t *testing.T) {
	t.Parallel()
	client, server := pair.New(t)
	manage(t, server, agent, 3)
	var full crowd.Rooms
	full.Of("tenant").Set(0, time.Now().Add(time.Hour))
	namespace, err := pathmanager.Open(client.Path(), pathmanager.Options{StatePath: t.TempDir(), Log: testr.New(t), Crowd: &full})
	require.NoError(t, err)
	t.Cleanup(func() { namespace.Close() })
	namespace.ShareAs("tenant")
	require.NoError(t, namespace.Configure(context.Background(), after(client, pathmanager.OpenAfter{Bytes: 1})))
	address := server.Serve(4)
	stuck, other := begin(t, client, address), begin(t, client, address)
	expectStays(t, client, stuck, 1, time.Second)
	loseFirst(t, server, stuck)
	require.NoError(t, stuck.SetDeadline(time.Now().Add(20*time.Second)))
	exchange(t, stuck, 100<<10)
	client.ExpectSubflows(stuck, 2)
	exchange(t, other, 100<<10)
	expectStays(t, client, other, 1, time.Second)
	expectStays(t, client, stuck, 2, time.Second)
	full.Of("tenant").Free()
	client.ExpectSubflows(other, 3)
	client.ExpectSubflows(stuck, 3)
}
