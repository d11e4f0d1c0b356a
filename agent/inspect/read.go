// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"errors"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// entry is one of a map.
type entry[K, V any] struct {
	key   K
	value V
}

// batch is how many entries are read with one system call.
const batch = 512

// readHash reads all entries of a hash map. What is added or deleted meanwhile may
// or may not be among them.
func readHash[K comparable, V any](m *ebpf.Map) ([]entry[K, V], error) {
	seen := map[K]int{} // a hash that changes may tell of an entry twice
	var all []entry[K, V]
	err := readBatches(m, func(keys []K, values []V) {
		for i := range keys {
			if at, ok := seen[keys[i]]; ok {
				all[at].value = values[i]
				continue
			}
			seen[keys[i]] = len(all)
			all = append(all, entry[K, V]{keys[i], values[i]})
		}
	})
	return all, err
}

// readBatches shows all entries, some at a time, in memory that it uses again.
func readBatches[K, V any](m *ebpf.Map, visit func([]K, []V)) error {
	var cursor ebpf.MapBatchCursor
	keys, values := make([]K, batch), make([]V, batch)
	for {
		count, err := m.BatchLookup(&cursor, keys, values, nil)
		if errors.Is(err, unix.ENOSPC) && len(keys) < int(m.MaxEntries()) { // a bucket of a hash must fit as a whole
			keys, values = make([]K, 2*len(keys)), make([]V, 2*len(keys))
			continue
		}
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return err
		}
		visit(keys[:count], values[:count])
		if err != nil {
			return nil
		}
	}
}
