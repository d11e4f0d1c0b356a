// SPDX-License-Identifier: Apache-2.0

package announcements

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cilium/ebpf"

	"braid.dev/braid/agent/entries"
	"braid.dev/braid/bpf"
	"braid.dev/braid/bpf/announcements"
)

// assignRooms gives each tenant the room of its first interface: no other tenant has that
// one, and it is the same after the agent's restart. What was said of a room whose
// interface is gone goes on for the tenant's next one.
func (h *Holder) assignRooms(wanted map[uint32]wait) (failed error) {
	before := h.rooms
	h.rooms = map[string]uint32{}
	for _, index := range slices.Sorted(maps.Keys(wanted)) {
		one := wanted[index]
		if _, has := h.rooms[one.tenant]; !has {
			h.rooms[one.tenant] = index
		}
		one.Room = h.rooms[one.tenant]
		wanted[index] = one
	}
	rooms := h.loaded.Value.Rooms
	for tenant, key := range h.rooms {
		var room announcements.HoldRoom
		if old, had := before[tenant]; had && old != key && rooms.Lookup(old, &room) == nil {
			failed = errors.Join(failed, rooms.Put(key, &room))
		}
	}
	return errors.Join(failed, h.forgetRooms())
}

// forgetRooms forgets those that belong to no tenant any more.
func (h *Holder) forgetRooms() error {
	kept := map[uint32]bool{}
	for _, key := range h.rooms {
		kept[key] = true
	}
	left := func(key uint32) bool { return !kept[key] }
	return errors.Join(entries.Forget(h.loaded.Value.Rooms, left), entries.Forget(h.loaded.Value.Turns, left))
}

// SetRoom says how many more connections of a tenant may be announced what they wait for,
// of those that have moved enough or are old enough, and for how long that is valid: from
// then on one may after the other. It may be called at any time.
func (h *Holder) SetRoom(tenant string, left int, validity time.Duration) error {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	key, known := h.room(tenant)
	if !known {
		return nil
	}
	room := announcements.HoldRoom{Left: int32(left), Until: uint64(bpf.Now() + validity)}
	if err := h.loaded.Value.Rooms.Put(key, &room); err != nil {
		return fmt.Errorf("writing the room for connections of namespace %s: %w", tenant, err)
	}
	return nil
}

// RoomLeft is how many connections may still be announced what they wait for, and false
// where there is no bound.
func (h *Holder) RoomLeft(tenant string) (left int, bound bool, err error) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	key, known := h.room(tenant)
	if !known {
		return 0, false, nil
	}
	var room announcements.HoldRoom
	switch err := h.loaded.Value.Rooms.Lookup(key, &room); {
	case errors.Is(err, ebpf.ErrKeyNotExist):
		return 0, false, nil
	case err != nil:
		return 0, false, fmt.Errorf("reading the room for connections of namespace %s: %w", tenant, err)
	}
	return int(room.Left), true, nil
}

// FreeRoom says that there is no bound for a tenant.
func (h *Holder) FreeRoom(tenant string) error {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	key, known := h.room(tenant)
	if !known {
		return nil
	}
	if err := h.loaded.Value.Rooms.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("deleting the room for connections of namespace %s: %w", tenant, err)
	}
	return nil
}

// room is the key of a tenant's room, and false where nothing is loaded or it has no pod.
func (h *Holder) room(tenant string) (key uint32, known bool) {
	if !h.loaded.Is() {
		return 0, false
	}
	key, known = h.rooms[tenant]
	return key, known
}
