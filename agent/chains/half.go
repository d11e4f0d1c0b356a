// SPDX-License-Identifier: Apache-2.0

package chains

import (
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"braid.dev/braid/agent/attach"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/agent/pins"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/bpf/endpoint"
)

// half is the endpoint half as it is loaded, with what its maps hold in a form that
// can be searched.
type half struct {
	*objects
	*allocator
	interfaces *attach.Interfaces
	programs   func() (map[ProgramName]uint32, map[ProgramName]error)
	log        logr.Logger
	endpoints  map[types.UID]*attached
}

// attached is an endpoint that has a chain, or had one whose effects are not yet
// undone.
type attached struct {
	name   string
	record endpointRecord
	word   word
	rules  []v1alpha1.PlanRule // of its chain; nil where an earlier agent knew them
	// draining is since when it has the chain without rules; zero while it has another.
	draining time.Time
}

func (a *attached) index() int { return int(a.record.Interface) }

// loadHalf loads the programs, and reads what an earlier agent pinned.
func loadHalf(pinned *pins.Pins, interfaces *attach.Interfaces, options Options) (*half, error) {
	loaded, err := loadObjects(pinned, options.SubflowEntries)
	if err != nil {
		return nil, err
	}
	h := &half{
		objects: loaded, interfaces: interfaces, programs: options.Programs, log: options.Log, endpoints: map[types.UID]*attached{},
	}
	if h.allocator, err = readAllocator(loaded.maps); err == nil {
		err = h.readEndpoints()
	}
	if err == nil {
		err = h.prepareEmpty()
	}
	if err == nil {
		err = interfaces.Choose(loaded.fromEndpoint)
	}
	if err != nil {
		return nil, errors.Join(err, loaded.Close())
	}
	return h, nil
}

func (h *half) readEndpoints() error {
	var name endpointName
	var record endpointRecord
	entries := h.maps["endpoint_names"].Iterate()
	for entries.Next(&name, &record) {
		found, err := h.attachments.get(int(record.Interface))
		if err != nil {
			return err
		}
		a := &attached{record: record}
		if found.Endpoint == record.Number {
			a.word = word(found.Chain)
			h.rows[a.word.Row()] = true
		}
		if a.word.Slot() == empty {
			a.draining = time.Now()
		}
		h.endpoints[types.UID(name.text())] = a
	}
	if err := entries.Err(); err != nil {
		return fmt.Errorf("reading the endpoints: %w", err)
	}
	return nil
}

// apply brings the maps, and then the programs, to what is desired.
func (h *half) apply(model *node.Model, wanted []desired, failed failures) error {
	surroundings := Surroundings{Paths: map[string]uint8{}}
	for _, path := range model.NICs() {
		surroundings.Paths[path.Name] = path.Number
	}
	if h.programs != nil {
		surroundings.Programs, surroundings.Refused = h.programs()
	}
	err := errors.Join(h.writePaths(model), h.forgetRenumbered(model))
	if err != nil {
		return err
	}
	if err := h.change(compileAll(wanted, surroundings, failed), failed); err != nil {
		return err
	}
	if err := h.drain(wanted); err != nil {
		return err
	}
	h.attach(failed)
	return errors.Join(h.collect(), h.dropDrained(), h.detachOthers())
}

// writePaths tells the programs which NIC belongs to which path.
func (h *half) writePaths(model *node.Model) error {
	var interfaces endpoint.FromEndpointPaths
	for _, path := range model.NICs() {
		interfaces.Interface[path.Number] = uint32(path.Interface)
	}
	if err := h.maps["path_interfaces"].Put(uint32(0), interfaces); err != nil {
		return fmt.Errorf("writing the NICs of paths: %w", err)
	}
	return nil
}

// attach puts the programs on the interface of each endpoint. One that fails does
// not keep the others from working, and has none of the two rather than one.
func (h *half) attach(failed failures) {
	before, err := h.interfaces.Attached()
	if err != nil {
		h.log.Error(err, "failed to list the interfaces that have from_endpoint and to_endpoint")
	}
	seen := attach.Look()
	for uid, a := range h.endpoints {
		err := h.interfaces.Ensure(seen, a.index(), h.fromEndpoint, h.toEndpoint)
		if err != nil && !before[a.index()] {
			err = errors.Join(err, h.interfaces.Detach(a.index()))
		}
		if a.draining.IsZero() {
			failed.add(uid, err)
		}
	}
}

// detachOthers takes the programs off interfaces that have no chain.
func (h *half) detachOthers() error {
	wanted := map[int]bool{}
	for _, a := range h.endpoints {
		wanted[a.index()] = true
	}
	attached, failed := h.interfaces.Attached()
	for index := range attached {
		if !wanted[index] {
			failed = errors.Join(failed, h.interfaces.Detach(index))
		}
	}
	if failed != nil {
		return fmt.Errorf("failed to detach from interfaces without a chain: %w", failed)
	}
	return h.interfaces.DetachOther()
}

func (h *half) writeRecord(uid types.UID, record endpointRecord) error {
	if err := h.maps["endpoint_names"].Put(nameOf(uid), record); err != nil {
		return fmt.Errorf("writing the endpoint %s: %w", uid, err)
	}
	return nil
}

func (h *half) deleteRecord(uid types.UID) error {
	if err := h.maps["endpoint_names"].Delete(nameOf(uid)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("forgetting the endpoint %s: %w", uid, err)
	}
	return nil
}
