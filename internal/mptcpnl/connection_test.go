// SPDX-License-Identifier: Apache-2.0

package mptcpnl_test

import (
	"context"
	"io"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/pair"
	"braid.dev/braid/internal/mptcpnl"
	"braid.dev/braid/internal/testutil"
)

// begin connects to a server that reads, or does not, and writes for as long as the test runs.
func begin(t *testing.T, client, server *pair.Host, reads bool) mptcpnl.Subflow {
	t.Helper()
	listener, err := server.Listen(context.Background(), "tcp", netip.AddrPortFrom(server.IPv4, 0).String())
	require.NoError(t, err)
	t.Cleanup(func() { listener.Close() })
	connection, err := client.DialBy(context.Background(), network.MPTCP, "tcp", listener.Addr().String())
	require.NoError(t, err)
	accepted, err := listener.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { connection.Close(); accepted.Close() })
	go func() { _, _ = io.Copy(connection, zeros{}) }()
	if reads {
		go func() { _, _ = io.Copy(io.Discard, accepted) }()
	}
	subflow := mptcpnl.Subflow{Local: localAddress(connection), Remote: netip.MustParseAddrPort(connection.RemoteAddr().String())}
	return look(t, client, subflow)
}

// zeros has no end.
type zeros struct{}

func (zeros) Read(to []byte) (int, error) { return len(to), nil }

func look(t *testing.T, host *pair.Host, at mptcpnl.Subflow) mptcpnl.Subflow {
	t.Helper()
	subflow, exists, err := host.Diagnostics().Subflow(at.Local, at.Remote)
	require.NoError(t, err)
	require.True(t, exists)
	return subflow
}

// awaits looks at a connection until it is so.
func awaits(t *testing.T, host *pair.Host, subflow mptcpnl.Subflow, what string, is func(mptcpnl.Connection, mptcpnl.TCPInfo) bool) {
	t.Helper()
	testutil.Eventually(t, 20*time.Second, what, func() bool {
		tcp := look(t, host, subflow).TCP
		found, exists, err := host.Diagnostics().Connection(subflow.Token)
		require.NoError(t, err)
		require.True(t, exists)
		require.Equal(t, subflow.Token, found.Token)
		require.GreaterOrEqual(t, found.Backlog, found.UnderWay)
		require.NotZero(t, tcp.PacingRate)
		require.Equal(t, ^uint64(0), tcp.MaxPacingRate)
		return is(found, tcp)
	})
}

func TestOfAConnectionThatSendsItIsKnownHowMuchIsUnderWay(t *testing.T) {
	client, server := pair.New(t)
	subflow := begin(t, client, server, true)
	awaits(t, client, subflow, "data is under way", func(found mptcpnl.Connection, tcp mptcpnl.TCPInfo) bool {
		return found.UnderWay > 10_000 && tcp.Queued > 10_000
	})
}

func TestOfAConnectionWhosePeerDoesNotReadItIsKnownThatNothingIsUnderWayAndMuchWaits(t *testing.T) {
	client, server := pair.New(t)
	subflow := begin(t, client, server, false)
	awaits(t, client, subflow, "the window is closed", func(found mptcpnl.Connection, tcp mptcpnl.TCPInfo) bool {
		return tcp.SendWindow < 3000 && found.UnderWay < 3000 && tcp.Queued < 3000 && found.Backlog > 10_000
	})
	awaits(t, client, subflow, "the application waits for room", func(found mptcpnl.Connection, _ mptcpnl.TCPInfo) bool {
		return found.SendBuffer > 0 && found.SendBufferUsed > found.Backlog && 3*found.SendBufferUsed >= 2*found.SendBuffer
	})
}

func TestNoConnectionHasATokenThatNobodyHas(t *testing.T) {
	client, _ := pair.New(t)
	found, exists, err := client.Diagnostics().Connection(1)
	require.NoError(t, err)
	require.False(t, exists)
	require.Equal(t, mptcpnl.Connection{}, found)
}
