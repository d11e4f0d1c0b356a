// SPDX-License-Identifier: Apache-2.0

package socketimport

import (
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// judgeAgain makes the programs look at subflows again that no rule concerned
// before they were completed: it moves the attachment's generation on. Nothing
// else of the attachment is written, because the agent replaces its chain
// meanwhile.
func (m *Maps) judgeAgain(index int) error {
	slot := uint32(index) % m.attachments.MaxEntries()
	var found attachment
	if err := m.attachments.Lookup(slot, &found); err != nil {
		return fmt.Errorf("finding the attachment of interface %d: %w", index, err)
	}
	if found.Interface == uint32(index) {
		return m.addGeneration(slot)
	}
	err := m.overflow.Lookup(uint32(index), &found)
	if err == nil {
		found.Generation++
		err = m.overflow.Update(uint32(index), found, ebpf.UpdateExist)
	}
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) { // it has no chain
		return fmt.Errorf("changing the attachment of interface %d: %w", index, err)
	}
	return nil
}

// addGeneration changes the word in the map's own memory, in one step.
func (m *Maps) addGeneration(slot uint32) error {
	const size = int(unsafe.Sizeof(attachment{}))
	memory, err := unix.Mmap(m.attachments.FD(), 0, int(m.attachments.MaxEntries())*size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("mapping the attachments: %w", err)
	}
	entry := (*attachment)(unsafe.Pointer(&memory[int(slot)*size]))
	atomic.AddUint32(&entry.Generation, 1)
	if err := unix.Munmap(memory); err != nil {
		return fmt.Errorf("unmapping the attachments: %w", err)
	}
	return nil
}
