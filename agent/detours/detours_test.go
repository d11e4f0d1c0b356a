// SPDX-License-Identifier: Apache-2.0

package detours

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netns"

	"braid.dev/braid/agent/health"
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

	var probed health.View
	first, err := Open(opened, func() health.View { return probed })
	require.NoError(t, err)
	report := first.Apply(t.Context(), model())
	require.True(t, report.Done())
	require.Empty(t, table(), "detours while all is well")
	for _, step := range []struct {
		path   string
		sample health.Sample
		detour bool
		when   string
	}{
		{"blue", health.Sample{State: health.Dead}, false, "while probes call the usual path dead, and the kernel does not"},
		{"blue", health.Sample{State: health.Dead, Lost: true}, true, "while the usual path is lost"},
		{"green", health.Sample{State: health.Dead, Lost: true}, false, "while both are lost"},
		{"green", health.Sample{State: health.Alive}, true, "while one is lost"},
		{"blue", health.Sample{State: health.Alive}, false, "when all is well again"},
	} {
		probed.Set(other.NodeName(), step.path, step.sample)
		report = first.Apply(t.Context(), model())
		require.True(t, report.Done())
		require.Equal(t, step.detour, strings.Contains(table(), "dev green"), "%s: %s", step.when, table())
	}
	require.NoError(t, lab.SetCarrier(host, "blue", false))
	report = first.Apply(t.Context(), model())
	require.True(t, report.Done())
	require.Contains(t, table(), "dev green", "the way to the pods of "+other.NodeName())
	require.NoError(t, first.Close())

	second, err := Open(opened, func() health.View { return health.View{} })
	require.NoError(t, err)
	defer second.Close()
	require.NoError(t, second.Remove(t.Context()))
	require.Empty(t, table(), "after the removal")
}
