// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"math/bits"

	"github.com/cilium/ebpf"

	"braid.dev/braid/agent/node"
	"braid.dev/braid/agent/pins"
	"braid.dev/braid/bpf/uplink"
)

// schema is the version of everything pinned. A change of what a member of a map
// in bpf/include/uplink/maps.h means needs a new one, or a new name for the member: see
// docs/upgrade.md. A change of layout alone is noticed by itself.
const schema = "v2"

// objects are the loaded programs and the maps they share.
type objects struct {
	toUplink   uplink.ToUplinkObjects
	fromUplink uplink.FromUplinkObjects
	toTunnel   uplink.ToTunnelObjects
}

// settings are what programs are loaded with.
type settings struct {
	room
	apart bool // no flows share paths
}

// room is for how many flows and peers there is room in the maps. The kernel reserves the
// memory for all of them.
type room struct{ flows, peers uint32 }

// fewestPeers is the room that is made for a small cluster.
const fewestPeers = 1024

// roomForPeers is enough for the numbers and addresses of the peers, and for some more.
func roomForPeers(m *node.Model) uint32 {
	needed, addresses := uint32(fewestPeers), 0
	for _, peer := range m.Steered() {
		needed = max(needed, peer.Number+1)
		addresses += len(peer.Addresses)
	}
	for number := range m.Retired[node.KindPeer] {
		needed = max(needed, number+1)
	}
	needed = max(needed, uint32(min(addresses/uplink.PeerAddresses, uplink.MaxPeers)))
	return min(uint32(1)<<bits.Len32(needed-1), uplink.MaxPeers)
}

// loadObjects loads the programs. Maps that an earlier agent pinned are used as
// they are, or copied where they do not fit, so flows keep their paths.
func loadObjects(pinned *pins.Pins, with settings) (*objects, error) {
	var o objects
	toUplink, err := uplink.LoadToUplink()
	if err != nil {
		return nil, fmt.Errorf("reading to_uplink: %w", err)
	}
	fromUplink, err := uplink.LoadFromUplink()
	if err != nil {
		return nil, fmt.Errorf("reading from_uplink: %w", err)
	}
	toTunnel, err := uplink.LoadToTunnel()
	if err != nil {
		return nil, fmt.Errorf("reading to_tunnel: %w", err)
	}
	var maps pins.Maps
	for _, spec := range []*ebpf.CollectionSpec{toUplink, fromUplink, toTunnel} {
		if err := prepare(spec, with); err != nil {
			return nil, err
		}
		maps.Kept = append(maps.Kept, pins.ByName(spec)...)
	}
	if err := pinned.Prepare(maps); err != nil {
		return nil, err
	}
	options := &ebpf.CollectionOptions{Maps: ebpf.MapOptions{PinPath: pinned.Directory()}}
	if err := toUplink.LoadAndAssign(&o.toUplink, options); err != nil {
		return nil, fmt.Errorf("loading to_uplink: %w", err)
	}
	if err := fromUplink.LoadAndAssign(&o.fromUplink, options); err != nil {
		return nil, errors.Join(fmt.Errorf("loading from_uplink: %w", err), o.Close())
	}
	if err := toTunnel.LoadAndAssign(&o.toTunnel, options); err != nil {
		return nil, errors.Join(fmt.Errorf("loading to_tunnel: %w", err), o.Close())
	}
	return &o, nil
}

// prepare pins all maps by their names and gives them their sizes, and programs what does not
// change for them.
func prepare(spec *ebpf.CollectionSpec, with settings) error {
	for _, m := range spec.Maps {
		if m.Name == ".rodata" {
			continue
		}
		m.Pinning = ebpf.PinByName
	}
	for name, entries := range map[string]uint32{
		uplink.ToUplinkMapPeers: with.peers, uplink.ToUplinkMapHealth: with.peers,
		uplink.ToUplinkMapPeerAddresses: with.peers * uplink.PeerAddresses,
		uplink.ToUplinkMapAnswered:      with.peers * uplink.MaxPaths,
		uplink.ToUplinkMapOuters:        with.peers + 1,
		uplink.ToUplinkMapWrappings:     with.peers + 1,
		uplink.ToUplinkMapPodRanges:     with.peers * uplink.PeerPodRanges,
	} {
		if m := spec.Maps[name]; m != nil {
			m.MaxEntries = entries
		}
	}
	if mayShare := spec.Variables[uplink.ToUplinkVarMayShare]; mayShare != nil && with.apart {
		if err := mayShare.Set(uint8(0)); err != nil {
			return fmt.Errorf("telling the programs that no flows share paths: %w", err)
		}
	}
	if with.flows == 0 {
		return nil
	}
	spec.Maps[uplink.ToUplinkMapFlows].MaxEntries = with.flows
	entries := spec.Variables[uplink.ToUplinkVarFlowEntries]
	if entries == nil {
		return nil
	}
	if err := entries.Set(with.flows); err != nil {
		return fmt.Errorf("setting the size of the table of flows: %w", err)
	}
	return nil
}

// maps are the shared maps; both objects refer to the same ones.
func (o *objects) maps() *uplink.ToUplinkMaps { return &o.toUplink.ToUplinkMaps }

// programs are those of the NICs' hooks, in their order.
func (o *objects) programs() []*ebpf.Program {
	return []*ebpf.Program{o.toUplink.ToUplink, o.fromUplink.FromUplink}
}

// Close lets go of the programs and maps; they stay where they are pinned or attached.
func (o *objects) Close() error {
	return errors.Join(o.toUplink.Close(), o.fromUplink.Close(), o.toTunnel.Close())
}
