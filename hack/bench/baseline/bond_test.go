// SPDX-License-Identifier: Apache-2.0

package baseline_test

import (
	"context"
	"net"
	"net/netip"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/hack/bench/baseline"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

const bondPort = 5001

func TestABondDividesPacketsOrConnections(t *testing.T) {
	n := network.ForTest(t, network.Spec{Nodes: 2, Paths: []string{"blue", "green", "red"}, PodsPerNode: 1, LinkMbit: 100, IPv4: true})
	serveBonded(t, n.Nodes[1].Pods[0])
	for name, test := range map[string]struct {
		mode        baseline.BondMode
		connections int
		nics        int
	}{
		"one connection takes all NICs by turns":       {baseline.BalanceRoundRobin, 1, 3},
		"one connection has one NIC by its hash":       {baseline.Layer34, 1, 1},
		"many connections have all NICs by their hash": {baseline.Layer34, 30, 3},
	} {
		t.Run(name, func(t *testing.T) {
			bond(t, n, test.mode)
			before, err := n.NICCounters(n.Nodes[0])
			require.NoError(t, err)
			result, err := traffic.Run(t.Context(), func(ctx context.Context) (net.Conn, error) {
				to := net.JoinHostPort(n.Nodes[1].Pods[0].IPv4, strconv.Itoa(bondPort))
				return n.Nodes[0].Pods[0].DialBy(ctx, network.TCP, "tcp", to)
			}, traffic.Options{Connections: test.connections, Duration: time.Second, Verify: true})
			require.NoError(t, err)
			require.Zero(t, result.Failed, result.Errors)
			after, err := n.NICCounters(n.Nodes[0])
			require.NoError(t, err)
			used := 0
			for path := range after {
				if sent := after[path].TxBytes - before[path].TxBytes; 20*int64(sent) > result.Bytes {
					used++
				}
			}
			require.Equal(t, test.nics, used)
		})
	}
}

func serveBonded(t *testing.T, pod *network.Pod) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	listener, err := pod.Listen(ctx, "tcp", net.JoinHostPort(pod.IPv4, strconv.Itoa(bondPort)))
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- traffic.Serve(ctx, listener) }()
	t.Cleanup(func() { cancel(); require.NoError(t, <-done) })
}

// bond has each node's packets to the other's pods divided, until the test ends.
func bond(t *testing.T, n *network.Network, mode baseline.BondMode) {
	t.Helper()
	for i, node := range n.Nodes {
		peer := n.Nodes[1-i]
		var slaves []baseline.Slave
		for path, name := range n.Spec.Paths {
			index, err := node.Index(name)
			require.NoError(t, err)
			slaves = append(slaves, baseline.Slave{Interface: index, NextHop: netip.MustParseAddr(peer.Address(path, 4))})
		}
		require.NoError(t, node.Do(func() error {
			made, err := baseline.NewBond(mode, slaves[0].Interface, slaves, netip.MustParsePrefix(peer.PodCIDR(4)))
			if err == nil {
				t.Cleanup(func() { require.NoError(t, made.Close()) })
			}
			return err
		}))
	}
}
