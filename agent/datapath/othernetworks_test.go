// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/agent/paths"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

// As OVN-Kubernetes and Antrea forward pods' packets: by flows of Open vSwitch, which writes
// the next hop's Ethernet address and sends them by a Geneve device that encapsulates whatever each
// packet says.
func TestConnectionsThroughOpenVSwitchFillAllPaths(t *testing.T) {
	l := newOverlay(t, network.Overlay{})
	err := l.LaySwitches()
	if errors.Is(err, network.ErrNoSwitch) {
		t.Skip(err)
	}
	require.NoError(t, err)
	l.least = 1.2 // kernels that have it are emulated here: the processor limits them
	l.expectSpreads(t, []transfers{{4, traffic.Up}, {4, traffic.Down}, {6, traffic.Up}})
}

// What encrypts hides the pods' packets from everybody on the way: they all arrive, by the
// NIC of the route.
func TestWhatWireGuardEncryptsKeepsItsRoute(t *testing.T) {
	l := newOverlay(t, network.Overlay{})
	err := l.LayWireGuard()
	if errors.Is(err, network.ErrNoWireGuard) {
		t.Skip(err)
	}
	require.NoError(t, err)
	l.applyOverlay(t)
	tunnels := l.findTunnels(t, 0)
	require.NotEmpty(t, tunnels)
	for _, tunnel := range tunnels {
		require.Equal(t, paths.TunnelEncrypted, tunnel.Kind, tunnel.Name)
	}
	serve(t, l.Pod("pod-2-1"), 4)
	announce(t, l.Pod("pod-1-1"), l.Pod("pod-2-1"), 4, 3)
	for sender, direction := range []traffic.Direction{traffic.Up, traffic.Down} {
		var result *traffic.Result
		sent := l.sent(t, sender, func() {
			result = transfer(t, l.Pod("pod-1-1"), l.Pod("pod-2-1"), 4, traffic.Options{Duration: time.Second, Verify: true, Direction: direction})
		})
		require.True(t, result.Multipath)
		require.Greater(t, sent.share(threePaths[0]), 0.99, "%v", sent)
	}
}

// kube-proxy's mode ipvs: a Service's address is one of the node's, and what is for it is translated where
// it would be delivered there.
func TestConnectionsToAServiceOfIPVSFillAllPathsOfAnOverlay(t *testing.T) {
	l := newOverlay(t, network.Overlay{Outer: 4})
	client, server := l.Pod("pod-1-1"), l.Pod("pod-2-1")
	service := netip.MustParseAddrPort("10.96.0.10:80")
	err := l.Nodes[0].ServeVirtually(service, netip.MustParseAddrPort(net.JoinHostPort(server.IPv4, port)))
	if errors.Is(err, network.ErrNoVirtualServer) {
		t.Skip(err)
	}
	require.NoError(t, err)
	serve(t, server, 4)
	announce(t, client, server, 4, 3)
	load := func() (result *traffic.Result, sent counted) {
		sent = l.sent(t, 0, func() {
			result = startWith(t, l.spreading(traffic.Up), func(ctx context.Context) (net.Conn, error) {
				return client.Dial(ctx, "tcp", service.String())
			}).wait(t)
		})
		t.Logf("%.1f Mbit/s by %d subflows, sent %v", result.Mbit, result.Subflows, sent)
		require.True(t, result.Multipath)
		return result, sent
	}
	alone, sent := load()
	require.Greater(t, sent.share(threePaths[0]), 0.99, "before there is a datapath: %v", sent)
	l.applyOverlay(t)
	var most float64
	for range 3 { // as in expectSpread; kernels that have it are emulated here
		result, sent := load()
		require.Equal(t, 3, result.Subflows)
		sent.expectShares(t, "the sender", evenShares)
		if most = max(most, result.Mbit); most > 1.2*alone.Mbit {
			return
		}
	}
	t.Errorf("%.1f Mbit/s over three NICs, and %.1f before there is a datapath", most, alone.Mbit)
}
