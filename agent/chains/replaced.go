// SPDX-License-Identifier: Apache-2.0

package chains

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
)

// replaced is what an endpoint had before, which packets may use for a moment
// longer.
type replaced struct {
	word   word
	row    uint16 // the row that goes on, empty for none
	copied row    // of the old row, to the new one
	rules  map[int]int
}

// sameRules are the places of rules before and after.
func sameRules(before, after content) map[int]int {
	places := map[int]int{}
	for now, fingerprint := range after.Rule {
		if then := slices.Index(before.Rule[:], fingerprint); fingerprint != 0 && then >= 0 {
			places[then] = now
		}
	}
	return places
}

// carried is what the new row begins with.
func (r *replaced) carried() (carried row) {
	for then, now := range r.rules {
		carried[now] = r.copied[then]
	}
	return carried
}

// collect frees the slots and rows that no packet can use any more, after it added
// to the new rows what was counted in the old ones since they were copied.
func (h *half) collect() error {
	used := map[uint16]bool{empty: true}
	for _, a := range h.endpoints {
		used[a.word.Slot()] = true
	}
	var unused []uint16
	for slot := range h.contents {
		if !used[slot] {
			unused = append(unused, slot)
		}
	}
	if len(unused) == 0 && len(h.replaced) == 0 {
		return nil
	}
	if err := h.grace(); err != nil {
		return err
	}
	for len(h.replaced) > 0 {
		if err := h.settle(h.replaced[0]); err != nil {
			return err
		}
		h.replaced = h.replaced[1:]
	}
	h.replaced = nil
	for _, slot := range unused {
		if err := h.maps["chain_contents"].Delete(uint32(slot)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("freeing a chain: %w", err)
		}
		h.free(slot)
	}
	return nil
}

func (h *half) settle(old replaced) error {
	from, err := h.counters.at(int(old.word.Row()))
	if err != nil {
		return err
	}
	to, err := h.counters.at(int(old.row))
	if err != nil {
		return err
	}
	last := from.read()
	for then, now := range old.rules {
		to.add(now, last[then].minus(old.copied[then]))
	}
	delete(h.rows, old.word.Row())
	return nil
}
