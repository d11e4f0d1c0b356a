// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"net"
	"net/netip"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netns"

	"braid.dev/braid/agent/paths"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

var theWorld = []v1alpha1.CIDR{network.WorldIPv4, network.WorldIPv6}

// newWorld is a lab of one node whose paths lead to a host outside, each over its own gateway.
func newWorld(t *testing.T) *lab {
	t.Helper()
	return newLabOf(t, network.Spec{Nodes: 1, Paths: threePaths, LinkMbit: 100, PodsPerNode: 2, World: true}, Options{})
}

// applyOutside applies what the agent finds where a policy names these destinations for the pods.
func (l *lab) applyOutside(t *testing.T, outside ...v1alpha1.CIDR) paths.Resolution {
	t.Helper()
	state := l.states(t)[0]
	namespace, err := netns.GetFromPath(l.Nodes[0].Path())
	require.NoError(t, err)
	defer namespace.Close()
	found, err := paths.Open(namespace)
	require.NoError(t, err)
	defer found.Close()
	query := paths.Query{Outside: paths.Prefixes(outside)}
	for _, path := range l.Spec.Paths {
		query.Paths = append(query.Paths, v1alpha1.PlanPath{Name: v1alpha1.PathName(path), Interfaces: []v1alpha1.InterfacePattern{v1alpha1.InterfacePattern(path)}})
	}
	resolution, err := found.Resolve(query)
	require.NoError(t, err)
	state.Outside, err = found.LeadOutside(resolution.Paths, query.Outside)
	require.NoError(t, err)
	for p := range state.Paths {
		state.Paths[p].Addresses = resolution.Paths[p].Addresses
	}
	for i := range state.Endpoints {
		state.Endpoints[i].Outside = outside
	}
	l.apply(t, 0, state)
	return resolution
}

// serveOutside answers transfers in the world, whose clients open further subflows
// to ports that it announces.
func (l *lab) serveOutside(t *testing.T, version, subflows int) {
	t.Helper()
	if version == 6 { // with timestamps there is no room for the announcement of an address and a port
		require.NoError(t, l.World.Sysctl("net.ipv4.tcp_timestamps", "0"))
	}
	world := &network.Pod{Namespace: l.World.Namespace, IPv4: l.World.IPv4, IPv6: l.World.IPv6}
	serve(t, world, version)
	announce(t, l.Nodes[0].Pods[0], world, version, subflows)
}

// toWorld is a transfer from the first pod to the world.
func (l *lab) toWorld(t *testing.T, version int, options traffic.Options) *running {
	t.Helper()
	return startWith(t, options, func(ctx context.Context) (net.Conn, error) {
		return l.Nodes[0].Pods[0].Dial(ctx, "tcp", net.JoinHostPort(l.World.Address(version), port))
	})
}

func TestConnectionsToOutsideFillAllPaths(t *testing.T) {
	for _, c := range []struct {
		name        string
		version     int
		masqueraded bool
		direction   traffic.Direction
	}{
		{"IPv4 up", 4, false, traffic.Up},
		{"IPv4 down", 4, false, traffic.Down},
		{"IPv6 up", 6, false, traffic.Up},
		{"masqueraded IPv4 up", 4, true, traffic.Up},
		{"masqueraded IPv4 down", 4, true, traffic.Down},
		{"masqueraded IPv6 up", 6, true, traffic.Up},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newWorld(t)
			if c.masqueraded {
				require.NoError(t, l.Nodes[0].Masquerade())
			}
			l.applyOutside(t, theWorld...)
			l.serveOutside(t, c.version, 3)
			var result *traffic.Result
			sent := l.sent(t, 0, func() {
				running := l.toWorld(t, c.version, traffic.Options{Direction: c.direction, Duration: 2 * time.Second, Verify: true})
				running.awaitSubflows(t, 3)
				result = running.wait(t)
			})
			t.Logf("%.1f Mbit/s, %v", result.Mbit, sent)
			if result.Mbit < 200 {
				t.Errorf("only %.1f Mbit/s over three links of 100", result.Mbit)
			}
			sent.expectShares(t, "sent", map[string]float64{"blue": 1. / 3, "green": 1. / 3, "red": 1. / 3})
		})
	}
}

var _ = strconv.Itoa
var _ netip.Addr
