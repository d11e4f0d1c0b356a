// SPDX-License-Identifier: Apache-2.0

package announcements

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"braid.dev/braid/agent/pathmanager"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/pair"
	"braid.dev/braid/internal/testutil"
)

// fastOpenLab has a server that takes data in SYNs.
func fastOpenLab(t *testing.T, manager v1alpha1.SubflowManager, version int) (l *lab, server netip.AddrPort) {
	t.Helper()
	l = newLabOf(t, manager, soon)
	require.NoError(t, l.client.Sysctl("net.ipv4.tcp_fastopen", "1"))
	require.NoError(t, l.server.Sysctl("net.ipv4.tcp_fastopen", fmt.Sprint(0x400|2|1))) // whoever listens
	server = l.server.Serve(version)
	l.settle(t)
	return l, server
}

// soon is when connections get their subflows.
var soon = pathmanager.OpenAfter{Bytes: 64 << 10, Time: 200 * time.Millisecond}

// fastOpened are the connections of which the server took data with the SYN.
func fastOpened(t *testing.T, server *pair.Host) int {
	return counter(t, server, "TcpExtTCPFastOpenPassive")
}

// openFast opens a connection whose first bytes may go with its SYN.
func openFast(t *testing.T, from *pair.Host, to netip.AddrPort) (connection net.Conn) {
	t.Helper()
	dialer := net.Dialer{Control: func(_, _ string, raw syscall.RawConn) (err error) {
		failed := raw.Control(func(socket uintptr) {
			err = unix.SetsockoptInt(int(socket), unix.IPPROTO_TCP, unix.TCP_FASTOPEN_CONNECT, 1)
		})
		return errors.Join(err, failed)
	}}
	dialer.SetMultipathTCP(true)
	require.NoError(t, from.Do(func() (err error) {
		connection, err = dialer.DialContext(context.Background(), "tcp", to.String())
		return err
	}))
	t.Cleanup(func() { connection.Close() })
	return connection
}

// It would crawl with several. Others of the same pods are announced addresses, or get subflows from the agent.
func TestAConnectionThatBeganWithDataGetsNoFurtherSubflow(t *testing.T) {
	for _, manager := range []v1alpha1.SubflowManager{v1alpha1.SubflowManagerKernel, v1alpha1.SubflowManagerAgent} {
		t.Run(string(manager), func(t *testing.T) {
			forBoth(t, func(t *testing.T, version int) {
				l, server := fastOpenLab(t, manager, version)
				echo(t, openFast(t, l.client, server), 100) // has the cookie now
				before := fastOpened(t, l.server)
				connection := openFast(t, l.client, server)
				echo(t, connection, 1<<20)
				require.Equal(t, before+1, fastOpened(t, l.server))
				other := connect(t, l.client, server)
				echo(t, other, 200<<10)
				testutil.Retry(t, 20*time.Second, func() error { return atLeast(2, len(l.client.Subflows(other.LocalAddr()))) })
				for range 40 {
					time.Sleep(50 * time.Millisecond)
					echo(t, connection, 1000)
					require.Len(t, l.client.Subflows(connection.LocalAddr()), 1)
				}
			})
		})
	}
}

func TestPodsWhoseConnectionsMayBeJoinedAskForNoCookie(t *testing.T) {
	forBoth(t, func(t *testing.T, version int) {
		l, server := fastOpenLab(t, v1alpha1.SubflowManagerKernel, version)
		l.holdAt(t, l.Nodes[0], Options{PinPath: testutil.BPFFS(t), Log: testr.New(t)}, soon)
		for range 3 {
			connection := openFast(t, l.client, server)
			echo(t, connection, 200<<10)
			l.client.ExpectSubflows(connection, subflows)
		}
		for _, count := range []string{"TcpExtTCPFastOpenCookieReqd", "TcpExtTCPFastOpenPassive", "TcpInCsumErrors"} {
			require.Zero(t, counter(t, l.server, count), count)
		}
	})
}
