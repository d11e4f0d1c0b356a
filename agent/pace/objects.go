// SPDX-License-Identifier: Apache-2.0

package pace

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"braid.dev/braid/agent/attach"
	"braid.dev/braid/agent/pace/shared"
	"braid.dev/braid/bpf/pace"
)

// linkPin is the name of the pinned link in the directory of pins.
const linkPin = "govern_sockets_link"

// objects are the loaded programs and their maps.
type objects struct {
	sockets  *ebpf.Program
	existing *link.Iter // nil where the kernel has no such iterator
	// unswept is why there is none.
	unswept error

	subflows, paces, congestions, endpoints, requests, governed *ebpf.Map
	// paced and asked are shared with the part that speaks with peers.
	paced, asked *ebpf.Map
}

// assigned is what the programs need of all that their object declares.
type assigned struct {
	Sockets     *ebpf.Program `ebpf:"govern_sockets"`
	Subflows    *ebpf.Map     `ebpf:"subflows"`
	Paces       *ebpf.Map     `ebpf:"paces"`
	Congestions *ebpf.Map     `ebpf:"congestions"`
	Endpoints   *ebpf.Map     `ebpf:"netns_endpoints"`
	Requests    *ebpf.Map     `ebpf:"rule_requests"`
	Governed    *ebpf.Map     `ebpf:"governed_sockets"`
}

// ownMaps are the maps that nobody else pins.
var ownMaps = []string{pace.PaceMapPaces, pace.PaceMapCongestions, pace.PaceMapNetnsEndpoints, pace.PaceMapRuleRequests, pace.PaceMapGovernedSockets}

// load loads the programs with the maps that are pinned in the directory, and
// pins those that are not. Maps of another layout are made anew: what is wanted is
// written to them, and sockets that are governed stay as they are until then.
func load(directory, sharedDirectory string) (*objects, error) {
	loaded, err := tryLoad(directory, sharedDirectory)
	if errors.Is(err, ebpf.ErrMapIncompatible) {
		if err := unpin(directory, ownMaps); err != nil {
			return nil, err
		}
		loaded, err = tryLoad(directory, sharedDirectory)
	}
	return loaded, err
}

func tryLoad(directory, sharedDirectory string) (_ *objects, failed error) {
	if err := os.MkdirAll(directory, 0o700); err != nil {
		return nil, fmt.Errorf("making the directory of pins: %w", err)
	}
	spec, err := readSpec(directory)
	if err != nil {
		return nil, err
	}
	held, err := hold(sharedDirectory, spec)
	if err != nil {
		return nil, err
	}
	defer func() {
		if failed != nil {
			failed = errors.Join(failed, held[pace.PaceMapPacedSockets].Close(), held[pace.PaceMapAskedByRules].Close())
		}
	}()
	var got assigned
	options := &ebpf.CollectionOptions{Maps: ebpf.MapOptions{PinPath: directory}, MapReplacements: held}
	if err := spec.LoadAndAssign(&got, options); err != nil {
		return nil, explain(fmt.Errorf("loading the program for sockets: %w", err))
	}
	o := &objects{
		sockets: got.Sockets, subflows: got.Subflows, paces: got.Paces,
		congestions: got.Congestions, endpoints: got.Endpoints, requests: got.Requests, governed: got.Governed,
		paced: held[pace.PaceMapPacedSockets], asked: held[pace.PaceMapAskedByRules],
	}
	o.existing, o.unswept = o.loadIterator(spec)
	return o, nil
}

// hold opens the maps that others share.
func hold(directory string, spec *ebpf.CollectionSpec) (map[string]*ebpf.Map, error) {
	held := map[string]*ebpf.Map{}
	for _, name := range []string{pace.PaceMapPacedSockets, pace.PaceMapAskedByRules} {
		spec.Maps[name].Pinning = ebpf.PinNone
		m, err := shared.Hold(directory, shared.ByRules, spec.Maps[name])
		if err != nil {
			for _, other := range held {
				err = errors.Join(err, other.Close())
			}
			return nil, err
		}
		held[name] = m
	}
	return held, nil
}

