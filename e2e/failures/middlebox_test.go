// SPDX-License-Identifier: Apache-2.0

package failures_test

import (
	"context"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/e2e/shop"
	"braid.dev/braid/hack/lab"
	"braid.dev/braid/internal/lab/middlebox"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

// boxedTime is that of transfers through boxes.
const boxedTime = 800 * time.Millisecond

// A box on all paths costs a connection its further subflows at worst: it is never lost,
// and not slower than plain TCP. Those that Linux itself does not survive are in the bench.
func TestAConnectionSurvivesBoxesOnAllPaths(t *testing.T) {
	c := use(t)
	c.Spread(t, shop.Policy(v1alpha1.SubflowManagerKernel), 2)
	t.Cleanup(func() { c.putBox(t, nil, middlebox.Kind{}) })
	direction := traffic.Up
	blind := c.Network.Spec.Overlay != (network.Overlay{}) // boxes see no TCP in tunnels
	for _, kind := range middlebox.Kinds() {
		if kind.KernelLoses {
			continue
		}
		t.Run(kind.Name, func(t *testing.T) {
			c.putBox(t, kind.New, kind)
			tcp := c.throughBox(t, network.TCP, kind, direction)
			boxed := c.throughBox(t, network.MPTCP, kind, direction)
			t.Logf("%s: %.1f Mbit/s with %d subflows, TCP %.1f", direction, boxed.Mbit, boxed.Subflows, tcp.Mbit)
			require.Equal(t, kind.EndsMPTCP && !blind, !boxed.Multipath)
			require.Greater(t, boxed.Mbit, tcp.Mbit/2)
			if blind || !kind.EndsMPTCP && !kind.NoJoins && !kind.NoAnnouncements { // without these it takes a second
				require.Greater(t, boxed.Subflows, 1)
			}
		})
		if direction == traffic.Up {
			direction = traffic.Down
		} else {
			direction = traffic.Up
		}
	}
}

// putBox puts a box on all paths, or takes it away, and prepares the pods.
func (c *cluster) putBox(t *testing.T, box func() network.Box, kind middlebox.Kind) {
	t.Helper()
	for _, path := range paths {
		var put network.Box
		if box != nil {
			put = box()
		}
		require.NoError(t, c.Network.Interpose(path, put))
	}
	for _, pod := range []string{"client", "server"} {
		require.NoError(t, middlebox.Prepare(c.Network.Pod(pod).Namespace, kind))
	}
}

func (c *cluster) throughBox(t *testing.T, protocol network.Protocol, kind middlebox.Kind, direction traffic.Direction) *traffic.Result {
	t.Helper()
	from, to := c.Network.Pod("client"), c.Network.Pod("server")
	result, err := traffic.Run(t.Context(), func(ctx context.Context) (net.Conn, error) {
		return from.DialBy(ctx, protocol, "tcp", net.JoinHostPort(to.IPv4, strconv.Itoa(lab.TrafficPort)))
	}, traffic.Options{Direction: direction, Duration: boxedTime, Warmup: boxedTime / 3, Verify: true, Rewrites: kind.Rewrites})
	require.NoError(t, err)
	require.Empty(t, result.Errors)
	return result
}
