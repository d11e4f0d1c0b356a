// SPDX-License-Identifier: Apache-2.0

package chains

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"k8s.io/apimachinery/pkg/types"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/bpf/endpoint"
)

// empty is the slot of the chain without rules, and the row of its counters. It
// undoes what rules left in records.
const empty = 0

// attached is an endpoint that has a chain, or had one whose effects are not yet
// undone.
type attached struct {
	name   string
	record endpointRecord
	word   word
	rules  []v1alpha1.PlanRule // of its chain; nil where an earlier agent knew them
	// lifted is when it got the chain without rules; zero while it has another.
	lifted time.Time
}

func (a *attached) index() int { return int(a.record.Interface) }

// book is what the maps hold, in a form that can be searched.
type book struct {
	endpoints map[types.UID]*attached
	contents  map[uint16]content // by slot
	slotOf    map[[32]byte]uint16
	rows      map[uint16]bool // that are in use
	paths     [v1alpha1.MaxPaths]string
	next      next
	// stale are slots that nobody uses and that still hold a chain.
	stale map[uint16]bool
	// retired is what words no longer name and packets may still use.
	retired []retired
}

func readBook(o *objects) (*book, error) {
	b := &book{
		endpoints: map[types.UID]*attached{}, contents: map[uint16]content{}, slotOf: map[[32]byte]uint16{},
		rows: map[uint16]bool{empty: true}, stale: map[uint16]bool{},
	}
	if err := o.maps["chain_numbers"].Lookup(uint32(0), &b.next); err != nil {
		return nil, fmt.Errorf("reading the numbers to be given next: %w", err)
	}
	return b, errors.Join(b.readPaths(o), b.readContents(o), b.readEndpoints(o))
}

func (b *book) readPaths(o *objects) error {
	for slot := range b.paths {
		var name pathName
		if err := o.maps["endpoint_paths"].Lookup(uint32(slot), &name); err != nil {
			return fmt.Errorf("reading the names of paths: %w", err)
		}
		b.paths[slot] = string(name[:max(0, bytes.IndexByte(name[:], 0))])
	}
	return nil
}

func (b *book) readContents(o *objects) error {
	var slot uint32
	var value content
	entries := o.maps["chain_contents"].Iterate()
	for entries.Next(&slot, &value) {
		b.contents[uint16(slot)], b.slotOf[value.Digest] = value, uint16(slot)
	}
	if err := entries.Err(); err != nil {
		return fmt.Errorf("reading what the chains hold: %w", err)
	}
	return nil
}

func (b *book) readEndpoints(o *objects) error {
	var name endpointName
	var record endpointRecord
	entries := o.maps["endpoint_names"].Iterate()
	for entries.Next(&name, &record) {
		found, err := o.attachments.get(int(record.Interface))
		if err != nil {
			return err
		}
		a := &attached{record: record}
		if found.Endpoint == record.Number {
			a.word = word(found.Chain)
			b.rows[a.word.Row()] = true
		}
		if a.word.Slot() == empty {
			a.lifted = time.Now()
		}
		b.endpoints[types.UID(name[:max(0, bytes.IndexByte(name[:], 0))])] = a
	}
	if err := entries.Err(); err != nil {
		return fmt.Errorf("reading the endpoints: %w", err)
	}
	return nil
}

// assignPaths gives each path a slot: the one it had, else the first free.
func (b *book) assignPaths(paths []Path) map[string]uint8 {
	wanted, slotOf := map[string]bool{}, map[string]uint8{}
	for _, path := range paths {
		wanted[path.Name] = true
	}
	for slot, name := range b.paths {
		if wanted[name] && name != "" {
			slotOf[name] = uint8(slot)
		} else {
			b.paths[slot] = ""
		}
	}
	for _, path := range paths {
		if _, has := slotOf[path.Name]; !has {
			slot := slices.Index(b.paths[:], "")
			b.paths[slot], slotOf[path.Name] = path.Name, uint8(slot)
		}
	}
	return slotOf
}

var (
	errNoSlot = fmt.Errorf("the node has %d different chains already", endpoint.MaxChains-1)
	errNoRow  = fmt.Errorf("%d endpoints of the node have chains already", endpoint.MaxEndpoints-1)
)

// freeSlot is one that nobody uses.
func (b *book) freeSlot() (uint16, error) {
	for slot := uint16(empty + 1); slot < endpoint.MaxChains; slot++ {
		if _, used := b.contents[slot]; !used {
			return slot, nil
		}
	}
	return 0, errNoSlot
}

func (b *book) freeRow() (uint16, error) {
	for row := uint16(empty + 1); row < endpoint.MaxEndpoints; row++ {
		if !b.rows[row] {
			return row, nil
		}
	}
	return 0, errNoRow
}

// usedSlots are those of words.
func (b *book) usedSlots() map[uint16]bool {
	used := map[uint16]bool{empty: true}
	for _, a := range b.endpoints {
		used[a.word.Slot()] = true
	}
	return used
}

func (o *objects) writeNext(n next) error {
	if err := o.maps["chain_numbers"].Put(uint32(0), n); err != nil {
		return fmt.Errorf("writing the numbers to be given next: %w", err)
	}
	return nil
}

func (o *objects) writeRecord(uid types.UID, record endpointRecord) error {
	var name endpointName
	copy(name[:], uid)
	if err := o.maps["endpoint_names"].Put(name, record); err != nil {
		return fmt.Errorf("writing the endpoint: %w", err)
	}
	return nil
}

func (o *objects) deleteRecord(uid types.UID) error {
	var name endpointName
	copy(name[:], uid)
	if err := o.maps["endpoint_names"].Delete(name); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("forgetting the endpoint: %w", err)
	}
	return nil
}
