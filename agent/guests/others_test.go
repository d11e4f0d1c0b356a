// SPDX-License-Identifier: Apache-2.0

package guests

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/bpf/guest"
	"braid.dev/braid/internal/lab/pair"
)

// run runs a command in a namespace of the lab.
func run(t *testing.T, in *pair.Host, command string) {
	t.Helper()
	words := strings.Fields(command)
	_, err := in.Run(words[0], words[1:]...)
	require.NoError(t, err, command)
}

// What the ports are is no part of MPTCP's checksums.
func TestChecksumsOfMPTCPStayWhole(t *testing.T) {
	l := newLab(t)
	l.follow(t)
	for _, host := range []*pair.Host{l.guest, l.server} {
		require.NoError(t, host.Sysctl("net.mptcp.checksum_enabled", "1"))
	}
	l.apply(t)
	client, server := l.open(t, 4, 1<<20)
	l.carryUntil(t, client, server, 3)
	carry(t, client, server, 8<<20)
	carry(t, server, client, 8<<20)
	require.Len(t, l.guest.Subflows(client.LocalAddr()), 3)
	for _, host := range []*pair.Host{l.guest, l.server} {
		out, err := host.Run("nstat", "--ignore", "--zeros", "--noupdate", "MPTcpExtDataCsumErr")
		require.NoError(t, err)
		require.Contains(t, strings.Fields(out), "0", out)
	}
}

// Together they are as many as the policy wants: what the peer announces and what the guest
// opens by itself goes on.
func TestSubflowsOfTheGuestAndThePeerCount(t *testing.T) {
	for name, own := range map[string]func(l *lab){
		"the peer announces a port": func(l *lab) {
			run(t, l.server, fmt.Sprintf("ip mptcp endpoint add %s port 61001 signal", l.server.IPv4))
		},
		"the guest has another address": func(l *lab) {
			const address = "10.244.1.200"
			vm := l.Pod("guest-1-1")
			run(t, l.guest, "ip address add "+address+"/32 dev eth0")
			run(t, l.guest, "ip mptcp endpoint add "+address+" dev eth0 subflow")
			for _, namespace := range []*pair.Host{pair.HostOf(t, vm.Node.Namespace, vm.IPv4, vm.IPv6), pair.HostOf(t, vm.Forwarder, vm.IPv4, vm.IPv6)} {
				route, err := namespace.Run("ip", "-4", "route", "get", vm.IPv4)
				require.NoError(t, err)
				words := append([]string{"route", "add", address + "/32"}, via(strings.Fields(route))...)
				_, err = namespace.Run("ip", words...)
				require.NoError(t, err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			l.follow(t)
			own(l)
			l.apply(t)
			client, server := l.open(t, 4, 1<<20)
			l.carryUntil(t, client, server, 3)
			var announced, others int
			for _, subflow := range l.guest.Subflows(client.LocalAddr()) {
				port := int(subflow.Remote.Port())
				switch {
				case port >= guest.FirstAnnouncedPort && port < guest.FirstAnnouncedPort+guest.AnnouncedPorts:
					announced++
				case port == 61001 || subflow.Local.Addr() != l.guest.IPv4:
					others++
				}
			}
			require.Equal(t, []int{1, 1}, []int{announced, others})
			time.Sleep(500 * time.Millisecond)
			carry(t, client, server, 1<<20)
			require.Len(t, l.guest.Subflows(client.LocalAddr()), 3)
		})
	}
}

// via is the way of a route that the kernel shows.
func via(words []string) (way []string) {
	for i, word := range words {
		if word == "via" || word == "dev" {
			way = append(way, word, words[i+1])
		}
	}
	return way
}

// A guest that floods its own table, and its host with joins, costs another guest nothing.
func TestAGuestThatFloodsDisturbsNoOther(t *testing.T) {
	l := newLab(t)
	l.follow(t)
	l.addFlooder(t)
	l.apply(t)
	client, server := l.open(t, 4, 1<<20)
	l.carryUntil(t, client, server, 3)
	var flooded atomic.Int64
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var flooders sync.WaitGroup
	for range 8 {
		flooders.Go(func() { l.flood(ctx, &flooded) })
	}
	rounds := 0
	for ; ctx.Err() == nil && (rounds < 8 || flooded.Load() <= 200); rounds++ {
		carry(t, client, server, 2<<20)
		carry(t, server, client, 2<<20)
	}
	cancel()
	flooders.Wait()
	t.Logf("%d connections of the other guest in %d rounds", flooded.Load(), rounds)
	require.Greater(t, flooded.Load(), int64(200))
	require.Len(t, l.guest.Subflows(client.LocalAddr()), 3)
	other, otherServer := l.open(t, 4, 1<<20)
	l.carryUntil(t, other, otherServer, 3)
}

// addFlooder makes another VM of the first node an endpoint.
func (l *lab) addFlooder(t *testing.T) {
	t.Helper()
	flooder, err := l.Nodes[0].AddGuest("flooder")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, flooder.Remove()) })
	l.flooder = flooder
	_, err = flooder.Run("ip", "mptcp", "limits", "set", "add_addr_accepted", "8", "subflows", "8")
	require.NoError(t, err)
}

// flood opens connections by MPTCP, to the server's announced and other ports, one after the
// other, and counts them.
func (l *lab) flood(ctx context.Context, count *atomic.Int64) {
	for port := guest.FirstAnnouncedPort; ctx.Err() == nil; port++ {
		to := netip.AddrPortFrom(l.server.IPv4, uint16(guest.FirstAnnouncedPort+port%16))
		if connection, err := l.flooder.Dial(ctx, "tcp", to.String()); err == nil {
			_ = connection.Close()
		}
		count.Add(1)
	}
}
