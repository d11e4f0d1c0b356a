// SPDX-License-Identifier: Apache-2.0

package chains

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/cilium/ebpf"

	"braid.dev/braid/bpf/endpoint"
)

// RuleCounters are what one rule did.
type RuleCounters struct {
	Hits  uint64 // packets that the rule endpoint.Matched
	Bytes uint64 // their payload
	Acted uint64 // packets that its actions changed, dropped or answered
}

// row are the counters of one endpoint and chain.
type row [endpoint.MaxRules]RuleCounters

// read returns the counters, each one whole.
func (r *row) read() (read row) {
	for i := range r {
		read[i] = RuleCounters{
			Hits:  atomic.LoadUint64(&r[i].Hits),
			Bytes: atomic.LoadUint64(&r[i].Bytes),
			Acted: atomic.LoadUint64(&r[i].Acted),
		}
	}
	return read
}

// write fills a row that no program uses.
func (r *row) write(counters row) {
	for i := range r {
		atomic.StoreUint64(&r[i].Hits, counters[i].Hits)
		atomic.StoreUint64(&r[i].Bytes, counters[i].Bytes)
		atomic.StoreUint64(&r[i].Acted, counters[i].Acted)
	}
}

// add adds to a row that programs count in meanwhile.
func (r *row) add(rule int, more RuleCounters) {
	atomic.AddUint64(&r[rule].Hits, more.Hits)
	atomic.AddUint64(&r[rule].Bytes, more.Bytes)
	atomic.AddUint64(&r[rule].Acted, more.Acted)
}

// minus is what was counted since before.
func (c RuleCounters) minus(before RuleCounters) RuleCounters {
	return RuleCounters{c.Hits - before.Hits, c.Bytes - before.Bytes, c.Acted - before.Acted}
}

// Attachment is an interface and its chain, as the programs read it.
type Attachment struct {
	Interface uint32
	Endpoint  uint32
	Chain     uint64 // a word
	// Generation is the programs' own: it voids what they remember apart from records.
	Generation uint32
	Pad        uint32
}

// attachments are written in the map's own memory: the kernel copies a value
// without a promise about its words, while this is one store, so that a packet
// sees either the old chain with its counters or the new one with its own. In the
// overflow a value is replaced whole.
type attachments struct {
	slots    *mappedArray[Attachment]
	overflow *ebpf.Map
}

func mapAttachments(array, overflow *ebpf.Map) (*attachments, error) {
	slots, err := mapArray[Attachment](array)
	return &attachments{slots, overflow}, err
}

func (a *attachments) unmap() error { return a.slots.unmap() }

func (a *attachments) slot(index int) (*Attachment, error) {
	return a.slots.at(index % a.slots.length())
}

// get returns what an interface has; nothing has the interface 0.
func (a *attachments) get(index int) (Attachment, error) {
	slot, err := a.slot(index)
	if err != nil {
		return Attachment{}, err
	}
	if atomic.LoadUint32(&slot.Interface) == uint32(index) {
		return *slot, nil
	}
	var value Attachment
	err = a.overflow.Lookup(uint32(index), &value)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return Attachment{}, nil
	}
	if err != nil {
		return Attachment{}, fmt.Errorf("reading the attachment of interface %d: %w", index, err)
	}
	return value, nil
}

// put gives an interface its chain, in one step.
func (a *attachments) put(value Attachment) error {
	slot, err := a.slot(int(value.Interface))
	if err != nil {
		return err
	}
	switch atomic.LoadUint32(&slot.Interface) {
	case value.Interface:
		atomic.StoreUint32(&slot.Endpoint, value.Endpoint)
		atomic.StoreUint64(&slot.Chain, value.Chain)
		return nil
	case 0:
		atomic.StoreUint32(&slot.Endpoint, value.Endpoint)
		atomic.StoreUint64(&slot.Chain, value.Chain)
		atomic.StoreUint32(&slot.Interface, value.Interface) // from here on it counts
		return a.removeOverflow(int(value.Interface))
	}
	before, err := a.get(int(value.Interface))
	if err != nil {
		return err
	}
	value.Generation = before.Generation + 1
	if err := a.overflow.Put(value.Interface, value); err != nil {
		return fmt.Errorf("writing the attachment of interface %d: %w", value.Interface, err)
	}
	return nil
}

// remove lets an interface have no chain.
func (a *attachments) remove(index int) error {
	slot, err := a.slot(index)
	if err != nil {
		return err
	}
	if atomic.LoadUint32(&slot.Interface) == uint32(index) {
		atomic.StoreUint64(&slot.Chain, 0)
		atomic.StoreUint32(&slot.Interface, 0)
	}
	return a.removeOverflow(index)
}

func (a *attachments) removeOverflow(index int) error {
	if err := a.overflow.Delete(uint32(index)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("removing the attachment of interface %d: %w", index, err)
	}
	return nil
}
