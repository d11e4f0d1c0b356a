// SPDX-License-Identifier: Apache-2.0

package network

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestRacksAreJoinedByTheRoutersOfTheirPaths(t *testing.T) {
	network := ForTest(t, Spec{Nodes: 4, Racks: 3, Paths: []string{"blue", "green"}, NoRoutes: true})
	// Nobody listens there: what arrives is refused.
	reach := func(to string) error {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		connection, err := network.Nodes[0].Dial(ctx, "tcp", net.JoinHostPort(to, "9"))
		if err == nil {
			return connection.Close()
		}
		if errors.Is(err, unix.ECONNREFUSED) {
			return nil
		}
		return err
	}
	for path := range network.Spec.Paths {
		for _, version := range network.Versions() {
			for _, node := range network.Nodes[1:] {
				require.NoError(t, reach(node.Address(path, version)), "%s, path %d", node.NodeName(), path)
			}
		}
	}
	require.NoError(t, network.SetRouter("green", false))
	require.Error(t, reach(network.Nodes[1].Address(1, 4)))
	require.NoError(t, reach(network.Nodes[3].Address(1, 4)), "a neighbour needs no router")
	require.NoError(t, reach(network.Nodes[1].Address(0, 4)), "the other path has its own")
	require.NoError(t, network.SetRouter("green", true))
	for _, version := range network.Versions() {
		require.NoError(t, reach(network.Nodes[1].Address(1, version)))
	}
	require.Error(t, network.SetRouter("red", true))
}

func TestRacksNeedNodesAndPathsOfTheirOwn(t *testing.T) {
	for what, spec := range map[string]Spec{
		"fewer nodes than racks": {Nodes: 2, Racks: 3, NoRoutes: true},
		"shared NICs":            {Nodes: 3, Racks: 3, NoRoutes: true, Shared: [][]string{{"blue", "green"}}},
	} {
		spec.Name, spec.Paths = TestName(), []string{"blue", "green"}
		_, err := Build(spec)
		require.ErrorContains(t, err, "racks", what)
	}
}

func TestTheFirstPathsRouterKnowsPodsThatAreRoutedNatively(t *testing.T) {
	network := ForTest(t, Spec{Nodes: 3, Racks: 2, Paths: []string{"blue", "green"}, PodsPerNode: 1})
	for _, pod := range []string{"pod-2-1", "pod-3-1"} {
		listener, err := network.Pod(pod).Listen(t.Context(), "tcp", ":5001")
		require.NoError(t, err)
		t.Cleanup(func() { listener.Close() })
	}
	reaches := func(pod string) {
		t.Helper()
		for _, version := range network.Versions() {
			conn, err := network.Pod("pod-1-1").Dial(t.Context(), "tcp", net.JoinHostPort(network.Pod(pod).Address(version), "5001"))
			require.NoError(t, err)
			require.NoError(t, conn.Close())
		}
	}
	reaches("pod-2-1") // in the other rack
	reaches("pod-3-1")
	require.NoError(t, network.SetRouter("blue", false))
	require.NoError(t, network.SetRouter("blue", true))
	reaches("pod-2-1")
	out, err := network.Routers["green"].Run("ip", "route", "get", network.Pod("pod-2-1").Address(4))
	require.Error(t, err, out)
}
