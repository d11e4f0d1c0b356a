// SPDX-License-Identifier: Apache-2.0

package middlebox_test

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/internal/lab/middlebox"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

// lab is two pods, and a path between them on which boxes are put.
type lab struct {
	*network.Network
	client, server *network.Pod
}

const serverPort = "5001"

func newLab(t *testing.T) *lab {
	t.Helper()
	n := network.ForTest(t, network.Spec{Nodes: 2, Paths: []string{"blue"}, PodsPerNode: 1, LinkMbit: 100})
	l := &lab{n, n.Nodes[0].Pods[0], n.Nodes[1].Pods[0]}
	listener, err := l.server.Listen(t.Context(), "tcp", ":"+serverPort)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- traffic.Serve(ctx, listener) }()
	t.Cleanup(func() { cancel(); require.NoError(t, <-served) })
	return l
}

// put puts a box of a kind on the path.
func (l *lab) put(t *testing.T, kind middlebox.Kind) {
	t.Helper()
	require.NoError(t, l.Interpose("blue", kind.New()))
	for _, pod := range []*network.Pod{l.client, l.server} {
		require.NoError(t, middlebox.Prepare(pod.Namespace, kind))
	}
}

func (l *lab) transfer(t *testing.T, protocol network.Protocol, version int, options traffic.Options) *traffic.Result {
	t.Helper()
	address := net.JoinHostPort(l.server.Address(version), serverPort)
	options.Duration, options.Patience, options.Verify = 150*time.Millisecond, 5*time.Second, true
	result, err := traffic.Run(t.Context(), func(ctx context.Context) (net.Conn, error) {
		return l.client.DialBy(ctx, protocol, "tcp", address)
	}, options)
	require.NoError(t, err)
	return result
}

// Boxes are such that plain TCP lives with them.
func TestPlainTCPPassesEachBox(t *testing.T) {
	l := newLab(t)
	version, direction := 4, traffic.Up
	for _, kind := range middlebox.Kinds() {
		t.Run(kind.Name, func(t *testing.T) {
			l.put(t, kind)
			result := l.transfer(t, network.TCP, version, traffic.Options{Direction: direction, Rewrites: kind.Rewrites})
			require.Empty(t, result.Errors)
			require.Equal(t, kind.Rewrites, result.Rewritten > 0, "%d bytes rewritten of %d", result.Rewritten, result.Bytes)
		})
		version = 10 - version
		if version == 4 {
			direction = map[traffic.Direction]traffic.Direction{traffic.Up: traffic.Down, traffic.Down: traffic.Up}[direction]
		}
	}
	require.NoError(t, l.Interpose("blue", nil))
	require.Empty(t, l.transfer(t, network.TCP, 4, traffic.Options{}).Errors, "the bridge is back")
}

// A connection of one subflow stays an MPTCP one behind boxes that let its options pass.
func TestMPTCPPassesBoxesOrBecomesTCP(t *testing.T) {
	l := newLab(t)
	for _, kind := range middlebox.Kinds() {
		if kind.KernelLoses || kind.NoJoins {
			continue
		}
		t.Run(kind.Name, func(t *testing.T) {
			l.put(t, kind)
			result := l.transfer(t, network.MPTCP, 4, traffic.Options{Rewrites: kind.Rewrites})
			require.Empty(t, result.Errors)
			require.Equal(t, kind.EndsMPTCP, !result.Multipath)
		})
	}
}
