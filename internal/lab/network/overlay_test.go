// SPDX-License-Identifier: Apache-2.0

package network_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/internal/lab/network"
)

func TestPodsReachEachOtherThroughAnOverlay(t *testing.T) {
	for _, name := range []string{"vxlan", "vxlan6", "vxlan-external"} {
		t.Run(name, func(t *testing.T) {
			overlay, err := network.OverlayNamed(name)
			require.NoError(t, err)
			n := build(t, network.Spec{Overlay: overlay})
			a, b := n.Pod("pod-1-1"), n.Pod("pod-2-1")
			before, err := a.Node.Counters(network.TunnelDevice)
			require.NoError(t, err)
			for _, version := range []int{4, 6} {
				expectReach(t, a.Namespace, b.Namespace, b.Address(version))
				expectReach(t, a.Node.Namespace, b.Namespace, b.Address(version))
			}
			send(t, a, b, 1<<20) // the largest packets fit
			after, err := a.Node.Counters(network.TunnelDevice)
			require.NoError(t, err)
			require.Greater(t, after.TxBytes, before.TxBytes+1<<20, "what the overlay carried")
			counters, err := n.NICCounters(a.Node)
			require.NoError(t, err)
			require.Less(t, counters["green"].TxBytes, uint64(10_000))
		})
	}
}

func TestOverlaysHaveNames(t *testing.T) {
	for name, want := range map[string]network.Overlay{"": {}, "native": {}, "vxlan": {Outer: 4}} {
		overlay, err := network.OverlayNamed(name)
		require.NoError(t, err)
		require.Equal(t, want, overlay, name)
	}
	_, err := network.OverlayNamed("geneve")
	require.ErrorContains(t, err, "vxlan6")
}

func TestAnOverlayNeedsAddressesOfItsVersion(t *testing.T) {
	for name, spec := range map[string]network.Spec{
		"over IPv6 of nodes without":  {IPv4: true, Overlay: network.Overlay{Outer: 6}},
		"over a version there is not": {Overlay: network.Overlay{Outer: 5}},
		"without a version":           {Overlay: network.Overlay{External: true}},
	} {
		t.Run(name, func(t *testing.T) {
			spec.Name, spec.Nodes, spec.Paths = network.TestName(), 2, []string{"blue"}
			_, err := network.Build(spec)
			require.Error(t, err)
			require.True(t, strings.Contains(err.Error(), "overlay"), err)
		})
	}
}
