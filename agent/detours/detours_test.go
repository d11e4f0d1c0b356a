// SPDX-License-Identifier: Apache-2.0

package detours

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netns"

	"braid.dev/braid/agent/node"
	"braid.dev/braid/agent/paths"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/network"
)

// A model whose path has lost its carrier gives the routes to the peer's pods another
// way; Remove takes that back, also where another agent made it.
func TestDetoursFollowTheModelAndAreRemoved(t *testing.T) {
	lab := network.ForTest(t, network.Spec{Nodes: 2, Paths: []string{"blue", "green"}, PodsPerNode: 1})
	host, other := lab.Nodes[0], lab.Nodes[1]
	handle, err := netns.GetFromPath(host.Path())
	require.NoError(t, err)
	defer handle.Close()
	opened, err := paths.Open(handle)
	require.NoError(t, err)
	defer opened.Close()
	peer := paths.Peer{Name: other.NodeName(), Paths: map[string]paths.PeerPath{}}
	for i, path := range []string{"blue", "green"} {
		address := netip.MustParseAddr(other.Address(i, 4))
		peer.Addresses = append(peer.Addresses, address)
		peer.Paths[path] = paths.PeerPath{Addresses: []netip.Addr{address}, Up: true}
	}
	model := func() *node.Model {
		found, err := opened.Resolve(paths.Query{Peers: []paths.Peer{peer}, Paths: []v1alpha1.PlanPath{
			{Name: "blue", Interfaces: []v1alpha1.InterfacePattern{"blue"}}, {Name: "green", Interfaces: []v1alpha1.InterfacePattern{"green"}},
		}})
		require.NoError(t, err)
		m := &node.Model{Peers: []node.Peer{{Peer: peer}}}
		for _, path := range found.Paths {
			m.Paths = append(m.Paths, node.Path{Name: path.Name, Interface: path.Index, Up: path.Usable, Found: path})
		}
		return m
	}
	table := func() string {
		out, err := host.Run("ip", "route", "show", "table", "all", "proto", "177")
		require.NoError(t, err)
		return strings.TrimSpace(out)
	}

	first, err := Open(opened)
	require.NoError(t, err)
	report := first.Apply(t.Context(), model())
	require.True(t, report.Done())
	require.Empty(t, table(), "detours while all is well")
	require.NoError(t, lab.SetCarrier(host, "blue", false))
	report = first.Apply(t.Context(), model())
	require.True(t, report.Done())
	require.Contains(t, table(), "dev green", "the way to the pods of "+other.NodeName())
	require.NoError(t, first.Close())

	second, err := Open(opened)
	require.NoError(t, err)
	defer second.Close()
	require.NoError(t, second.Remove(t.Context()))
	require.Empty(t, table(), "after the removal")
}