// readSpec leaves out the maps of the endpoint half that are not read here.
func readSpec(directory string) (*ebpf.CollectionSpec, error) {
	spec, err := pace.LoadPace()
	if err != nil {
		return nil, fmt.Errorf("reading the programs for sockets: %w", err)
	}
	maps.DeleteFunc(spec.Maps, func(name string, m *ebpf.MapSpec) bool {
		m.Pinning = ebpf.PinByName
		switch name {
		case pace.PaceMapSubflows, pace.PaceMapPaces, pace.PaceMapCongestions, pace.PaceMapNetnsEndpoints,
			pace.PaceMapRuleRequests, pace.PaceMapGovernedSockets, pace.PaceMapPacedSockets, pace.PaceMapAskedByRules:
			return false
		}
		return true
	})
	return spec, adoptSize(spec.Maps[pace.PaceMapSubflows], directory)
}

// adoptSize takes the endpoint half's choice of how many subflows are remembered.
func adoptSize(spec *ebpf.MapSpec, directory string) error {
	pinned, err := ebpf.LoadPinnedMap(filepath.Join(directory, spec.Name), nil)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("opening the map of subflows: %w", err)
	}
	defer pinned.Close()
	spec.MaxEntries = pinned.MaxEntries()
	return nil
}

// loadIterator loads the program for sockets that exist already.
func (o *objects) loadIterator(spec *ebpf.CollectionSpec) (*link.Iter, error) {
	replaced := &ebpf.CollectionOptions{MapReplacements: map[string]*ebpf.Map{
		pace.PaceMapSubflows: o.subflows, pace.PaceMapPaces: o.paces, pace.PaceMapCongestions: o.congestions,
		pace.PaceMapNetnsEndpoints: o.endpoints, pace.PaceMapRuleRequests: o.requests, pace.PaceMapGovernedSockets: o.governed,
		pace.PaceMapPacedSockets: o.paced, pace.PaceMapAskedByRules: o.asked,
	}}
	for _, m := range spec.Maps {
		m.Pinning = ebpf.PinNone
	}
	var got struct {
		Existing *ebpf.Program `ebpf:"govern_existing"`
	}
	if err := spec.LoadAndAssign(&got, replaced); err != nil {
		return nil, fmt.Errorf("loading the iterator over sockets: %w", err)
	}
	defer got.Existing.Close()
	attached, err := link.AttachIter(link.IterOptions{Program: got.Existing})
	if err != nil {
		return nil, fmt.Errorf("preparing the iterator over sockets: %w", err)
	}
	return attached, nil
}

// attach puts the program on the root of the cgroup2 tree, or replaces an earlier
// agent's in one step.
func (o *objects) attach(directory, root string) error {
	return explain(attach.ToCgroup(filepath.Join(directory, linkPin), root, o.sockets))
}

// isPinned is false when somebody removed the pins, and with them the link to the
// cgroup2 tree or the records that the packet programs keep.
func (o *objects) isPinned(directory string) bool {
	if _, err := os.Stat(filepath.Join(directory, linkPin)); err != nil {
		return false
	}
	pinned, err := ebpf.LoadPinnedMap(filepath.Join(directory, pace.PaceMapSubflows), nil)
	if err != nil {
		return false
	}
	defer pinned.Close()
	theirs, err := pinned.Info()
	if err != nil {
		return false
	}
	ours, err := o.subflows.Info()
	if err != nil {
		return false
	}
	was, known := ours.ID()
	is, _ := theirs.ID()
	return known && was == is
}

// explain tells a kernel that cannot from one that will not.
func explain(err error) error {
	if errors.Is(err, ebpf.ErrNotSupported) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		return fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	return err
}

func (o *objects) close() error {
	failed := errors.Join(o.sockets.Close(), o.subflows.Close(), o.paces.Close(), o.congestions.Close(),
		o.endpoints.Close(), o.requests.Close(), o.governed.Close(), o.paced.Close(), o.asked.Close())
	if o.existing != nil {
		failed = errors.Join(failed, o.existing.Close())
	}
	return failed
}

// detach takes the program off the cgroup2 tree and removes what is pinned of it.
func detach(directory, sharedDirectory string) error {
	var failed error
	pinned, err := link.LoadPinnedLink(filepath.Join(directory, linkPin), nil)
	if err == nil {
		failed = errors.Join(pinned.Detach(), pinned.Unpin(), pinned.Close())
	} else if !errors.Is(err, os.ErrNotExist) {
		failed = fmt.Errorf("loading the pinned link: %w", err)
	}
	return errors.Join(failed, unpin(directory, ownMaps), shared.Leave(sharedDirectory, shared.ByRules))
}

func unpin(directory string, names []string) (failed error) {
	for _, name := range names {
		if err := os.Remove(filepath.Join(directory, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			failed = errors.Join(failed, fmt.Errorf("removing a pin: %w", err))
		}
	}
	return failed
}
