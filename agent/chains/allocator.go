// SPDX-License-Identifier: Apache-2.0

package chains

import (
	"fmt"

	"github.com/cilium/ebpf"

	"braid.dev/braid/agent/node"
	"braid.dev/braid/bpf/endpoint"
)

// empty is the slot of the chain without rules, and the row of its counters. It
// undoes what rules left in records.
const empty = 0

// allocator gives chains their slots and endpoints their rows of counters.
type allocator struct {
	contents map[uint16]content // by slot
	slotOf   map[[32]byte]uint16
	rows     map[uint16]bool // that are in use
	numbers  chainNumbers
	// stale are slots that nobody uses and that still hold a chain.
	stale map[uint16]bool
	// replaced is what words no longer name and packets may still use.
	replaced []replaced
}

// readAllocator reads what an earlier agent gave.
func readAllocator(maps map[string]*ebpf.Map) (*allocator, error) {
	a := &allocator{
		contents: map[uint16]content{}, slotOf: map[[32]byte]uint16{}, rows: map[uint16]bool{empty: true}, stale: map[uint16]bool{},
	}
	if err := maps["chain_numbers"].Lookup(uint32(0), &a.numbers); err != nil {
		return nil, fmt.Errorf("reading the epoch of chains: %w", err)
	}
	a.numbers.Endpoint = max(a.numbers.Endpoint, node.MaxEndpoints)
	var slot uint32
	var value content
	entries := maps["chain_contents"].Iterate()
	for entries.Next(&slot, &value) {
		a.contents[uint16(slot)], a.slotOf[value.Digest] = value, uint16(slot)
	}
	if err := entries.Err(); err != nil {
		return nil, fmt.Errorf("reading what the chains hold: %w", err)
	}
	return a, nil
}

var (
	errNoSlot = fmt.Errorf("the node has %d different chains already", endpoint.MaxChains-1)
	errNoRow  = fmt.Errorf("%d endpoints of the node have chains already", endpoint.MaxEndpoints-1)
)

// freeSlot is one that nobody uses.
func (a *allocator) freeSlot() (uint16, error) {
	for slot := uint16(empty + 1); slot < endpoint.MaxChains; slot++ {
		if _, used := a.contents[slot]; !used {
			return slot, nil
		}
	}
	return 0, errNoSlot
}

func (a *allocator) freeRow() (uint16, error) {
	for row := uint16(empty + 1); row < endpoint.MaxEndpoints; row++ {
		if !a.rows[row] {
			return row, nil
		}
	}
	return 0, errNoRow
}

// reserve finds a slot for a chain that has none yet.
func (a *allocator) reserve(d desired, fills map[uint16]desired) error {
	if _, has := a.slotOf[d.content.Digest]; has {
		return nil
	}
	slot, err := a.freeSlot()
	if err != nil {
		return err
	}
	a.contents[slot], a.slotOf[d.content.Digest], fills[slot] = d.content, slot, d
	return nil
}

// release takes back slots that could not be filled.
func (a *allocator) release(fills map[uint16]desired) {
	for slot := range fills {
		a.free(slot)
	}
}

// free makes a slot one that nobody uses.
func (a *allocator) free(slot uint16) {
	delete(a.slotOf, a.contents[slot].Digest)
	delete(a.contents, slot)
	a.stale[slot] = true
}

func (a *allocator) replace(old replaced) {
	if old.word != 0 && old.word.Row() != empty {
		a.replaced = append(a.replaced, old)
	}
}

// newEpoch makes that records are looked at anew. It is noted before it is used,
// so that no word ever comes twice.
func (h *half) newEpoch() error {
	h.numbers.Epoch++
	if err := h.maps["chain_numbers"].Put(uint32(0), h.numbers); err != nil {
		return fmt.Errorf("writing the epoch of chains: %w", err)
	}
	return nil
}
