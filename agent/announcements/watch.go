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
	told  map[watched]chan<- uint32
}

// watched is one thing that is to be told of an interface.
type watched struct{ index, what uint32 }

func (w *watchers) set(index, what uint32, channel chan<- uint32) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if w.told == nil {
		w.told = map[watched]chan<- uint32{}
	}
	for _, one := range each(what) {
		w.told[watched{index, one}] = channel
	}
}

func (w *watchers) forget(index, what uint32) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	for _, one := range each(what) {
		delete(w.told, watched{index, one})
	}
}

// receive hands on what the program tells, until the reader is closed.
func (w *watchers) receive(reader *ringbuf.Reader) {
	var record ringbuf.Record
	for reader.ReadInto(&record) == nil {
		var told announcements.HoldTold
		if _, err := binary.Decode(record.RawSample, binary.NativeEndian, &told); err == nil {
			w.tell(told)
		}
	}
}

func (w *watchers) tell(told announcements.HoldTold) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	for _, one := range each(told.What) {
		select {
		case w.told[watched{told.Index, one}] <- told.Token:
		default: // nobody waits, or it is told already
		}
	}
}

// each is every bit that is set.
func each(what uint32) (all []uint32) {
	for ; what != 0; what &= what - 1 {
		all = append(all, what&-what)
	}
	return all
}

// Watch has the channel get something, once for each of what is to be told of the pod behind these
// interfaces: bits of the program's enum tells. That is the token of the connection, where it is
// known, and else 0. It returns false where that cannot be told, because no connection waits there.
func (h *Holder) Watch(interfaces []int, what uint32, channel chan<- uint32) bool {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	if !h.canTell(interfaces) {
		return false
	}
	for _, index := range interfaces {
		h.watchers.set(uint32(index), what, channel)
		if err := h.setTells(uint32(index), what, what); err != nil {
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

// Unwatch has these things not be told of the interfaces any more.
func (h *Holder) Unwatch(interfaces []int, what uint32) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	for _, index := range interfaces {
		h.watchers.forget(uint32(index), what)
		if !h.loaded.Is() {
			continue
		}
		if err := h.setTells(uint32(index), what, 0); err != nil {
			h.log.Error(err, "failed to stop watching a pod for connections that last", "interface", index)
		}
	}
}

// setTells sets some of the bits.
func (h *Holder) setTells(index, which, to uint32) error {
	var wait announcements.HoldWait
	err := h.loaded.Value.Waits.Lookup(index, &wait)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil
	}
	if err == nil {
		wait.Tells = wait.Tells&^which | to
		err = h.loaded.Value.Waits.Put(index, &wait)
	}
	if err != nil {
		return fmt.Errorf("writing what is told of interface %d: %w", index, err)
	}
	return nil
}

// keepTells has what is asked for stay, as what connections wait for is written anew. Where another one
// opens the subflows now, something else is asked for.
func (h *Holder) keepTells(index uint32, wait *announcements.HoldWait) {
	var before announcements.HoldWait
	if h.loaded.Value.Waits.Lookup(index, &before) == nil && (before.Tells^wait.Tells)&announcements.AgentOpens == 0 {
		wait.Tells |= before.Tells &^ announcements.MayBeJoined
	}
}
