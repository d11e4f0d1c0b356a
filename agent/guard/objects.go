// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"braid.dev/braid/agent/pins"
	"braid.dev/braid/bpf/guard"
)

// schema is the version of everything pinned. A change of what a member of a map in
// bpf/guard/guard.h means needs a new one, or a new name for the member: see
// docs/upgrade.md. A change of layout alone is noticed by itself.
const schema = "v1"

// The sizes of the binary form.
const (
	slots      = guard.MaxPaths
	noPath     = guard.NoPath
	mostRows   = guard.EndpointRows - 1
	nameLength = 64
)

// objects are the loaded programs and their maps.
type objects struct {
	meter     guard.MeterObjects
	ownSource guard.OwnSourceObjects
	// leaveQueue is for the ends of queues.
	leaveQueue guard.LeaveQueueObjects
	// names say what each row stands for; no program reads them.
	names *ebpf.Map
}

// loadObjects loads the programs. Maps that an earlier agent pinned are used as they
// are, or copied where they do not fit, so nobody gets a burst anew.
func loadObjects(pinned *pins.Pins) (*objects, error) {
	meter, err := guard.LoadMeter()
	if err != nil {
		return nil, fmt.Errorf("reading meter: %w", err)
	}
	ownSource, err := guard.LoadOwnSource()
	if err != nil {
		return nil, fmt.Errorf("reading own_source: %w", err)
	}
	leaveQueue, err := guard.LoadLeaveQueue()
	if err != nil {
		return nil, fmt.Errorf("reading leave_queue: %w", err)
	}
	maps := pins.Maps{Kept: []*ebpf.MapSpec{namesSpec()}}
	for _, spec := range []*ebpf.CollectionSpec{meter, ownSource, leaveQueue} {
		pinByName(spec)
		maps.Kept = append(maps.Kept, pins.ByName(spec)...)
	}
	if err := pinned.Prepare(maps); err != nil {
		return nil, err
	}
	var o objects
	options := &ebpf.CollectionOptions{Maps: ebpf.MapOptions{PinPath: pinned.Directory()}}
	if err := meter.LoadAndAssign(&o.meter, options); err != nil {
		return nil, fmt.Errorf("loading meter: %w", err)
	}
	if err := ownSource.LoadAndAssign(&o.ownSource, options); err != nil {
		return nil, errors.Join(fmt.Errorf("loading own_source: %w", err), o.close())
	}
	if err := leaveQueue.LoadAndAssign(&o.leaveQueue, options); err != nil {
		return nil, errors.Join(fmt.Errorf("loading leave_queue: %w", err), o.close())
	}
	if o.names, err = ebpf.NewMapWithOptions(namesSpec(), options.Maps); err != nil {
		return nil, errors.Join(fmt.Errorf("loading the map of names: %w", err), o.close())
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

func namesSpec() *ebpf.MapSpec {
	return &ebpf.MapSpec{
		Name: "names", Type: ebpf.Hash, KeySize: 4 + nameLength, ValueSize: 4,
		MaxEntries: 2*mostRows + slots, Flags: unix.BPF_F_NO_PREALLOC, Pinning: ebpf.PinByName,
	}
}

// maps are the shared maps; both objects refer to the same ones.
func (o *objects) maps() *guard.MeterMaps { return &o.meter.MeterMaps }

func (o *objects) close() error {
	err := errors.Join(o.meter.Close(), o.ownSource.Close(), o.leaveQueue.Close())
	if o.names != nil {
		err = errors.Join(err, o.names.Close())
	}
	return err
}
