// SPDX-License-Identifier: Apache-2.0

package pins

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

// copied is a map whose entries were copied while the old programs still wrote.
type copied struct {
	from, to *ebpf.Map
	form     form
}

// keepAll pins in a directory what the other one has of these maps.
func (p *Pins) keepAll(other, directory string, specs []*ebpf.MapSpec) error {
	done := map[string]bool{}
	for _, spec := range specs {
		if done[spec.Name] {
			continue // programs share it
		}
		done[spec.Name] = true
		pinned, err := ebpf.LoadPinnedMap(filepath.Join(other, spec.Name), nil)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err == nil {
			err = errors.Join(p.keep(pinned, filepath.Join(directory, spec.Name), spec), pinned.Close())
		}
		if err != nil {
			return fmt.Errorf("taking over the map %s of another version: %w", spec.Name, err)
		}
	}
	return nil
}

// keep shares the map or copies it.
func (p *Pins) keep(pinned *ebpf.Map, pin string, spec *ebpf.MapSpec) error {
	// A clone, because to pin what has a pin moves it.
	old, err := pinned.Clone()
	if err != nil {
		return err
	}
	reason := fits(spec, old)
	if reason == nil && variant == "" {
		return errors.Join(old.Pin(pin), old.Close())
	}
	form, err := formOf(old, spec)
	if err != nil {
		p.log.Info("failed to copy the map of another version; this version begins with an empty one", "map", spec.Name, "reason", err.Error())
		return old.Close()
	}
	created := spec.Copy()
	created.Pinning = ebpf.PinNone
	fresh, err := ebpf.NewMap(created)
	if err != nil {
		return errors.Join(err, old.Close())
	}
	p.copies = append(p.copies, copied{from: old, to: fresh, form: form})
	return errors.Join(form.copyAll(old, fresh, ebpf.UpdateAny), fresh.Pin(pin))
}

// catchUp copies what the old programs wrote until they were replaced.
func (p *Pins) catchUp() error {
	var failed error
	for _, c := range p.copies {
		if c.to.Type() != ebpf.Array {
			failed = errors.Join(failed, c.form.copyAll(c.from, c.to, ebpf.UpdateNoExist))
		}
	}
	return errors.Join(failed, p.Close())
}

// fits is nil where the map has the type, the sizes and the layout of the spec.
func fits(spec *ebpf.MapSpec, m *ebpf.Map) error {
	if err := spec.Compatible(m); err != nil {
		return err
	}
	for what, wanted := range map[string]btf.Type{"keys": spec.Key, "values": spec.Value} {
		found, err := typeOf(m, wanted)
		if err != nil {
			return fmt.Errorf("its %s: %w", what, err)
		}
		if found != nil && describe(found) != describe(wanted) {
			return fmt.Errorf("its %s are laid out in another way", what)
		}
	}
	return nil
}

// typeOf is what a map calls by the name of a structure; nil for what has no
// members, and for a map that does not describe itself: the sizes of keys and
// values then say all that is known.
func typeOf(m *ebpf.Map, wanted btf.Type) (btf.Type, error) {
	if wanted == nil {
		return nil, nil
	}
	if _, hasMembers := btf.UnderlyingType(wanted).(*btf.Struct); !hasMembers {
		return nil, nil
	}
	info, err := m.Info()
	if err != nil {
		return nil, fmt.Errorf("asking for the map: %w", err)
	}
	id, known := info.BTFID()
	if !known {
		return nil, nil
	}
	handle, err := btf.NewHandleFromID(id)
	if err != nil {
		return nil, fmt.Errorf("opening the map's description of itself: %w", err)
	}
	defer handle.Close()
	types, err := handle.Spec(nil)
	if err != nil {
		return nil, fmt.Errorf("reading the map's description of itself: %w", err)
	}
	return structure(types, wanted)
}

// structure is the one of these types with the wanted one's name. A program may know
// several of one name; one that is laid out as wanted is preferred.
func structure(types *btf.Spec, wanted btf.Type) (btf.Type, error) {
	named, err := types.AnyTypesByName(wanted.TypeName())
	if err != nil {
		return nil, fmt.Errorf("looking for %s: %w", wanted.TypeName(), err)
	}
	var found btf.Type
	for _, candidate := range named {
		if _, hasMembers := candidate.(*btf.Struct); !hasMembers {
			continue
		}
		if describe(candidate) == describe(wanted) {
			return candidate, nil
		}
		if found == nil {
			found = candidate
		}
	}
	if found == nil {
		return nil, fmt.Errorf("looking for the structure %s: %w", wanted.TypeName(), btf.ErrNotFound)
	}
	return found, nil
}

// form says how values of an old map become those of a new one.
type form struct {
	moves []move
	size  int // of a new value, in bytes
}

// copyable are the kinds of maps whose entries can be read and written one by one.
var copyable = []ebpf.MapType{ebpf.Hash, ebpf.LRUHash, ebpf.Array}

// formOf fails where nothing of the old map would mean the same in the new one.
func formOf(old *ebpf.Map, spec *ebpf.MapSpec) (form, error) {
	f := form{size: int(spec.ValueSize)}
	if !slices.Contains(copyable, old.Type()) || !slices.Contains(copyable, spec.Type) {
		return f, fmt.Errorf("%s and %s", old.Type(), spec.Type)
	}
	key, err := typeOf(old, spec.Key)
	if err != nil {
		return f, err
	}
	if old.KeySize() != spec.KeySize || key != nil && describe(key) != describe(spec.Key) {
		return f, errors.New("its keys are laid out in another way")
	}
	value, err := typeOf(old, spec.Value)
	switch {
	case err != nil:
		return f, err
	case value != nil:
		f.moves = movesOf(value, spec.Value, 0, 0)
	case old.ValueSize() == spec.ValueSize:
		f.moves = []move{{size: spec.ValueSize}}
	default:
		return f, errors.New("its values have another size")
	}
	return f, nil
}

// copyAll copies all entries, as far as there is room. What others add or remove
// meanwhile may be missed.
func (f *form) copyAll(from, to *ebpf.Map, flags ebpf.MapUpdateFlags) error {
	key, value := make([]byte, from.KeySize()), make([]byte, from.ValueSize())
	entries := from.Iterate()
	for entries.Next(&key, &value) {
		err := to.Update(key, f.convert(value), flags)
		if err != nil && !isNoMatter(err) {
			return fmt.Errorf("copying: %w", err)
		}
	}
	if err := entries.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) {
		return fmt.Errorf("reading: %w", err)
	}
	return nil
}

func (f *form) convert(old []byte) []byte {
	value := make([]byte, f.size)
	for _, m := range f.moves {
		copy(value[m.to:m.to+m.size], old[m.from:m.from+m.size])
	}
	return value
}
