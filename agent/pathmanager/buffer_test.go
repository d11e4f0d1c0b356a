// SPDX-License-Identifier: Apache-2.0

package pathmanager_test

import (
	"context"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"braid.dev/braid/internal/lab/pair"
)

func TestNewConnectionsHaveTheReceiveBufferThatIsChosen(t *testing.T) {
	t.Parallel()
	client, server := pair.New(t)
	server.Serve(4)
	namespace := open(t, client, t.TempDir())
	t.Cleanup(func() { namespace.Close() })
	require.NoError(t, namespace.Configure(context.Background(), settings(client, kernel, 3)))
	before := receiveBuffer(t, client, server)
	require.NoError(t, namespace.SetReceiveBuffer(100_000))
	if got := receiveBuffer(t, client, server); got != 200_000 {
		t.Errorf("a connection's buffer takes %d bytes, not twice 100,000 as the kernel does for SO_RCVBUF", got)
	}
	require.NoError(t, namespace.SetReceiveBuffer(0))
	if got := receiveBuffer(t, client, server); got != before {
		t.Errorf("a connection's buffer takes %d bytes, and %d before", got, before)
	}
}

// receiveBuffer is that of the MPTCP socket of a new connection, not of its subflow.
func receiveBuffer(t *testing.T, client, server *pair.Host) (size int) {
	t.Helper()
	connection, err := client.Dial(context.Background(), "tcp", server.Serve(4).String())
	require.NoError(t, err)
	defer connection.Close()
	raw, err := connection.(*net.TCPConn).SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Control(func(fd uintptr) {
		size, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF)
	}))
	require.NoError(t, err)
	return size
}

func TestNoMoreIsChosenThanTheNodeAllows(t *testing.T) {
	t.Parallel()
	client, _ := pair.New(t)
	most, err := os.ReadFile("/proc/sys/net/core/rmem_max")
	require.NoError(t, err)
	allowed, err := strconv.Atoi(strings.TrimSpace(string(most)))
	require.NoError(t, err)
	namespace := open(t, client, t.TempDir())
	t.Cleanup(func() { namespace.Close() })
	require.NoError(t, namespace.Configure(context.Background(), settings(client, kernel, 3)))
	require.NoError(t, namespace.SetReceiveBuffer(int64(allowed)+1))
	if sizes := strings.Fields(settingOf(t, client, "net.ipv4.tcp_rmem")); sizes[1] != strconv.Itoa(2*allowed) || sizes[2] != sizes[1] {
		t.Errorf("the sizes are %v, and the node allows %d", sizes, allowed)
	}
}

func TestTheReceiveBuffersOfANamespaceArePutBack(t *testing.T) {
	t.Parallel()
	const setting, own = "net.ipv4.tcp_rmem", "5000\t90000\t700000"
	client, _ := pair.New(t)
	_, err := client.Run("sysctl", "-w", setting+"="+own)
	require.NoError(t, err)
	expect := func(wanted string) {
		t.Helper()
		require.Equal(t, wanted, settingOf(t, client, setting))
	}
	statePath := t.TempDir()
	first := open(t, client, statePath)
	require.NoError(t, first.Configure(context.Background(), settings(client, kernel, 3)))
	require.NoError(t, first.SetReceiveBuffer(0))
	expect(own)
	require.NoError(t, first.SetReceiveBuffer(64<<10))
	expect("5000\t131072\t131072")
	require.NoError(t, first.Close())
	second := open(t, client, statePath)
	defer second.Close()
	require.NoError(t, second.Configure(context.Background(), settings(client, kernel, 3)))
	require.NoError(t, second.SetReceiveBuffer(128<<10))
	expect("5000\t262144\t262144")
	require.NoError(t, second.Restore(context.Background()))
	expect(own)
}
