// SPDX-License-Identifier: Apache-2.0

// Package entries reads and changes the entries of BPF maps. What programs add or remove
// meanwhile may be missed.
package entries

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
)

// batch is how many entries Each reads at once: more than a bucket of a hash has.
const batch = 1024

// Each visits all entries of a map that may be large.
func Each[K, V any](m *ebpf.Map, visit func(*K, *V)) error { return new(Reader[K, V]).Each(m, visit) }

// Reader reads a map again and again, always into the same memory. It is not safe for concurrent
// use.
type Reader[K, V any] struct {
	keys   []K
	values []V
}

// Each visits all entries of a map that may be large. What it passes on changes with the next call.
func (r *Reader[K, V]) Each(m *ebpf.Map, visit func(*K, *V)) error {
	if r.keys == nil {
		r.keys, r.values = make([]K, batch), make([]V, batch)
	}
	var cursor ebpf.MapBatchCursor
	for {
		n, err := m.BatchLookup(&cursor, r.keys, r.values, nil)
		for i := range n {
			visit(&r.keys[i], &r.values[i])
		}
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading %s: %w", m, err)
		}
	}
}

// Keys are those of a map. With an error they are those that could be read.
func Keys[K any](m *ebpf.Map) (keys []K, err error) {
	var key K
	value := make([]byte, m.ValueSize())
	entries := m.Iterate()
	for entries.Next(&key, &value) {
		keys = append(keys, key)
	}
	if err := entries.Err(); err != nil {
		return keys, fmt.Errorf("reading the keys of %s: %w", m, err)
	}
	return keys, nil
}

// MakeInner gives a map of maps another one of its own for a key, unless it has one.
func MakeInner(outer *ebpf.Map, key uint32, inner *ebpf.MapSpec, what string) error {
	var id uint32
	err := outer.Lookup(key, &id)
	if err == nil {
		return nil
	}
	if !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("looking for the map of %s: %w", what, err)
	}
	made, err := ebpf.NewMap(inner)
	if err != nil {
		return fmt.Errorf("making a map for %s: %w", what, err)
	}
	defer made.Close()
	if err := outer.Put(key, made); err != nil {
		return fmt.Errorf("adding the map for %s: %w", what, err)
	}
	return nil
}

// Delete removes entries; one that is not there is no failure.
func Delete[K any](m *ebpf.Map, keys ...K) (failed error) {
	for i := range keys {
		if err := m.Delete(&keys[i]); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			failed = errors.Join(failed, fmt.Errorf("deleting an entry of %s: %w", m, err))
		}
	}
	return failed
}

// Forget removes the entries whose keys are to go.
func Forget[K any](m *ebpf.Map, goes func(K) bool) error {
	keys, err := Keys[K](m)
	var gone []K
	for _, key := range keys {
		if goes(key) {
			gone = append(gone, key)
		}
	}
	return errors.Join(err, Delete(m, gone...))
}

// Replace writes what is new or different, and then removes what is not wanted.
func Replace[K, V comparable](m *ebpf.Map, wanted map[K]V, what string) error {
	known := map[K]V{}
	failed := Each(m, func(key *K, value *V) { known[*key] = *value })
	for key, value := range wanted {
		if before, ok := known[key]; !ok || before != value {
			failed = errors.Join(failed, m.Put(&key, &value))
		}
	}
	for key := range known {
		if _, ok := wanted[key]; !ok {
			failed = errors.Join(failed, Delete(m, key))
		}
	}
	if failed != nil {
		return fmt.Errorf("writing %s: %w", what, failed)
	}
	return nil
}

// Sum is what all processors have counted in an entry of a map that each has its own of.
func Sum(m *ebpf.Map, key uint32) (sum uint64, err error) {
	var each []uint64
	if err := m.Lookup(key, &each); err != nil {
		return 0, fmt.Errorf("reading the counts of entry %d: %w", key, err)
	}
	for _, count := range each {
		sum += count
	}
	return sum, nil
}
