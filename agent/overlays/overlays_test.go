// SPDX-License-Identifier: Apache-2.0

package overlays

import (
	"testing"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/agent/paths"
	"braid.dev/braid/bpf"
	"braid.dev/braid/bpf/uplink"
)

func TestEachPortOfTunnelsThatCanBeLookedIntoIsKnownOnce(t *testing.T) {
	got := Known([]paths.Tunnel{
		{Kind: paths.TunnelVXLAN, Port: 8472}, {Kind: paths.TunnelVXLAN, Port: 8472}, {Kind: paths.TunnelGeneve, Port: 6081},
		{Kind: paths.TunnelIP}, {Kind: paths.TunnelEncrypted, Port: 51820},
	})
	require.Equal(t, uint32(uplink.TunnelVxlan|uplink.TunnelGeneve|uplink.TunnelIP), got.Kinds)
	require.Equal(t, [8]uint16{bpf.Port(8472), bpf.Port(6081)}, got.Port)
	require.Equal(t, [8]uint8{uplink.TunnelVxlan, uplink.TunnelGeneve}, got.Kind)
	require.Equal(t, uplink.PortBit(bpf.Port(8472))|uplink.PortBit(bpf.Port(6081)), got.Filter)
}

func TestOfMorePortsThanThereIsRoomForTheFirstAreKnown(t *testing.T) {
	var tunnels []paths.Tunnel
	for port := range uint16(9) {
		tunnels = append(tunnels, paths.Tunnel{Kind: paths.TunnelVXLAN, Port: 4001 + port})
	}
	require.Equal(t, Known(tunnels[:8]), Known(tunnels))
	require.Equal(t, bpf.Port(4008), Known(tunnels).Port[7])
}
