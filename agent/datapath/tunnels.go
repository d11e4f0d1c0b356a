// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"encoding/binary"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"braid.dev/braid/agent/attach"
	"braid.dev/braid/agent/paths"
	"braid.dev/braid/bpf/uplink"
)

// The hook of each tunnel's device. The program only makes a note, and others may end
// the chain: it is first.
var tunnelHooks = []attach.Hook{{Name: "to_tunnel", Type: ebpf.AttachTCXEgress, Anchor: link.Head, Handle: 1}}

// steeredTunnels are the indexes of the devices in whose packets flows can be seen.
func steeredTunnels(tunnels []paths.Tunnel) map[int]bool {
	steered := map[int]bool{}
	for _, tunnel := range tunnels {
		if tunnel.Kind.Steered() {
			steered[tunnel.Index] = true
		}
	}
	return steered
}

var tunnelKinds = map[paths.TunnelKind]uint8{
	paths.TunnelVXLAN: uplink.TunnelVxlan, paths.TunnelGeneve: uplink.TunnelGeneve, paths.TunnelIP: uplink.TunnelIP,
}

// writeTunnels says by what the packets of tunnels are known. Of more ports than there is
// room for the rest is not steered.
func (d *Datapath) writeTunnels(tunnels []paths.Tunnel) error {
	if err := d.loaded.Value.maps().Tunnels.Put(uint32(0), tunnelsValue(tunnels)); err != nil {
		return fmt.Errorf("failed to write the node's tunnels: %w", err)
	}
	return nil
}

func tunnelsValue(tunnels []paths.Tunnel) (value uplink.ToUplinkTunnels) {
	known, used := map[uint16]bool{}, 0
	for _, tunnel := range tunnels {
		value.Kinds |= uint32(tunnelKinds[tunnel.Kind])
		if !tunnel.Kind.Steered() || tunnel.Port == 0 || known[tunnel.Port] || used == len(value.Port) {
			continue
		}
		known[tunnel.Port] = true
		value.Port[used] = binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, tunnel.Port))
		value.Kind[used] = tunnelKinds[tunnel.Kind]
		value.Filter |= uplink.PortBit(value.Port[used])
		used++
	}
	return value
}
