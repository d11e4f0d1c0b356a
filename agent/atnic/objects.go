// SPDX-License-Identifier: Apache-2.0

package atnic

import (
	"errors"
	"fmt"
	"maps"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"braid.dev/braid/agent/entries"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/bpf/endpoint"
)

// The maps of at_nic that are not those of chains.
const (
	hookedNICs       = "hooked_nics"
	reachedEndpoints = "reached_endpoints"
	nicRuns          = "nic_runs"
)

// objects are the programs and maps of this part. Nothing of them is pinned: a link keeps
// its program and with it the maps, and the next agent's program comes with its own.
type objects struct {
	nothing *ebpf.Program // while there is no chain
	atNIC   *ebpf.Program
	chains  ebpf.MapID // with which atNIC was loaded
	maps    map[string]*ebpf.Map
}

// choose gives the program that belongs on NICs now: at_nic with the maps of chains, or one
// that does nothing where there are none. NICs keep one of the two all the time, because
// drivers set up their queues anew when the first program comes and when the last one goes.
func (o *objects) choose(from Chains) (*ebpf.Program, error) {
	of, err := from.Map("chains")
	if err != nil {
		return nil, err
	}
	if of == nil {
		return o.withoutChains()
	}
	defer of.Close()
	info, err := of.Info()
	if err != nil {
		return nil, fmt.Errorf("asking for the map of chains: %w", err)
	}
	id, _ := info.ID()
	if o.atNIC != nil && id == o.chains {
		return o.atNIC, nil
	}
	if err := errors.Join(closeProgram(&o.atNIC), o.load(from)); err != nil {
		return nil, err
	}
	o.chains = id
	return o.atNIC, nil
}

// load loads at_nic with the maps of chains.
func (o *objects) load(from Chains) error {
	spec, err := endpoint.LoadAtNIC()
	if err != nil {
		return fmt.Errorf("reading at_nic: %w", err)
	}
	if err := o.loadMaps(spec); err != nil {
		return err
	}
	shared, err := sharedMaps(from, spec)
	if err != nil {
		return err
	}
	defer func() { _ = closeMaps(shared) }()
	replacements := maps.Clone(o.maps)
	maps.Copy(replacements, shared)
	collection, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: replacements})
	if err != nil {
		return fmt.Errorf("loading at_nic: %w", err)
	}
	defer collection.Close()
	o.atNIC = collection.DetachProgram("at_nic")
	return nil
}

// sharedMaps opens those of chains, whose sizes and flags their owner chooses.
func sharedMaps(from Chains, spec *ebpf.CollectionSpec) (map[string]*ebpf.Map, error) {
	shared := map[string]*ebpf.Map{}
	for name, is := range spec.Maps {
		opened, err := from.Map(name)
		if err != nil {
			err = errors.Join(err, closeMaps(shared))
			return nil, err
		}
		if opened != nil {
			is.MaxEntries, is.Flags = opened.MaxEntries(), opened.Flags()
			shared[name] = opened
		}
	}
	return shared, nil
}

func closeMaps(all map[string]*ebpf.Map) (failed error) {
	for _, m := range all {
		failed = errors.Join(failed, m.Close())
	}
	return failed
}

// loadMaps makes the maps of this part's own, which all its programs share.
func (o *objects) loadMaps(spec *ebpf.CollectionSpec) error {
	if o.maps == nil {
		o.maps = map[string]*ebpf.Map{}
	}
	for _, name := range []string{hookedNICs, reachedEndpoints, nicRuns} {
		if o.maps[name] != nil {
			continue
		}
		loaded, err := ebpf.NewMap(spec.Maps[name])
		if err != nil {
			return fmt.Errorf("making the map %s: %w", name, err)
		}
		o.maps[name] = loaded
	}
	return nil
}

const xdpPass = 2

// withoutChains lets go of the maps of chains too.
func (o *objects) withoutChains() (*ebpf.Program, error) {
	if err := closeProgram(&o.atNIC); err != nil || o.nothing != nil {
		return o.nothing, err
	}
	var err error
	o.nothing, err = ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "at_nic", Type: ebpf.XDP, AttachType: ebpf.AttachXDP, License: "Dual BSD/GPL", Flags: unix.BPF_F_XDP_HAS_FRAGS,
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, xdpPass), asm.Return()},
	})
	if err != nil {
		return nil, fmt.Errorf("loading the program that lets everything pass: %w", err)
	}
	return o.nothing, nil
}

// write tells at_nic of NICs, with what each of them has dropped so far, and of endpoints.
func (o *objects) write(nics []node.Path, reached map[endpoint.AtNICAddress]endpoint.AtNICReached) error {
	if o.maps == nil {
		return nil
	}
	failed := entries.Replace(o.maps[reachedEndpoints], reached, "the endpoints whose rules act at NICs")
	wanted := map[uint32]bool{}
	for i := range nics {
		index := uint32(nics[i].Interface)
		wanted[index] = true
		failed = errors.Join(failed, o.writeNIC(index, nics[i].Found.MAC))
	}
	return errors.Join(failed, entries.Forget(o.maps[hookedNICs], func(index uint32) bool { return !wanted[index] }))
}

// writeNIC writes only what has changed: at_nic counts in the same entry.
func (o *objects) writeNIC(index uint32, address []byte) error {
	var is endpoint.AtNICHookedNic
	err := o.maps[hookedNICs].Lookup(index, &is)
	if err == nil && string(is.Address[:]) == string(address) {
		return nil
	}
	copy(is.Address[:], address)
	if err := o.maps[hookedNICs].Put(index, is); err != nil {
		return fmt.Errorf("writing the NIC %d: %w", index, err)
	}
	return nil
}

// dropped is how many packets at_nic has dropped at a NIC, since this agent began.
func (o *objects) dropped(index int) (packets uint64, err error) {
	if o.maps == nil {
		return 0, nil
	}
	var is endpoint.AtNICHookedNic
	if err := o.maps[hookedNICs].Lookup(uint32(index), &is); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return 0, fmt.Errorf("reading what was dropped at the NIC %d: %w", index, err)
	}
	return is.Dropped, nil
}

func closeProgram(program **ebpf.Program) (err error) {
	if *program != nil {
		err = (*program).Close()
		*program = nil
	}
	return err
}

func (o *objects) close() error {
	failed := errors.Join(closeProgram(&o.atNIC), closeProgram(&o.nothing))
	failed = errors.Join(failed, closeMaps(o.maps))
	o.maps, o.chains = nil, 0
	return failed
}
