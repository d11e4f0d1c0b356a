// SPDX-License-Identifier: Apache-2.0

package chains

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"braid.dev/braid/agent/pins"
	"braid.dev/braid/bpf/endpoint"
)

// schema is the version of everything pinned. A change of what a member of a map
// means needs a new one, or a new name for the member: see docs/upgrade.md. A change
// of layout alone is noticed by itself.
const schema = "v1"

// Directory is where the endpoint half's maps are pinned, by their names.
func Directory(pinPath string) string { return pins.New(pinPath, schema, logr.Discard()).Directory() }

// uidLength is the room for a pod's UID.
const uidLength = 64

// endpointName is an endpoint's UID.
type endpointName [uidLength]byte

func nameOf(uid types.UID) (name endpointName) {
	copy(name[:], uid)
	return name
}

func (n *endpointName) text() string { return string(n[:max(0, bytes.IndexByte(n[:], 0))]) }

// endpointRecord is what the next agent must know of an endpoint whose interface has
// the programs.
type endpointRecord struct {
	Number    uint32 // in the node's registry
	Interface uint32
}

// content tells what is in a slot of chains.
type content struct {
	Digest [32]byte                  // of all of it
	Rule   [endpoint.MaxRules]uint64 // fingerprints
}

// chainNumbers are those that were given last.
type chainNumbers struct {
	Epoch uint32
	// Endpoint is for agents before there was a registry of numbers, which count on
	// from here when they take over.
	Endpoint uint32
}

// ownMaps are for the agent alone; no program reads them.
var ownMaps = []*ebpf.MapSpec{
	{Name: "endpoint_names", Type: ebpf.Hash, KeySize: uidLength, ValueSize: 8, MaxEntries: endpoint.MaxEndpoints, Flags: unix.BPF_F_NO_PREALLOC},
	{Name: "chain_contents", Type: ebpf.Hash, KeySize: 4, ValueSize: uint32(32 + endpoint.MaxRules*8), MaxEntries: endpoint.MaxChains, Flags: unix.BPF_F_NO_PREALLOC},
	{Name: "chain_numbers", Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1},
}

// objects are the loaded programs and all maps, by name.
type objects struct {
	fromEndpoint, toEndpoint *ebpf.Program
	maps                     map[string]*ebpf.Map
	inner                    *ebpf.MapSpec     // of chains
	empty                    *ebpf.Map         // the chain without rules
	counters                 *mappedArray[row] // of all endpoints
	attachments              *attachments
	steady                   *mappedArray[endpoint.FromEndpointSteady]
}

// lasting are the maps that outlive a change of version: what is known of subflows
// and connections, and the numbers by which they name endpoints. Chains are written
// anew.
var lasting = []string{
	"subflows", "mptcp_connections", "hidden_addresses", "buckets",
	"endpoint_names", "chain_numbers",
}

// loadObjects loads the programs. Maps that an earlier agent pinned are used as they
// are.
func loadObjects(pinned *pins.Pins, subflowEntries uint32) (_ *objects, err error) {
	o := &objects{maps: map[string]*ebpf.Map{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, o.Close())
		}
	}()
	if err := o.loadPrograms(pinned, subflowEntries); err != nil {
		return nil, err
	}
	if err := o.loadOwnMaps(pinned.Directory()); err != nil {
		return nil, err
	}
	if o.counters, err = mapArray[row](o.maps["chain_counters"]); err != nil {
		return nil, err
	}
	if o.steady, err = mapArray[endpoint.FromEndpointSteady](o.maps["steady_subflows"]); err != nil {
		return nil, err
	}
	o.attachments, err = mapAttachments(o.maps["attachments"], o.maps["attachments_overflow"])
	return o, err
}

