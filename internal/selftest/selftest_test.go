// SPDX-License-Identifier: Apache-2.0

package selftest

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/internal/agentapi"
)

func send(t *testing.T, listener net.Listener, options Options) (reports []agentapi.Transfer) {
	t.Helper()
	options.Address = listener.Addr().String()
	require.NoError(t, Send(t.Context(), options, func(is agentapi.Transfer) error {
		reports = append(reports, is)
		return nil
	}))
	require.NotEmpty(t, reports)
	return reports
}

func TestATransferIsCountedAtBothEnds(t *testing.T) {
	for name, multipath := range map[string]bool{"by TCP": false, "by MPTCP": true} {
		t.Run(name, func(t *testing.T) {
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			ctx, stop := context.WithCancel(t.Context())
			served := make(chan error, 1)
			go func() { served <- Serve(ctx, listener) }()
			reports := send(t, listener, Options{Multipath: multipath, Duration: 100 * time.Millisecond, Every: 10 * time.Millisecond})
			last := reports[len(reports)-1]
			require.True(t, last.Ended, "%+v", last)
			require.Equal(t, last.SentBytes, last.ReceivedBytes)
			require.Positive(t, last.SentBytes)
			require.GreaterOrEqual(t, len(reports), 2, "it reports meanwhile")
			stop()
			require.NoError(t, <-served)
		})
	}
}

func TestAConnectionThatBreaksIsTold(t *testing.T) {
	var plain net.ListenConfig
	plain.SetMultipathTCP(false)
	listener, err := plain.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	go func() {
		connection, err := listener.Accept()
		if err == nil {
			_, _ = connection.Read(make([]byte, 1))    // else the dialer hears of it, and tries again
			_ = connection.(*net.TCPConn).SetLinger(0) // a reset
			connection.Close()
		}
	}()
	last := send(t, listener, Options{Duration: 5 * time.Second})[0]
	require.NotEmpty(t, last.Error)
	require.False(t, last.Ended)
}

func TestAnEndThatCountsLessIsTold(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	go func() {
		connection, err := listener.Accept()
		if err != nil {
			return
		}
		defer connection.Close()
		received, _ := io.Copy(io.Discard, connection)
		_ = binary.Write(connection, binary.BigEndian, uint64(received-1))
	}()
	last := send(t, listener, Options{Duration: 10 * time.Millisecond})[0]
	require.Contains(t, last.Error, "another number of bytes")
	require.False(t, last.Ended)
	require.Equal(t, last.SentBytes-1, last.ReceivedBytes)
}

func TestATransferThatNobodyAwaitsIsTold(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := listener.Addr().String()
	require.NoError(t, listener.Close())
	ctx, stop := context.WithTimeout(t.Context(), 50*time.Millisecond) // so long it is tried again
	defer stop()
	var last agentapi.Transfer
	require.NoError(t, Send(ctx, Options{Address: address}, func(is agentapi.Transfer) error { last = is; return nil }))
	require.Contains(t, last.Error, "connecting to "+address)
	require.Zero(t, last.SentBytes)
}

func TestATransferEndsWhenItsReportsGoNowhere(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	go func() { _ = Serve(ctx, listener) }()
	gone := errors.New("the reader is gone")
	err = Send(t.Context(), Options{Address: listener.Addr().String(), Duration: time.Minute, Every: time.Millisecond},
		func(agentapi.Transfer) error { return gone })
	require.ErrorIs(t, err, gone)
}
