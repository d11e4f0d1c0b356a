// SPDX-License-Identifier: Apache-2.0

package packettest

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"
)

// Clear makes the maps of loaded programs, as bpf2go collects them, hold what new ones hold: to
// load the programs anew takes the verifier longer than most tests take.
func Clear(collections ...any) error {
	var failed error
	for _, collection := range collections {
		fields := reflect.ValueOf(collection).Elem()
		for i := range fields.NumField() {
			if m, is := fields.Field(i).Interface().(*ebpf.Map); is {
				if err := clearMap(m); err != nil {
					failed = errors.Join(failed, fmt.Errorf("clearing %s: %w", m, err))
				}
			}
		}
	}
	return failed
}

func clearMap(m *ebpf.Map) error {
	switch m.Type() {
	case ebpf.Array, ebpf.PerCPUArray:
		return clearArray(m)
	case ebpf.ArrayOfMaps, ebpf.ProgramArray:
		return clearReferences(m)
	case ebpf.RingBuf:
		return drain(m)
	case ebpf.SkStorage: // goes with the sockets
		return nil
	default:
		return clearHash(m)
	}
}

func clearReferences(m *ebpf.Map) error {
	for key := range m.MaxEntries() {
		if err := m.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return err
		}
	}
	return nil
}

// drain reads what is in a ring buffer, and forgets it.
func drain(m *ebpf.Map) error {
	reader, err := ringbuf.NewReader(m)
	if err != nil {
		return err
	}
	defer reader.Close()
	reader.SetDeadline(time.Now())
	for err == nil {
		_, err = reader.Read()
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	return err
}

func clearHash(m *ebpf.Map) error {
	for {
		key, err := m.NextKeyBytes(nil)
		if err != nil || key == nil {
			return err
		}
		if err := m.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return err
		}
	}
}

func clearArray(m *ebpf.Map) error {
	keys := make([]uint32, m.MaxEntries())
	for i := range keys {
		keys[i] = uint32(i)
	}
	value := reflect.SliceOf(reflect.ArrayOf(int(m.ValueSize()), reflect.TypeFor[byte]()))
	if m.Type() == ebpf.Array {
		_, err := m.BatchUpdate(keys, reflect.MakeSlice(value, len(keys), len(keys)).Interface(), nil)
		return err
	}
	processors, err := ebpf.PossibleCPU()
	if err != nil {
		return err
	}
	for _, key := range keys {
		if err := m.Put(key, reflect.MakeSlice(value, processors, processors).Interface()); err != nil {
			return err
		}
	}
	return nil
}
