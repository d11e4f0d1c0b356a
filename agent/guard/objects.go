// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"braid.dev/braid/agent/node"
	"braid.dev/braid/agent/pins"
	"braid.dev/braid/bpf/guard"
)

// schema is the version of everything pinned. A change of what a member of a map in
// bpf/guard/guard.h means needs a new one, or a new name for the member: see
// docs/upgrade.md. A change of layout alone is noticed by itself.
const schema = "v1"

// The sizes of the binary form.
const (
	slots    = node.MaxPaths
	noPath   = slots
	mostRows = 1024
)

// objects are the loaded programs and their maps.
type objects struct {
	meter      guard.MeterObjects
	ownSource  guard.OwnSourceObjects
	unparsable guard.UnparsableObjects
	nameSender guard.NameSenderObjects
	// leaveQueue is for the ends of queues.
	leaveQueue guard.LeaveQueueObjects
	netlink    *netlink.Handle
	home       *os.File // the network namespace
}

// source is a compiled program and where it is to be loaded to.
type source struct {
	name string
	read func() (*ebpf.CollectionSpec, error)
	to   any
}

func (o *objects) sources() []source {
	return []source{
		{"meter", guard.LoadMeter, &o.meter},
		{"own_source", guard.LoadOwnSource, &o.ownSource},
		{"unparsable", guard.LoadUnparsable, &o.unparsable},
		{"name_sender", guard.LoadNameSender, &o.nameSender},
		{"leave_queue", guard.LoadLeaveQueue, &o.leaveQueue},
	}
}

// loadObjects loads the programs. Maps that an earlier agent pinned are used as they
// are, or copied where they do not fit, so nobody gets a burst anew.
func loadObjects(pinned *pins.Pins) (*objects, error) {
	var o objects
	var specs []*ebpf.CollectionSpec
	var maps pins.Maps
	for _, source := range o.sources() {
		spec, err := source.read()
		if err != nil {
			return nil, fmt.Errorf("reading %s: %w", source.name, err)
		}
		pinByName(spec)
		maps.Kept = append(maps.Kept, pins.ByName(spec)...)
		specs = append(specs, spec)
	}
	if err := pinned.Prepare(maps); err != nil {
		return nil, err
	}
	options := &ebpf.CollectionOptions{Maps: ebpf.MapOptions{PinPath: pinned.Directory()}}
	for i, source := range o.sources() {
		if err := specs[i].LoadAndAssign(source.to, options); err != nil {
			return nil, errors.Join(fmt.Errorf("loading %s: %w", source.name, err), o.Close())
		}
	}
	return &o, nil
}

func pinByName(spec *ebpf.CollectionSpec) {
	for name, m := range spec.Maps {
		if name[0] != '.' {
			m.Pinning = ebpf.PinByName
		}
	}
}

// maps are the shared maps; both objects refer to the same ones.
func (o *objects) maps() *guard.MeterMaps { return &o.meter.MeterMaps }

// Close lets go of the programs and maps; they stay where they are pinned or attached.
func (o *objects) Close() error {
	if o.netlink != nil {
		o.netlink.Close()
	}
	if o.home != nil {
		_ = o.home.Close() // nothing was written
	}
	return errors.Join(o.meter.Close(), o.ownSource.Close(), o.unparsable.Close(), o.nameSender.Close(), o.leaveQueue.Close())
}
