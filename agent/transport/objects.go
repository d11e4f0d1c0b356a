// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"braid.dev/braid/agent/attach"
	"braid.dev/braid/agent/pace"
	"braid.dev/braid/agent/pace/shared"
	"braid.dev/braid/agent/pins"
	"braid.dev/braid/bpf/transport"
)

// linkPin is the name of the pinned link in the directory of pins.
const linkPin = "set_transport_link"

// sharedMaps are those that rules have a part in.
var sharedMaps = []string{transport.TransportMapPacedSockets, transport.TransportMapAskedByRules}

// pinnedAs are the names of pins that have stayed as earlier agents have them, where the maps have
// others: so what peers have asked for goes on over an upgrade and a rollback.
var pinnedAs = map[string]string{
	transport.TransportMapAgentRequests: "transport_wishes", transport.TransportMapAgentRequestCounts: "transport_wishers",
}

// objects are the loaded programs and their maps.
type objects struct {
	transport.TransportObjects
	existing *link.Iter
}

// load loads the programs, and puts the one for new sockets on the root of the cgroup2
// tree, in the place of an earlier agent's.
func (p *Part) load() (_ *objects, failed error) {
	spec, err := transport.LoadTransport()
	if err != nil {
		return nil, fmt.Errorf("failed to read the programs for transport settings: %w", err)
	}
	for name, m := range spec.Maps {
		if name[0] != '.' && !slices.Contains(sharedMaps, name) {
			m.Pinning = ebpf.PinByName
			m.Name = cmp.Or(pinnedAs[name], m.Name)
		}
	}
	if err := p.loaded.Prepare(pins.Maps{Kept: pins.ByName(spec)}); err != nil {
		return nil, err
	}
	o := &objects{}
	defer func() {
		if failed != nil {
			failed = errors.Join(failed, o.Close())
		}
	}()
	held := map[string]*ebpf.Map{}
	for _, name := range sharedMaps {
		m, err := shared.Hold(shared.Directory(p.options.PinPath), shared.ByRequests, spec.Maps[name])
		if err != nil {
			return nil, err
		}
		defer m.Close() // the programs have it
		held[name] = m
	}
	if err := spec.LoadAndAssign(&o.TransportObjects, &ebpf.CollectionOptions{
		Maps: ebpf.MapOptions{PinPath: p.loaded.Directory()}, MapReplacements: held,
	}); err != nil {
		return nil, fmt.Errorf("failed to load the programs for transport settings: %w", err)
	}
	if o.existing, err = link.AttachIter(link.IterOptions{Program: o.SetExisting}); err != nil {
		return nil, fmt.Errorf("failed to prepare the iterator over sockets: %w", err)
	}
	if err := p.arrivals.Choose(o.NoteArrival); err != nil {
		return nil, err
	}
	return o, o.attach(p.loaded.Directory(), p.options.CgroupRoot)
}

func (o *objects) attach(directory, root string) (err error) {
	if root == "" {
		if root, err = pace.CgroupRoot(); err != nil {
			return err
		}
	}
	if err := attach.ToCgroup(filepath.Join(directory, linkPin), root, o.SetTransport); err != nil {
		return fmt.Errorf("failed to attach set_transport: %w", err)
	}
	return nil
}

// Close lets go of everything without changing it.
func (o *objects) Close() error {
	failed := o.TransportObjects.Close()
	if o.existing != nil {
		failed = errors.Join(failed, o.existing.Close())
	}
	return failed
}
