// SPDX-License-Identifier: Apache-2.0

package chains

import (
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"k8s.io/apimachinery/pkg/types"

	"braid.dev/braid/bpf/endpoint"
)

// change gives each endpoint its chain. What is new is complete before the one
// step that makes it count.
func (h *half) change(wanted []desired, failed failures) error {
	var changed []desired
	fills := map[uint16]desired{}
	for _, d := range wanted {
		if h.has(d) {
			h.endpoints[d.UID].keep(d)
			continue
		}
		if err := h.reserve(d, fills); err != nil {
			failed.add(d.UID, err)
			continue
		}
		changed = append(changed, d)
	}
	if len(changed) == 0 {
		return nil
	}
	if err := h.fill(fills); err != nil {
		h.release(fills)
		return err
	}
	if err := h.newEpoch(); err != nil {
		return err
	}
	for _, d := range changed {
		failed.add(d.UID, h.swap(d))
	}
	return nil
}

// has is true for an endpoint that has its chain already, where it shall have it.
func (h *half) has(d desired) bool {
	a := h.endpoints[d.UID]
	return a != nil && a.word.Slot() != empty && a.index() == d.HostInterface && h.contents[a.word.Slot()].Digest == d.content.Digest
}

func (a *attached) keep(d desired) { a.name, a.rules, a.draining = d.FullName(), d.rules, time.Time{} }

// fill writes chains into slots that no packet uses, and empties those that are no
// longer used. All at once, because the kernel waits each time until no program
// can have the map that was there before.
func (h *half) fill(fills map[uint16]desired) error {
	if len(fills) == 0 {
		return nil
	}
	var slots, descriptors []uint32
	for slot, d := range fills {
		inner, err := h.newChain(d.chain)
		if err != nil {
			return err
		}
		defer inner.Close() // the slot keeps it
		slots, descriptors = append(slots, uint32(slot)), append(descriptors, uint32(inner.FD()))
		delete(h.stale, slot)
	}
	for slot := range h.stale {
		slots, descriptors = append(slots, uint32(slot)), append(descriptors, uint32(h.empty.FD()))
	}
	if _, err := h.maps["chains"].BatchUpdate(slots, descriptors, nil); err != nil {
		return fmt.Errorf("writing %d chains: %w", len(fills), err)
	}
	clear(h.stale)
	for slot, d := range fills {
		if err := h.maps["chain_contents"].Put(uint32(slot), d.content); err != nil {
			return fmt.Errorf("writing the contents of a chain: %w", err)
		}
	}
	return nil
}

func (o *objects) newChain(chain *Chain) (*ebpf.Map, error) {
	inner, err := ebpf.NewMap(o.inner)
	if err != nil {
		return nil, fmt.Errorf("making the map of a chain: %w", err)
	}
	if err := inner.Put(uint32(0), chain); err != nil {
		return nil, errors.Join(fmt.Errorf("writing a chain: %w", err), inner.Close())
	}
	return inner, nil
}

// prepareEmpty puts the chain without rules into its slot.
func (o *objects) prepareEmpty() (err error) {
	if o.empty, err = o.newChain(&Chain{}); err != nil {
		return err
	}
	return o.grace()
}

// grace returns after all programs that ran when it was called have ended: the
// kernel waits for them after each change of a map of maps.
func (o *objects) grace() error {
	if err := o.maps["chains"].Put(uint32(empty), o.empty); err != nil {
		return fmt.Errorf("writing the chain without rules: %w", err)
	}
	return nil
}

// swap makes an endpoint use its new chain, from one packet to the next.
func (h *half) swap(d desired) error {
	row, err := h.freeRow()
	if err != nil {
		return err
	}
	a, err := h.place(d)
	if err != nil {
		return err
	}
	now, err := h.counters.at(int(row))
	if err != nil {
		return err
	}
	old := replaced{word: a.word, row: row}
	if a.word.Slot() != empty {
		before, err := h.counters.at(int(a.word.Row()))
		if err != nil {
			return err
		}
		old.rules, old.copied = sameRules(h.contents[a.word.Slot()], d.content), before.read()
	}
	now.write(old.carried())
	if err := h.point(a, endpoint.MakeWord(h.slotOf[d.content.Digest], row, h.numbers.Epoch)); err != nil {
		return err
	}
	a.keep(d)
	h.replace(old)
	return nil
}

// place is the endpoint's entry, with its interface as it is now. The entry is
// written before the interface is, so that the next agent finds both.
func (h *half) place(d desired) (*attached, error) {
	if err := h.makeRoom(d); err != nil {
		return nil, err
	}
	a := h.endpoints[d.UID]
	if a == nil {
		a = &attached{record: endpointRecord{Number: d.Number}}
	}
	if a.index() == d.HostInterface {
		return a, nil
	}
	if before := a.index(); before != 0 {
		if err := h.attachments.remove(before); err != nil {
			return nil, err
		}
	}
	a.record.Interface = uint32(d.HostInterface)
	if err := h.writeRecord(d.UID, a.record); err != nil {
		return nil, err
	}
	h.endpoints[d.UID] = a
	return a, nil
}

// makeRoom forgets an earlier endpoint that had the interface.
func (h *half) makeRoom(d desired) error {
	for uid, a := range h.endpoints {
		if uid != d.UID && a.index() == d.HostInterface {
			return h.forget(map[types.UID]*attached{uid: a})
		}
	}
	return nil
}

// point changes an endpoint's word.
func (h *half) point(a *attached, to word) error {
	err := h.attachments.put(Attachment{Interface: a.record.Interface, Endpoint: a.record.Number, Chain: uint64(to)})
	if err != nil {
		return err
	}
	a.word = to
	h.rows[to.Row()] = true
	return nil
}
