// SPDX-License-Identifier: Apache-2.0

// Package overlays tells programs on NICs by what the packets of the node's tunnels are known,
// so that they see what is in these.
package overlays

import (
	"encoding/binary"

	"braid.dev/braid/agent/paths"
	"braid.dev/braid/bpf/uplink"
)

var kinds = map[paths.TunnelKind]uint8{
	paths.TunnelVXLAN: uplink.TunnelVxlan, paths.TunnelGeneve: uplink.TunnelGeneve, paths.TunnelIP: uplink.TunnelIP,
}

// Known is the value of the map tunnels of bpf/include/known_tunnels.h. Of more ports than
// there is room for the packets of the rest are as any others.
func Known(tunnels []paths.Tunnel) (value uplink.ToUplinkTunnels) {
	known, used := map[uint16]bool{}, 0
	for _, tunnel := range tunnels {
		value.Kinds |= uint32(kinds[tunnel.Kind])
		if !tunnel.Kind.Steered() || tunnel.Port == 0 || known[tunnel.Port] || used == len(value.Port) {
			continue
		}
		known[tunnel.Port] = true
		value.Port[used] = binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, tunnel.Port))
		value.Kind[used] = kinds[tunnel.Kind]
		value.Filter |= uplink.PortBit(value.Port[used])
		used++
	}
	return value
}
