// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"bytes"
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"braid.dev/braid/agent/attach"
)

// ErrNotAttached says that a program is not at its hook.
var ErrNotAttached = errors.New("not attached")

// ErrOtherVersion says that the attached program is not the one of this agent.
var ErrOtherVersion = errors.New("the attached program is of another version than this command: use that of the node's agent")

// original is a program as it is attached, and the maps that it uses.
type original struct {
	id   ebpf.ProgramID
	tag  string
	maps map[string]*ebpf.Map // by the names that the kernel keeps
}

// kernelName is what the kernel keeps of a name.
func kernelName(name string) string { return name[:min(len(name), unix.BPF_OBJ_NAME_LEN-1)] }

// findAttached finds the program of this name at a hook of an interface.
func findAttached(index int, hook attach.Hook) (*original, error) {
	ids, err := attachedPrograms(index, hook)
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		found, err := open(id, kernelName(hook.Name))
		if found != nil || err != nil {
			return found, err
		}
	}
	return nil, fmt.Errorf("%s on interface %d: %w", hook.Name, index, ErrNotAttached)
}

// attachedPrograms are those of TCX and of clsact.
func attachedPrograms(index int, hook attach.Hook) (ids []ebpf.ProgramID, err error) {
	query, err := link.QueryPrograms(link.QueryOptions{Target: index, Attach: hook.Type})
	if err != nil && !errors.Is(err, ebpf.ErrNotSupported) && !errors.Is(err, unix.EINVAL) {
		return nil, fmt.Errorf("listing the programs on interface %d: %w", index, err)
	}
	if query != nil {
		for _, program := range query.Programs {
			ids = append(ids, program.ID)
		}
	}
	filters, err := attach.Filters(index, hook)
	if err != nil {
		return nil, err
	}
	for _, filter := range filters {
		if program, ok := filter.(*netlink.BpfFilter); ok {
			ids = append(ids, ebpf.ProgramID(program.Id))
		}
	}
	return ids, nil
}

// open opens the program if it has this name; nil if it has another, or is gone.
func open(id ebpf.ProgramID, name string) (*original, error) {
	program, err := ebpf.NewProgramFromID(id)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("opening program %d: %w", id, err)
	}
	defer program.Close()
	info, err := program.Info()
	if err != nil {
		return nil, fmt.Errorf("asking for program %d: %w", id, err)
	}
	if info.Name != name {
		return nil, nil
	}
	o := &original{id: id, tag: info.Tag, maps: map[string]*ebpf.Map{}}
	ids, _ := info.MapIDs()
	for _, id := range ids {
		if err := o.openMap(id); err != nil {
			return nil, errors.Join(err, o.close())
		}
	}
	return o, nil
}

func (o *original) openMap(id ebpf.MapID) error {
	opened, err := ebpf.NewMapFromID(id)
	if err != nil {
		return fmt.Errorf("opening map %d: %w", id, err)
	}
	info, err := opened.Info()
	if err != nil {
		return errors.Join(fmt.Errorf("asking for map %d: %w", id, err), opened.Close())
	}
	if o.maps[info.Name] != nil {
		return opened.Close()
	}
	o.maps[info.Name] = opened
	return nil
}

func (o *original) close() error {
	var failed error
	for _, m := range o.maps {
		failed = errors.Join(failed, m.Close())
	}
	return failed
}

// treatment is what becomes of a map in the copy of a program.
type treatment struct {
	// shared maps are only read by the program.
	shared bool
	// fresh maps begin empty.
	fresh bool
	// only, where it is set, says which entries are copied.
	only func(key []byte) bool
	// key is the one entry that is copied.
	key []byte
	// entries is the size, where it is not that of the original.
	entries uint32
}

// replica is a private copy of a program: its own maps begin with what those of the
// attached one hold, and nothing that it writes goes anywhere else.
type replica struct {
	*ebpf.Program
	*original
	collection *ebpf.Collection
}

// replicate loads the same instructions once more. What sibling, which may be nil,
// has copied already it uses too.
func replicate(from *original, name string, spec *ebpf.CollectionSpec, treatments map[string]treatment, sibling *replica) (*replica, error) {
	given := map[string]*ebpf.Map{}
	for mapName, m := range spec.Maps {
		m.Pinning = ebpf.PinNone
		t, original := treatments[mapName], from.maps[kernelName(mapName)]
		makePrivate(m, t, original)
		switch {
		case mapName[0] == '.' || original == nil: // the program's own, or not used by it
		case t.shared:
			given[mapName] = original
		case sibling.uses(mapName):
			given[mapName] = sibling.collection.Maps[mapName]
		}
	}
	collection, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: given})
	if errors.Is(err, ebpf.ErrMapIncompatible) {
		return nil, fmt.Errorf("%s: %w: %w", name, ErrOtherVersion, err)
	}
	if err != nil {
		return nil, fmt.Errorf("loading a copy of %s: %w", name, err)
	}
	r := &replica{Program: collection.Programs[name], original: from, collection: collection}
	if err := r.fill(name, treatments, given); err != nil {
		collection.Close()
		return nil, err
	}
	return r, nil
}

// uses is true for a map of which the replica has a copy.
func (r *replica) uses(mapName string) bool { return r != nil && r.maps[kernelName(mapName)] != nil }

// makePrivate needs no more memory than there are entries: what makes room for new
// ones by itself, and reserves all of its memory, becomes a plain hash.
func makePrivate(m *ebpf.MapSpec, t treatment, from *ebpf.Map) {
	if from != nil && t.entries == 0 {
		m.MaxEntries = from.MaxEntries()
	}
	if t.shared {
		return
	}
	m.Flags &^= unix.BPF_F_MMAPABLE // the agent's own business
	if m.Type == ebpf.LRUHash {
		m.Type, m.Flags = ebpf.Hash, m.Flags|unix.BPF_F_NO_PREALLOC
	}
	if t.entries != 0 {
		m.MaxEntries = t.entries
	}
}

// fill checks that the instructions are those of the attached program, by the
// kernel's own hash of them, and copies its state.
func (r *replica) fill(name string, treatments map[string]treatment, given map[string]*ebpf.Map) error {
	info, err := r.Info()
	if err != nil {
		return fmt.Errorf("asking for the copy of %s: %w", name, err)
	}
	if info.Tag != r.tag {
		return fmt.Errorf("%s: %w", name, ErrOtherVersion)
	}
	for mapName, m := range r.collection.Maps {
		t, from := treatments[mapName], r.maps[kernelName(mapName)]
		if given[mapName] != nil || t.fresh || mapName[0] == '.' || from == nil {
			continue
		}
		if err := copyMap(from, m, t); err != nil {
			return fmt.Errorf("copying the map %s: %w", mapName, err)
		}
	}
	return nil
}

// copyMap copies what the treatment asks for. What changes meanwhile is copied as it
// was or as it is.
func copyMap(from, to *ebpf.Map, t treatment) error {
	if t.key != nil {
		value, err := from.LookupBytes(t.key)
		if err != nil || value == nil {
			return err
		}
		return to.Put(t.key, value)
	}
	var key, value []byte
	entries := from.Iterate()
	for entries.Next(&key, &value) {
		if t.only != nil && !t.only(key) {
			continue
		}
		if err := to.Put(bytes.Clone(key), bytes.Clone(value)); err != nil {
			return err
		}
	}
	if err := entries.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) {
		return err
	}
	return nil
}

func (r *replica) close() error {
	r.collection.Close()
	return r.original.close()
}
