// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/testutil"
)

// rateOf is the pace of a sender's socket in bytes a second, all there is where nobody paces it.
func rateOf(t *testing.T, connection net.Conn) (rate uint32) {
	t.Helper()
	raw, err := connection.(*net.TCPConn).SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Control(func(fd uintptr) {
		value, failed := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE)
		rate, err = uint32(value), failed
	}))
	require.NoError(t, err)
	return rate
}

// burst has another sender send for a while beside a stream, and returns when all had come. Both
// ends stay open, and with them the subflows of MPTCP, until the connection is closed.
func (c *crowd) burst(t *testing.T, protocol network.Protocol, beside func()) (ended time.Time, closed func() error) {
	t.Helper()
	listener, err := c.receiver.Listen(context.Background(), "tcp", net.JoinHostPort(c.receiver.IPv4, "0"))
	require.NoError(t, err)
	defer listener.Close()
	connection, err := c.senders[4].DialBy(t.Context(), protocol, "tcp", listener.Addr().String())
	require.NoError(t, err)
	accepted, err := listener.Accept()
	require.NoError(t, err)
	sent := make(chan error, 1)
	go func() {
		_, err := connection.Write(make([]byte, 2<<20))
		beside()
		sent <- errors.Join(err, connection.(*net.TCPConn).CloseWrite())
	}()
	_, err = io.Copy(io.Discard, accepted)
	ended = time.Now()
	require.NoError(t, errors.Join(err, <-sent))
	return ended, func() error { return errors.Join(connection.Close(), accepted.Close()) }
}

// Without a word of the end the other one has it in the next epoch but one: 20 to 40 ms later.
func TestWhatAFlowLeavesWhenItEndsTheOthersHaveWithTheirNextAcknowledgements(t *testing.T) {
	for name, protocol := range map[string]network.Protocol{"TCP": network.TCP, "MPTCP": network.MPTCP} {
		t.Run(name, func(t *testing.T) {
			c := newCrowd(t)
			c.give(t, credits, len(c.senders))
			stream := c.stream(t, network.TCP)
			var took []time.Duration
			for range 9 {
				var shared uint32
				ended, closed := c.burst(t, protocol, func() { shared = rateOf(t, stream) })
				testutil.Retry(t, 10*time.Second, func() error {
					if now := rateOf(t, stream); now < shared/2*3 {
						return fmt.Errorf("its pace is %d, and was %d beside another flow", now, shared)
					}
					return nil
				})
				took = append(took, time.Since(ended))
				require.NoError(t, closed())
				time.Sleep(200 * time.Millisecond)
			}
			slices.Sort(took)
			t.Logf("after %v", took)
			if took[len(took)/2] > 12*time.Millisecond {
				t.Errorf("the flow that stays has the credit of the one that ended after %v", took)
			}
		})
	}
}
