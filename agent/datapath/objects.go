// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

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
}

// loadObjects loads the programs. Maps that an earlier agent pinned are used as
// they are, or copied where they do not fit, so flows keep their paths.
func loadObjects(pinned *pins.Pins, flowEntries uint32) (*objects, error) {
	var o objects
	toUplink, err := uplink.LoadToUplink()
	if err != nil {
		return nil, fmt.Errorf("reading to_uplink: %w", err)
	}
	fromUplink, err := uplink.LoadFromUplink()
	if err != nil {
		return nil, fmt.Errorf("reading from_uplink: %w", err)
	}
	var maps pins.Maps
	for _, spec := range []*ebpf.CollectionSpec{toUplink, fromUplink} {
		if err := prepare(spec, flowEntries); err != nil {
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
	return &o, nil
}

// prepare pins all maps by their names and gives the table of flows its size.
func prepare(spec *ebpf.CollectionSpec, flowEntries uint32) error {
	for _, m := range spec.Maps {
		if m.Name == ".rodata" {
			continue
		}
		m.Pinning = ebpf.PinByName
	}
	if flowEntries == 0 {
		return nil
	}
	spec.Maps[uplink.ToUplinkMapFlows].MaxEntries = flowEntries
	if err := spec.Variables[uplink.ToUplinkVarFlowEntries].Set(flowEntries); err != nil {
		return fmt.Errorf("telling the programs the size of their table: %w", err)
	}
	return nil
}

// maps are the shared maps; both objects refer to the same ones.
func (o *objects) maps() *uplink.ToUplinkMaps { return &o.toUplink.ToUplinkMaps }

// programs are those of the hooks, in their order.
func (o *objects) programs() []*ebpf.Program {
	return []*ebpf.Program{o.toUplink.ToUplink, o.fromUplink.FromUplink}
}

// Close lets go of the programs and maps; they stay where they are pinned or attached.
func (o *objects) Close() error {
	return errors.Join(o.toUplink.Close(), o.fromUplink.Close())
}
