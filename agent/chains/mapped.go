// SPDX-License-Identifier: Apache-2.0

package chains

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// mappedArray is the memory of an array of the kernel's: programs and the agent see
// the same bytes. Of it those parts alone are mapped that were asked for. The kernel
// gives a mapping all of its pages at once, and they count as the agent's memory.
// It is safe for concurrent use.
type mappedArray[T any] struct {
	array *ebpf.Map
	each  int // values of a part, which fill whole pages

	mutex sync.Mutex
	parts map[int][]T // by number
}

func mapArray[T any](array *ebpf.Map) (*mappedArray[T], error) {
	size := int(unsafe.Sizeof(*new(T)))
	if int(array.ValueSize()) != size || size%8 != 0 { // the kernel pads to that
		return nil, fmt.Errorf("a value of %s has %d bytes instead of %d", array, array.ValueSize(), size)
	}
	page := os.Getpagesize()
	return &mappedArray[T]{array: array, each: page / commonDivisor(size, page), parts: map[int][]T{}}, nil
}

func commonDivisor(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

func (m *mappedArray[T]) length() int { return int(m.array.MaxEntries()) }

// at is a value, until all are unmapped.
func (m *mappedArray[T]) at(index int) (*T, error) {
	if index < 0 || index >= m.length() {
		return nil, fmt.Errorf("%s has no value %d", m.array, index)
	}
	m.mutex.Lock()
	defer m.mutex.Unlock()
	number := index / m.each
	if m.parts[number] == nil {
		part, err := m.mapPart(number)
		if err != nil {
			return nil, fmt.Errorf("mapping a part of %s: %w", m.array, err)
		}
		m.parts[number] = part
	}
	return &m.parts[number][index%m.each], nil
}

func (m *mappedArray[T]) mapPart(number int) ([]T, error) {
	size := int(unsafe.Sizeof(*new(T)))
	first := number * m.each
	count := min(m.each, m.length()-first)
	memory, err := unix.Mmap(m.array.FD(), int64(first*size), count*size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(memory))), count), nil
}

func (m *mappedArray[T]) unmap() (failed error) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	for number, part := range m.parts {
		size := uintptr(len(part)) * unsafe.Sizeof(*new(T))
		if err := unix.MunmapPtr(unsafe.Pointer(unsafe.SliceData(part)), size); err != nil {
			failed = errors.Join(failed, fmt.Errorf("unmapping a part of %s: %w", m.array, err))
		}
		delete(m.parts, number)
	}
	return failed
}
