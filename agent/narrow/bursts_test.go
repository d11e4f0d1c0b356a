// SPDX-License-Identifier: Apache-2.0

package narrow_test

import (
	"context"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	"github.com/stretchr/testify/require"

	"braid.dev/braid/agent/pathmanager"
	"braid.dev/braid/api/v1alpha1"
)

const (
	// asked is how much each answer brings on a connection that lasts.
	asked = 20 << 10
	port  = ":5002"
)

// serveAnswers answers each byte of a connection with that much.
func serveAnswers(t *testing.T, l *lab) {
	t.Helper()
	listener, err := l.Nodes[1].Pods[0].Listen(t.Context(), "tcp", port)
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer connection.Close()
				for one := make([]byte, 1); ; {
					if _, err := connection.Read(one); err != nil {
						return
					}
					if _, err := connection.Write(make([]byte, asked)); err != nil {
						return
					}
				}
			}()
		}
	}()
}

// beginOn opens a connection whose first subflow is on a path of the client's node.
func (l *lab) beginOn(t *testing.T, path uint8) net.Conn {
	t.Helper()
	client, server := l.Nodes[0].Pods[0], l.Nodes[1].Pods[0]
	for range 2 * len(l.paths) {
		connection, err := client.Dial(t.Context(), "tcp", net.JoinHostPort(server.IPv4, port[1:]))
		require.NoError(t, err)
		ask(t, connection)
		on, known, err := l.datapaths[0].PathOf(netip.MustParseAddrPort(connection.LocalAddr().String()), netip.MustParseAddrPort(connection.RemoteAddr().String()))
		require.NoError(t, err)
		if known && on == path {
			t.Cleanup(func() { _ = connection.Close() })
			return connection
		}
		require.NoError(t, connection.Close())
	}
	t.Fatalf("none begins on %s", l.paths[path])
	return nil
}

func ask(t *testing.T, connection net.Conn) {
	t.Helper()
	_, err := connection.Write([]byte{1})
	require.NoError(t, err)
	_, err = io.ReadFull(connection, make([]byte, asked))
	require.NoError(t, err)
}

// askFor asks for answers for a second, and returns how many came.
func askFor(t *testing.T, connection net.Conn) (count int) {
	t.Helper()
	for begun := time.Now(); time.Since(begun) < time.Second; count++ {
		ask(t, connection)
	}
	return count
}

// The kernel sends each answer by the first subflow, as nothing is under way then, while those on the good
// paths have nothing to send.
func TestAnswersLeaveTheSlowPathOnWhichTheirConnectionBegan(t *testing.T) {
	const slowMbit = 2
	most := slowMbit * 1_000_000 / 8 / asked // answers in a second that the path can carry
	l := newLab(t, paths...)
	for _, node := range l.Nodes {
		require.NoError(t, node.Pods[0].Sysctl("net.ipv4.tcp_rmem", "4096 131072 6291456"))
		require.NoError(t, node.Shape(paths[green], slowMbit))
	}
	manager, err := pathmanager.Open(l.Nodes[0].Pods[0].Path(), pathmanager.Options{StatePath: t.TempDir(), Log: testr.New(t)})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, manager.Restore(context.Background())); require.NoError(t, manager.Close()) })
	require.NoError(t, manager.Configure(t.Context(), pathmanager.Settings{
		Manager: v1alpha1.SubflowManagerAgent, Count: len(l.paths), Addresses: addressesOf(l.Nodes[0].Pods[0]), OpenAfter: pathmanager.OpenAfter{Time: 500 * time.Millisecond},
	}))
	serveAnswers(t, l)
	connection, begun := l.beginOn(t, green), time.Now()
	counts := []int{askFor(t, connection)}
	for counts[len(counts)-1] < 5*most && time.Since(begun) < time.Minute {
		counts = append(counts, askFor(t, connection))
	}
	t.Logf("answers in each second: %v; the slow path can carry %d", counts, most)
	require.Greater(t, counts[len(counts)-1], 5*most)
}
