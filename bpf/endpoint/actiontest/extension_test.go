// SPDX-License-Identifier: Apache-2.0

package actiontest_test

import (
	"context"
	"net"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"braid.dev/braid/bpf/packettest"
	"braid.dev/braid/internal/lab/network"
)

// socketHeaders are what a socket puts before TCP when it is asked to, by the option.
func socketHeaders(server string) map[string]map[int]packettest.Extension {
	// A segment routing header that has arrived: of one segment none is left.
	route := packettest.Extension{Kind: packettest.Routing, Body: slices.Concat([]byte{2, 4, 0, 0, 0, 0, 0}, net.ParseIP(server))}
	return map[string]map[int]packettest.Extension{
		"nothing":             {},
		"hop-by-hop options":  {unix.IPV6_HOPOPTS: packettest.Options(packettest.HopByHop, 2)},
		"destination options": {unix.IPV6_DSTOPTS: packettest.Options(packettest.DestinationOptions, 3)},
		"a routing header":    {unix.IPV6_RTHDR: route},
		"all of them": {
			unix.IPV6_HOPOPTS: packettest.Options(packettest.HopByHop, 1),
			unix.IPV6_DSTOPTS: packettest.Options(packettest.DestinationOptions, 4), unix.IPV6_RTHDR: route,
		},
	}
}

// dialWith connects with these headers before TCP.
func dialWith(pod *network.Pod, to string, headers map[int]packettest.Extension, wait time.Duration) (connection net.Conn, err error) {
	dialer := net.Dialer{Timeout: wait, Control: func(_, _ string, raw syscall.RawConn) (failed error) {
		err := raw.Control(func(socket uintptr) {
			for option, header := range headers {
				value := string(append([]byte{0}, header.Body...))
				if failed = unix.SetsockoptString(int(socket), unix.IPPROTO_IPV6, option, value); failed != nil {
					return
				}
			}
		})
		if err != nil {
			return err
		}
		return failed
	}}
	err = pod.Do(func() (err error) {
		connection, err = dialer.DialContext(context.Background(), "tcp6", to)
		return err
	})
	return connection, err
}

// Every pod may set extension headers on its sockets. The real kernel's own packets
// come behind them here: rules that drop and rates that are policed hold all the same.
func TestRulesHoldBehindHeadersThatSocketsSet(t *testing.T) {
	n := newNodeIn(t, network.Spec{LinkMbit: 100, IPv6: true})
	for _, where := range []string{"all", "eth0"} {
		require.NoError(t, n.other.Sysctl("net.ipv6.conf."+where+".seg6_enabled", "1"))
	}
	var listener net.Listener
	require.NoError(t, n.other.Do(func() (err error) {
		listener, err = net.Listen("tcp6", net.JoinHostPort(n.other.IPv6, "0"))
		return err
	}))
	t.Cleanup(func() { listener.Close() })
	var arrived atomic.Int64
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			go receiveAll(connection, &arrived)
		}
	}()
	to := listener.Addr().String()
	for name, headers := range socketHeaders(n.other.IPv6) {
		t.Run(name, func(t *testing.T) {
			n.rule(t, rule{})
			connection, err := dialWith(n.guest, to, headers, 5*time.Second)
			require.NoError(t, err, "without a rule")
			connection.Close()

			n.rule(t, rule{directions: 1 << fromEndpoint}, action{kind: drop})
			if connection, err := dialWith(n.guest, to, headers, 500*time.Millisecond); err == nil {
				connection.Close()
				t.Error("a rule that drops everything was avoided")
			}

			const rate = 250_000 // bytes a second
			n.rule(t, rule{directions: 1 << fromEndpoint}, action{kind: rateLimit, mechanism: police, rate: rate})
			limited, err := dialWith(n.guest, to, headers, 5*time.Second)
			require.NoError(t, err)
			go sendAll(limited)
			time.Sleep(500 * time.Millisecond)
			before := arrived.Load()
			time.Sleep(2 * time.Second)
			require.NoError(t, limited.(*net.TCPConn).SetLinger(0))
			require.NoError(t, limited.Close())
			if got := float64(arrived.Load()-before) / 2; got > 1.3*rate || got == 0 {
				t.Errorf("%.0f bytes a second arrived at a rate of %d", got, rate)
			}
		})
	}
}
