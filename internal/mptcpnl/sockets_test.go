// SPDX-License-Identifier: Apache-2.0

package mptcpnl_test

import (
	"context"
	"io"
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/pair"
	"braid.dev/braid/internal/mptcpnl"
)

// kind is what is known of a socket beside its ends.
type kind struct{ multipath, fellBack, over bool }

func TestASubflowIsToldFromOtherSockets(t *testing.T) {
	here, there := pair.New(t)
	server := there.Serve(4)
	connect := func(protocol network.Protocol, to netip.AddrPort) (net.Conn, netip.AddrPort) {
		connection, err := here.DialBy(context.Background(), protocol, "tcp", to.String())
		require.NoError(t, err)
		t.Cleanup(func() { connection.Close() })
		_, err = connection.Write([]byte("x"))
		require.NoError(t, err)
		_, err = io.ReadFull(connection, make([]byte, 1))
		require.NoError(t, err)
		return connection, localAddress(connection)
	}
	_, multipath := connect(network.MPTCP, server)
	_, plain := connect(network.TCP, server)
	_, fellBack := connect(network.MPTCP, servePlain(t, there))
	closed, over := connect(network.TCP, server)
	require.NoError(t, closed.Close())

	expect := func(host *pair.Host, want map[netip.AddrPort]kind, end func(*mptcpnl.Socket) netip.AddrPort) {
		t.Helper()
		pair.Eventually(t, func() bool {
			got := kindsOf(t, host, end)
			for client, wanted := range want {
				if got[client] != wanted {
					return false
				}
			}
			return true
		}, func() string { return "the sockets are not told as what they are" })
	}
	expect(here, map[netip.AddrPort]kind{multipath: {multipath: true}, plain: {}, fellBack: {fellBack: true}, over: {over: true}},
		func(s *mptcpnl.Socket) netip.AddrPort { return s.Local })
	expect(there, map[netip.AddrPort]kind{multipath: {multipath: true}, plain: {}, fellBack: {}},
		func(s *mptcpnl.Socket) netip.AddrPort { return s.Remote })
}

// kindsOf are a host's sockets by their clients' ends.
func kindsOf(t *testing.T, host *pair.Host, end func(*mptcpnl.Socket) netip.AddrPort) map[netip.AddrPort]kind {
	t.Helper()
	kinds := map[netip.AddrPort]kind{}
	require.NoError(t, host.Diagnostics().EachSocket(func(s *mptcpnl.Socket) bool {
		kinds[end(s)] = kind{s.Multipath, s.FellBack, s.Over}
		if !s.Over {
			require.NotZero(t, s.TCP.SentBytes, "what %v has sent", s.Local)
		}
		return true
	}))
	return kinds
}

// servePlain echoes a connection on a socket that does not speak MPTCP.
func servePlain(t *testing.T, host *pair.Host) netip.AddrPort {
	t.Helper()
	var config net.ListenConfig
	config.SetMultipathTCP(false)
	var listener net.Listener
	require.NoError(t, host.Do(func() (err error) {
		listener, err = config.Listen(context.Background(), "tcp", netip.AddrPortFrom(host.IPv4, 0).String())
		return err
	}))
	t.Cleanup(func() { listener.Close() })
	go func() {
		if connection, err := listener.Accept(); err == nil {
			_, _ = io.Copy(connection, connection)
			connection.Close()
		}
	}()
	return netip.MustParseAddrPort(listener.Addr().String())
}
