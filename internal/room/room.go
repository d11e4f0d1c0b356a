// SPDX-License-Identifier: Apache-2.0

// Package room shares a bounded number of places among owners none of whom can take
// them all.
package room

import "sync"

// Room has a number of places. It is safe for concurrent use.
type Room struct {
	mutex sync.Mutex
	size  int
	taken int
	held  map[string]int
}

// New makes a room of so many places.
func New(size int) *Room { return &Room{size: size, held: map[string]int{}} }

// Take takes a place for an owner and all who own it, and is false where they have
// their share. Nobody may hold more than is free, and an owner within another no more
// than that one has left of it: one alone gets half of the room, one within another a
// third, and whoever comes finds some free.
func (r *Room) Take(owners ...string) bool {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if r.margin(owners) <= 0 {
		return false
	}
	r.taken++
	for _, owner := range owners {
		r.held[owner]++
	}
	return true
}

// margin is how far the owners are below what they may hold.
func (r *Room) margin(owners []string) int {
	margin := r.size - r.taken
	for _, owner := range owners {
		margin -= r.held[owner]
	}
	return margin
}

// Give gives places back that were taken for the same owners.
func (r *Room) Give(places int, owners ...string) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.taken -= places
	for _, owner := range owners {
		if r.held[owner] -= places; r.held[owner] <= 0 {
			delete(r.held, owner)
		}
	}
}

// Left is how many places the owners could take now, one after the other.
func (r *Room) Left(owners ...string) int {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	each := 1 + len(owners) // each place lowers the margin by so much
	return max(0, (r.margin(owners)+each-1)/each)
}

// Held is how many places an owner has.
func (r *Room) Held(owner string) int {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	return r.held[owner]
}
