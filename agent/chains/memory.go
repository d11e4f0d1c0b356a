// SPDX-License-Identifier: Apache-2.0

package chains

import (
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// RuleCounters are what one rule did.
type RuleCounters struct {
	Hits  uint64 // packets that the rule matched
	Bytes uint64 // their payload
	Acted uint64 // packets that its actions changed, dropped or answered
}

// row are the counters of one endpoint and chain.
type row [maxRules]RuleCounters

// mapMemory makes the values of an array visible here; programs and the agent see
// the same bytes.
func mapMemory[T any](m *ebpf.Map) ([]T, error) {
	size := int(m.MaxEntries()) * int(unsafe.Sizeof(*new(T)))
	memory, err := unix.Mmap(m.FD(), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("mapping %s: %w", m, err)
	}
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(memory))), m.MaxEntries()), nil
}

func unmapMemory[T any](values []T) error {
	memory := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(values))), len(values)*int(unsafe.Sizeof(*new(T))))
	if err := unix.MunmapPtr(unsafe.Pointer(unsafe.SliceData(memory)), uintptr(len(memory))); err != nil {
		return fmt.Errorf("unmapping a map: %w", err)
	}
	return nil
}

// counterRows are the counters of all endpoints.
type counterRows struct{ rows []row }

func mapCounters(m *ebpf.Map) (*counterRows, error) {
	if m.ValueSize() != uint32(unsafe.Sizeof(row{})) {
		return nil, fmt.Errorf("a row of counters has %d bytes instead of %d", m.ValueSize(), unsafe.Sizeof(row{}))
	}
	rows, err := mapMemory[row](m)
	return &counterRows{rows}, err
}

func (c *counterRows) unmap() error { return unmapMemory(c.rows) }

// read returns the counters of a row, each one whole.
func (c *counterRows) read(number uint16) (r row) {
	from := &c.rows[number]
	for i := range r {
		r[i] = RuleCounters{
			Hits:  atomic.LoadUint64(&from[i].Hits),
			Bytes: atomic.LoadUint64(&from[i].Bytes),
			Acted: atomic.LoadUint64(&from[i].Acted),
		}
	}
	return r
}

// write fills a row that no program uses.
func (c *counterRows) write(number uint16, r row) {
	to := &c.rows[number]
	for i := range r {
		atomic.StoreUint64(&to[i].Hits, r[i].Hits)
		atomic.StoreUint64(&to[i].Bytes, r[i].Bytes)
		atomic.StoreUint64(&to[i].Acted, r[i].Acted)
	}
}

// add adds to a row that programs count in meanwhile.
func (c *counterRows) add(number uint16, rule int, more RuleCounters) {
	to := &c.rows[number][rule]
	atomic.AddUint64(&to.Hits, more.Hits)
	atomic.AddUint64(&to.Bytes, more.Bytes)
	atomic.AddUint64(&to.Acted, more.Acted)
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
	slots    []Attachment
	overflow *ebpf.Map
}

func mapAttachments(array, overflow *ebpf.Map) (*attachments, error) {
	slots, err := mapMemory[Attachment](array)
	return &attachments{slots, overflow}, err
}

func (a *attachments) unmap() error { return unmapMemory(a.slots) }

func (a *attachments) slot(index int) *Attachment { return &a.slots[index%len(a.slots)] }

// get returns what an interface has; nothing has the interface 0.
func (a *attachments) get(index int) (Attachment, error) {
	slot := a.slot(index)
	if atomic.LoadUint32(&slot.Interface) == uint32(index) {
		return *slot, nil
	}
	var value Attachment
	err := a.overflow.Lookup(uint32(index), &value)
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
	slot := a.slot(int(value.Interface))
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
	slot := a.slot(index)
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
