// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
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