// loadPrograms loads both programs at the same time, because the kernel takes
// seconds to verify one.
func (o *objects) loadPrograms(pinned *pins.Pins, subflowEntries uint32) error {
	fromEndpoint, err := endpoint.LoadFromEndpoint()
	if err != nil {
		return fmt.Errorf("reading from_endpoint: %w", err)
	}
	toEndpoint, err := endpoint.LoadToEndpoint()
	if err != nil {
		return fmt.Errorf("reading to_endpoint: %w", err)
	}
	prepare(fromEndpoint, subflowEntries)
	prepare(toEndpoint, subflowEntries)
	if err := pinned.Prepare(pinnedMaps(fromEndpoint, toEndpoint)); err != nil {
		return err
	}
	directory := pinned.Directory()
	if err := o.loadMaps(fromEndpoint, directory); err != nil {
		return err
	}
	other := make(chan error, 1)
	go func() {
		var err error
		o.toEndpoint, err = loadProgram(toEndpoint, "to_endpoint", directory)
		other <- err
	}()
	o.fromEndpoint, err = loadProgram(fromEndpoint, "from_endpoint", directory)
	return errors.Join(err, <-other)
}

func pinnedMaps(specs ...*ebpf.CollectionSpec) (maps pins.Maps) {
	all := slices.Clone(ownMaps)
	for _, spec := range specs {
		all = append(all, pins.ByName(spec)...)
	}
	for _, spec := range all {
		if slices.Contains(lasting, spec.Name) {
			maps.Kept = append(maps.Kept, spec)
		} else {
			maps.Fresh = append(maps.Fresh, spec)
		}
	}
	return maps
}

// loadMaps loads the maps, which both programs share.
func (o *objects) loadMaps(spec *ebpf.CollectionSpec, directory string) error {
	o.inner = spec.Maps["chains"].InnerMap
	shared := &ebpf.CollectionSpec{Maps: map[string]*ebpf.MapSpec{}, Types: spec.Types, ByteOrder: spec.ByteOrder}
	for name, m := range spec.Maps {
		if m.Pinning == ebpf.PinByName {
			shared.Maps[name] = m
		}
	}
	collection, err := ebpf.NewCollectionWithOptions(shared, ebpf.CollectionOptions{Maps: ebpf.MapOptions{PinPath: directory}})
	if err != nil {
		return fmt.Errorf("loading the maps: %w", err)
	}
	o.maps = collection.Maps
	return nil
}

// loadProgram loads a program, with the maps that are pinned.
func loadProgram(spec *ebpf.CollectionSpec, name, directory string) (*ebpf.Program, error) {
	collection, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{Maps: ebpf.MapOptions{PinPath: directory}})
	if err != nil {
		return nil, fmt.Errorf("loading %s: %w", name, err)
	}
	defer collection.Close() // of what is not taken out
	program := collection.DetachProgram(name)
	if program == nil {
		return nil, fmt.Errorf("there is no program %s", name)
	}
	return program, nil
}

// prepare makes maps that are shared and outlast the agent. Attachments are
// written in their own memory, where a word changes in one step.
func prepare(spec *ebpf.CollectionSpec, subflowEntries uint32) {
	for name, m := range spec.Maps {
		if !strings.HasPrefix(name, ".") {
			m.Pinning = ebpf.PinByName
		}
	}
	spec.Maps["attachments"].Flags |= unix.BPF_F_MMAPABLE
	if subflowEntries > 0 {
		spec.Maps["subflows"].MaxEntries = subflowEntries
	}
}

func (o *objects) loadOwnMaps(directory string) error {
	for _, spec := range ownMaps {
		spec := spec.Copy()
		spec.Pinning = ebpf.PinByName
		loaded, err := ebpf.NewMapWithOptions(spec, ebpf.MapOptions{PinPath: directory})
		if err != nil {
			return fmt.Errorf("loading the map %s: %w", spec.Name, err)
		}
		o.maps[spec.Name] = loaded
	}
	return nil
}

// Close lets go of the programs and maps.
func (o *objects) Close() error {
	var failed error
	if o.counters != nil {
		failed = errors.Join(failed, o.counters.unmap())
	}
	if o.steady != nil {
		failed = errors.Join(failed, o.steady.unmap())
	}
	if o.attachments != nil {
		failed = errors.Join(failed, o.attachments.unmap())
	}
	if o.empty != nil {
		failed = errors.Join(failed, o.empty.Close())
	}
	for _, m := range o.maps {
		failed = errors.Join(failed, m.Close())
	}
	for _, program := range []*ebpf.Program{o.fromEndpoint, o.toEndpoint} {
		if program != nil {
			failed = errors.Join(failed, program.Close())
		}
	}
	return failed
}
