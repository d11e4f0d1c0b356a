// SPDX-License-Identifier: Apache-2.0

package crowd

import (
	"maps"
	"sync"
	"time"

	"braid.dev/braid/bpf/announcements"
)

// Rooms are those of a node's tenants. It is safe for concurrent use.
type Rooms struct {
	mu sync.Mutex
	of map[string]*Room
}

// Of is a tenant's room. A nil Rooms has nil ones, without a bound.
func (r *Rooms) Of(tenant string) *Room {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.of == nil {
		r.of = map[string]*Room{}
	}
	if r.of[tenant] == nil {
		r.of[tenant] = &Room{}
	}
	return r.of[tenant]
}

// keep forgets the tenants that are not here any more.
func (r *Rooms) keep(here map[string]bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.of, func(tenant string, _ *Room) bool { return !here[tenant] })
}

// bound are the tenants whose rooms have a bound.
func (r *Rooms) bound() (tenants []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for tenant, room := range r.of {
		if room.IsBound() {
			tenants = append(tenants, tenant)
		}
	}
	return tenants
}

// Room is for connections of a tenant that may get further subflows. A nil one, and one
// of which nothing was said, has no bound. It is safe for concurrent use.
type Room struct {
	mu      sync.Mutex
	isBound bool
	left    int
	until   time.Time
	// waiting are the connections that wait for a place, and rescued those that got a subflow without.
	waiting, rescued int
}

// rescuedOf is of how many connections that wait one may get a subflow without a place, and
// mostRescued how many may in all. Each fills the paths a little more for as long as it lives.
const rescuedOf, mostRescued = 8, 32

// Take takes the place of one connection, and is false where there is none. Where nobody
// has said for long how many there are, a place comes by and by: the paths may be full.
func (r *Room) Take() bool {
	if r == nil {
		return true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	switch {
	case !r.isBound:
	case r.left > 0:
		r.left--
	case now.Before(r.until):
		return false
	default:
		r.until = now.Add(announcements.PlaceEvery)
	}
	return true
}

// IsBound is true while not all connections may get further subflows.
func (r *Room) IsBound() bool {
	if r == nil {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.isBound
}

// Left is how many places are left.
func (r *Room) Left() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.left
}

// Set says how many may, and until when that is valid.
func (r *Room) Set(left int, until time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.isBound, r.left, r.until = true, left, until
}

// Free says that there is no bound.
func (r *Room) Free() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.isBound = false
}

// Wait notes that so many more connections wait for a place, or fewer.
func (r *Room) Wait(more int) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting += more
}

// Rescue lets a connection that stands still have a subflow without a place, until Rescued is
// told of its end; it is false where others have one, as many as may.
func (r *Room) Rescue() bool {
	if r == nil {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.mayRescue() {
		return false
	}
	r.rescued++
	return true
}

// MayRescue is true where Rescue would be.
func (r *Room) MayRescue() bool {
	if r == nil {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mayRescue()
}

func (r *Room) mayRescue() bool {
	return r.rescued < min(max(1, r.waiting/rescuedOf), mostRescued)
}

// Rescued notes that so many connections have ended that got a subflow without a place.
func (r *Room) Rescued(ended int) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rescued -= ended
}
