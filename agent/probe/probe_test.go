// SPDX-License-Identifier: Apache-2.0

package probe_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"braid.dev/braid/agent/probe"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/testutil"
)

// connection is a TCP connection between two pods of a node, through which nothing
// flows.
type connection struct{ client, server *net.TCPConn }

func connect(t *testing.T, n *network.Network, version int) connection {
	t.Helper()
	from, to := n.Nodes[0].Pods[0], n.Nodes[0].Pods[1]
	listener, err := to.Listen(t.Context(), "tcp", net.JoinHostPort(to.Address(version), "0"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, listener.Close()) })
	var client net.Conn
	require.NoError(t, from.Do(func() (err error) {
		var dialer net.Dialer
		dialer.SetMultipathTCP(false)
		client, err = dialer.DialContext(context.Background(), "tcp", listener.Addr().String())
		return err
	}))
	server, err := listener.Accept()
	require.NoError(t, err)
	c := connection{client.(*net.TCPConn), server.(*net.TCPConn)}
	t.Cleanup(func() { require.NoError(t, errors.Join(client.Close(), server.Close())) })
	return c
}

// say moves a byte in both directions.
func (c connection) say(t *testing.T) {
	t.Helper()
	for _, ends := range [][2]*net.TCPConn{{c.client, c.server}, {c.server, c.client}} {
		_, err := ends[0].Write([]byte{1})
		require.NoError(t, err)
		require.NoError(t, ends[1].SetReadDeadline(time.Now().Add(10*time.Second)))
		_, err = io.ReadFull(ends[1], make([]byte, 1))
		require.NoError(t, err)
	}
}

// control calls f with the socket.
func control(t *testing.T, connection *net.TCPConn, f func(socket int) error) {
	t.Helper()
	raw, err := connection.SyscallConn()
	require.NoError(t, err)
	var failed error
	require.NoError(t, raw.Control(func(socket uintptr) { failed = f(int(socket)) }))
	require.NoError(t, failed)
}

// next is the sequence number that an end sends next.
func next(t *testing.T, connection *net.TCPConn) (sequence uint32) {
	t.Helper()
	const on, offSilently, sendQueue = 1, -1, 2
	control(t, connection, func(socket int) error {
		err := unix.SetsockoptInt(socket, unix.IPPROTO_TCP, unix.TCP_REPAIR, on)
		if err == nil {
			err = unix.SetsockoptInt(socket, unix.IPPROTO_TCP, unix.TCP_REPAIR_QUEUE, sendQueue)
		}
		if err == nil {
			var value int
			value, err = unix.GetsockoptInt(socket, unix.IPPROTO_TCP, unix.TCP_QUEUE_SEQ)
			sequence = uint32(value)
		}
		return errors.Join(err, unix.SetsockoptInt(socket, unix.IPPROTO_TCP, unix.TCP_REPAIR, offSilently))
	})
	return sequence
}

func endOf(t *testing.T, connection *net.TCPConn) probe.End {
	t.Helper()
	return probe.End{AddrPort: netip.MustParseAddrPort(connection.LocalAddr().String()), Next: next(t, connection)}
}

// info is what the kernel knows of an end.
func info(t *testing.T, connection *net.TCPConn) (found *unix.TCPInfo) {
	t.Helper()
	control(t, connection, func(socket int) (err error) {
		found, err = unix.GetsockoptTCPInfo(socket, unix.IPPROTO_TCP, unix.TCP_INFO)
		return err
	})
	return found
}

// Both ends of an idle connection say something, and the connection goes on.
func TestBothEndsAnswerAndTheConnectionGoesOn(t *testing.T) {
	n := network.ForTest(t, network.Spec{Nodes: 1, Paths: []string{"blue"}, PodsPerNode: 2})
	var prober *probe.Prober
	require.NoError(t, n.Nodes[0].Do(func() (err error) {
		prober, err = probe.Open()
		return err
	}))
	t.Cleanup(func() { require.NoError(t, prober.Close()) })
	for _, version := range []int{4, 6} {
		t.Run(fmt.Sprintf("IPv%d", version), func(t *testing.T) {
			c := connect(t, n, version)
			c.say(t)
			time.Sleep(300 * time.Millisecond) // for delayed acknowledgements
			client, server := endOf(t, c.client), endOf(t, c.server)
			before := [2]*unix.TCPInfo{info(t, c.client), info(t, c.server)}
			require.NoError(t, errors.Join(prober.Probe(client, server), prober.Probe(server, client)))
			testutil.Eventually(t, 5*time.Second, "both ends sent a segment more", func() bool {
				return info(t, c.client).Segs_out > before[0].Segs_out && info(t, c.server).Segs_out > before[1].Segs_out
			})
			if after := info(t, c.client); after.Snd_wnd != before[0].Snd_wnd {
				t.Errorf("the window was %d and is %d", before[0].Snd_wnd, after.Snd_wnd)
			}
			c.say(t)
		})
	}
}
