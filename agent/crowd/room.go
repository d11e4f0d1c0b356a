// SPDX-License-Identifier: Apache-2.0

package crowd

import (
	"maps"
	"sync"
	"time"
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

// Room is for connections of a tenant that may get further subflows. A nil one, and one
// of which nothing was said of late, has no bound. It is safe for concurrent use.
type Room struct {
	mu    sync.Mutex
	left  int
	until time.Time
}

// Take takes the place of one connection, and is false where there is none.
func (r *Room) Take() bool {
	if r == nil {
		return true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.isBound() {
		return true
	}
	if r.left <= 0 {
		return false
	}
	r.left--
	return true
}

// IsBound is true while not all connections may get further subflows.
func (r *Room) IsBound() bool {
	if r == nil {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.isBound()
}

func (r *Room) isBound() bool { return time.Now().Before(r.until) }

// Set says how many may until then; afterwards there is no bound.
func (r *Room) Set(left int, until time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.left, r.until = left, until
}
