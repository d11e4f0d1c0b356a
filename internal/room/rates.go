// SPDX-License-Identifier: Apache-2.0

package room

import (
	"sync"

	"golang.org/x/time/rate"
)

// Rates let each of many owners do something so often. It is safe for concurrent use.
type Rates[K comparable] struct {
	every rate.Limit
	burst int
	most  int

	mutex  sync.Mutex
	limits map[K]*rate.Limiter
}

// NewRates knows the rate of no more owners at a time than most.
func NewRates[K comparable](every rate.Limit, burst, most int) *Rates[K] {
	return &Rates[K]{every: every, burst: burst, most: most, limits: map[K]*rate.Limiter{}}
}

// Allow says whether the owner may do it once more now.
func (r *Rates[K]) Allow(owner K) bool {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	limit := r.limits[owner]
	if limit == nil {
		r.makeRoom()
		limit = rate.NewLimiter(r.every, r.burst)
		r.limits[owner] = limit
	}
	return limit.Allow()
}

// makeRoom forgets the owners that did nothing for a while, of whom nothing need be
// known, and where all do, any one.
func (r *Rates[K]) makeRoom() {
	if len(r.limits) < r.most {
		return
	}
	for owner, limit := range r.limits {
		if limit.Tokens() >= float64(r.burst) {
			delete(r.limits, owner)
		}
	}
	for owner := range r.limits {
		if len(r.limits) < r.most {
			return
		}
		delete(r.limits, owner)
	}
}
