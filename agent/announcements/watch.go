// SPDX-License-Identifier: Apache-2.0

package announcements

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"

	"braid.dev/braid/bpf/announcements"
)

// watchers hear of pods to whose events nobody listens. It is safe for concurrent use.
type watchers struct {
	mutex sync.Mutex
	told  map[uint32]chan<- struct{} // by the pods' interfaces
}

func (w *watchers) set(index uint32, told chan<- struct{}) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if w.told == nil {
		w.told = map[uint32]chan<- struct{}{}
	}
	w.told[index] = told
}

func (w *watchers) forget(index uint32) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	delete(w.told, index)
}

// receive hands on what the program tells, until the reader is closed.
func (w *watchers) receive(reader *ringbuf.Reader) {
	var record ringbuf.Record
	for reader.ReadInto(&record) == nil {
		if len(record.RawSample) >= 4 {
			w.tell(binary.NativeEndian.Uint32(record.RawSample))
		}
	}
}

func (w *watchers) tell(index uint32) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	select {
	case w.told[index] <- struct{}{}:
	default: // nobody waits, or it is told already
	}
}

// Watch has told get something, once, when a connection that the pod behind these
// interfaces began has lasted for as long as its announcements are held, and goes on; with
// answers also when an MPTCP socket of it takes a connection. It returns false where that
// cannot be told, because nothing is held there.
func (h *Holder) Watch(interfaces []int, answers bool, told chan<- struct{}) bool {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	tells := announcements.TellsLasting
	if answers {
		tells |= announcements.TellsAnswer
	}
	if !h.canTell(interfaces) {
		return false
	}
	for _, index := range interfaces {
		h.watchers.set(uint32(index), told)
		if err := h.setTells(uint32(index), uint32(tells)); err != nil {
			h.log.Error(err, "failed to watch a pod for connections that last; all its events are listened to", "interface", index)
			return false
		}
	}
	return true
}

func (h *Holder) canTell(interfaces []int) bool {
	for _, index := range interfaces {
		if !h.telling[uint32(index)] {
			return false
		}
	}
	return h.loaded.Is() && len(interfaces) > 0
}

// Unwatch has nothing more told of the interfaces.
func (h *Holder) Unwatch(interfaces []int) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	for _, index := range interfaces {
		h.watchers.forget(uint32(index))
		if !h.loaded.Is() {
			continue
		}
		if err := h.setTells(uint32(index), 0); err != nil {
			h.log.Error(err, "failed to stop watching a pod for connections that last", "interface", index)
		}
	}
}

func (h *Holder) setTells(index, tells uint32) error {
	var wait announcements.HoldWait
	err := h.loaded.Value.Waits.Lookup(index, &wait)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil
	}
	if err == nil {
		wait.Tells = tells
		err = h.loaded.Value.Waits.Put(index, &wait)
	}
	if err != nil {
		return fmt.Errorf("writing what is told of interface %d: %w", index, err)
	}
	return nil
}

// keepTells has what is asked for stay, as what connections wait for is written anew.
func (h *Holder) keepTells(index uint32, wait *announcements.HoldWait) {
	var before announcements.HoldWait
	if h.loaded.Value.Waits.Lookup(index, &before) == nil {
		wait.Tells = before.Tells
	}
}
