// SPDX-License-Identifier: Apache-2.0

package pathmanager_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/pair"
)

// begin opens a connection and uses it once.
func begin(t *testing.T, host *pair.Host, address netip.AddrPort) net.Conn {
	t.Helper()
	connection, err := host.Dial(context.Background(), "tcp", address.String())
	require.NoError(t, err)
	t.Cleanup(func() { connection.Close() })
	_, err = connection.Write([]byte{1})
	require.NoError(t, err)
	_, err = io.ReadFull(connection, make([]byte, 1))
	require.NoError(t, err)
	return connection
}

func TestManyConnectionsAtOnceGetTheirSubflows(t *testing.T) {
	const connections = 300
	forEach(t, []int{3}, func(t *testing.T, manager v1alpha1.SubflowManager, version, count int) {
		client, server := pair.New(t)
		manage(t, server, manager, count)
		manage(t, client, manager, count)
		address := server.Serve(version)
		for range connections {
			begin(t, client, address)
		}
		var subflows int
		pair.Eventually(t, func() bool {
			all, err := client.Diagnostics().Subflows(0)
			require.NoError(t, err)
			subflows = len(all)
			return subflows == connections*count
		}, func() string {
			return fmt.Sprintf("%d connections have %d subflows", connections, subflows)
		})
	})
}
