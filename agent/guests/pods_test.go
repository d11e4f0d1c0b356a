// SPDX-License-Identifier: Apache-2.0

package guests

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

// Behind a masquerade the guest has other addresses and ports than its node sees: what is
// announced, and the joins, go through the pod's address translation.
func TestOneConnectionOfAVMInAPodFillsAllPaths(t *testing.T) {
	type leg struct {
		version   int
		direction traffic.Direction
	}
	for binding, legs := range map[network.Binding][]leg{
		network.BindingMasquerade: {{4, traffic.Up}, {4, traffic.Down}, {6, traffic.Up}},
		network.BindingBridge:     {{4, traffic.Up}, {6, traffic.Down}},
	} {
		t.Run(string(binding), func(t *testing.T) {
			l := newLabBy(t, binding, true)
			l.follow(t)
			before, err := l.Pod("guest-1-1").Forwarder.Run("ip", "mptcp", "limits", "show")
			require.NoError(t, err)
			l.apply(t)
			seen := watch(t, l.Nodes[0].Namespace, "prerouting")
			for _, leg := range legs {
				to := l.serve(t, leg.version)
				t.Run(fmt.Sprintf("IPv%d %s", leg.version, leg.direction), func(t *testing.T) {
					result, shares := l.transfer(t, to, leg.direction)
					t.Logf("%.1f Mbit/s, %v", result.Mbit, shares)
					require.Equal(t, 3, result.Subflows)
					for path, share := range shares {
						require.Greater(t, share, 0.15, "%s carries %.0f %% of it", path, 100*share)
					}
				})
			}
			require.Equal(t, 3, strings.Count(seen(), nothingSeen), seen())
			require.Equal(t, v1alpha1.GuestJoined, l.status(t).GuestSubflows)
			after, err := l.Pod("guest-1-1").Forwarder.Run("ip", "mptcp", "limits", "show")
			require.NoError(t, err)
			require.Equal(t, before, after, "nothing is set in the pod")
		})
	}
}

// The pod's address translation gives a connection another port than the guest does, where
// that is another guest connection's outside: the joins find theirs all the same.
func TestAConnectionWhosePortIsTranslatedInThePodIsJoined(t *testing.T) {
	l := newLabBy(t, network.BindingMasquerade, true)
	l.follow(t)
	for _, command := range []string{"flush chain ip nat postrouting", "add rule ip nat postrouting ip saddr 10.0.2.2 ip protocol tcp masquerade to :20000-20999 random"} {
		_, err := l.Pod("guest-1-1").Forwarder.Run("nft", strings.Fields(command)...)
		require.NoError(t, err)
	}
	l.apply(t)
	client, server := l.open(t, 4, 1<<20)
	l.carryUntil(t, client, server, 3)
	require.NotEqual(t, portOf(t, client.LocalAddr()), portOf(t, server.RemoteAddr()))
	carry(t, client, server, 4<<20)
	carry(t, server, client, 4<<20)
	require.Equal(t, v1alpha1.GuestJoined, l.status(t).GuestSubflows)
}

func portOf(t *testing.T, address net.Addr) uint16 {
	t.Helper()
	parsed, err := netip.ParseAddrPort(address.String())
	require.NoError(t, err)
	return parsed.Port()
}

// A Service that keeps a client with one backend, as with sessionAffinity: ClientIP, is joined
// like a pod: the node translates the joins' address as that of the connection.
func TestTheBackendOfAServiceThatKeepsItsClientsIsJoined(t *testing.T) {
	l := newLabBy(t, network.BindingMasquerade, true)
	l.follow(t)
	l.apply(t)
	const service = "10.96.0.10:80"
	accepted := make(chan net.Conn, 1)
	var backends []string
	for i := range 2 {
		listener, err := l.server.Listen(t.Context(), "tcp", netip.AddrPortFrom(l.server.Address(4), 0).String())
		require.NoError(t, err)
		t.Cleanup(func() { listener.Close() }) // it takes the joins
		backends = append(backends, fmt.Sprintf("%d : %s . %d", i, l.server.Address(4), portOf(t, listener.Addr())))
		go func() {
			if server, err := listener.Accept(); err == nil {
				accepted <- server
			}
		}()
	}
	for _, command := range []string{
		"add table ip service",
		"add chain ip service prerouting { type nat hook prerouting priority -100 ; }",
		"add rule ip service prerouting ip daddr 10.96.0.10 tcp dport 80 dnat to jhash ip saddr mod 2 map { " + strings.Join(backends, ", ") + " }",
	} {
		_, err := l.Nodes[0].Run("nft", strings.Fields(command)...)
		require.NoError(t, err, command)
	}
	client, err := l.guest.Dial(t.Context(), "tcp", service)
	require.NoError(t, err)
	t.Cleanup(func() { client.Close() })
	server := <-accepted
	t.Cleanup(func() { server.Close() })
	l.carryUntil(t, client, server, 3)
	carry(t, client, server, 4<<20)
	carry(t, server, client, 4<<20)
}
