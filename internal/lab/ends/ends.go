// SPDX-License-Identifier: Apache-2.0

// Package ends gives tests both ends of a connection.
package ends

import (
	"context"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/internal/lab/network"
)

// Server takes connections in a network namespace, and hands them to who made them.
type Server struct {
	at       *network.Namespace
	port     string
	accepted chan net.Conn
}

// ServerAt is a server that takes nothing before Serve.
func ServerAt(at *network.Namespace, port string) *Server {
	return &Server{at: at, port: port, accepted: make(chan net.Conn, 1)}
}

// Serve takes connections of TCP and MPTCP at an address until the test ends.
func (s *Server) Serve(t testing.TB, address string) {
	t.Helper()
	listener, err := s.at.Listen(context.Background(), "tcp", net.JoinHostPort(address, s.port))
	require.NoError(t, err)
	var taking sync.WaitGroup
	taking.Go(func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			s.accepted <- connection
		}
	})
	t.Cleanup(func() { _ = listener.Close(); taking.Wait() })
}

// Next is the server's end of the next connection that somebody makes.
func (s *Server) Next() net.Conn { return <-s.accepted }

// Connect returns both ends of a connection from a namespace: of MPTCP where protocol says so.
// The client has no probes of keepalive.
func (s *Server) Connect(t testing.TB, from *network.Namespace, protocol, address string) (client, server net.Conn) {
	t.Helper()
	require.NoError(t, from.Do(func() (err error) {
		dialer := net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: false}, KeepAlive: -1}
		dialer.SetMultipathTCP(protocol == "MPTCP")
		client, err = dialer.DialContext(t.Context(), "tcp", net.JoinHostPort(address, s.port))
		return err
	}))
	server = s.Next()
	t.Cleanup(func() { _ = client.Close(); _ = server.Close() })
	return client, server
}

// Talk has the server send, so that the client acknowledges.
func Talk(t testing.TB, client, server net.Conn) {
	t.Helper()
	_, err := server.Write(make([]byte, 40_000))
	require.NoError(t, err)
	_, err = io.ReadFull(client, make([]byte, 40_000))
	require.NoError(t, err)
}
