// SPDX-License-Identifier: Apache-2.0

package proxy_test

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/internal/lab/traffic"
)

func randomBytes(size int) []byte {
	data := make([]byte, size)
	source := rand.NewChaCha8([32]byte{1})
	_, _ = source.Read(data)
	return data
}

// sendAll sends and says that this was all.
func sendAll(connection *net.TCPConn, data []byte) error {
	if _, err := connection.Write(data); err != nil {
		return err
	}
	return connection.CloseWrite()
}

func TestPlainConnectionsUseAllNICsInBothDirections(t *testing.T) {
	forBoth(t, func(t *testing.T, version int) {
		l := newLab(t)
		l.start(t, l.client)
		address, accepted := listen(t, l.server, version)
		client := l.dial(t, address)
		server := <-accepted
		multipath, err := server.MultipathTCP()
		require.NoError(t, err)
		require.True(t, multipath)
		require.Equal(t, client.LocalAddr().String(), server.RemoteAddr().String())
		data := randomBytes(24 << 20)
		for _, way := range [][2]*net.TCPConn{{client, server}, {server, client}} {
			failed := make(chan error, 1)
			go func() { failed <- sendAll(way[0], data) }()
			got, err := io.ReadAll(way[1])
			require.NoError(t, err)
			require.NoError(t, <-failed)
			require.True(t, bytes.Equal(data, got))
			if way[0] == client {
				subflows, err := traffic.Subflows(server)
				require.NoError(t, err)
				t.Logf("%+v", subflows)
				require.Len(t, subflows, 3)
			}
		}
	})
}
