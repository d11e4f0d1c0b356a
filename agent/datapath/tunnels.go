// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"braid.dev/braid/agent/attach"
	"braid.dev/braid/agent/overlays"
	"braid.dev/braid/agent/paths"
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

// writeTunnels says by what the packets of tunnels are known. Of more ports than there is
// room for the rest is not steered.
func (d *Datapath) writeTunnels(tunnels []paths.Tunnel) error {
	if err := d.loaded.Value.maps().Tunnels.Put(uint32(0), overlays.Known(tunnels)); err != nil {
		return fmt.Errorf("failed to write the node's tunnels: %w", err)
	}
	return nil
}
