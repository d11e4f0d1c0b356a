// SPDX-License-Identifier: Apache-2.0

// Package throttle spaces out the work that changes of one object cause, so that whoever
// changes it all the time keeps nobody else waiting.
package throttle

import (
	"maps"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Throttle lets each key have a few changes at once, and then one each interval.
type Throttle[K comparable] struct {
	atOnce   int
	interval time.Duration

	mu       sync.Mutex
	limiters map[K]*rate.Limiter
	turns    map[K]time.Time // that Delay gave and that have yet to come
	pruneAt  int             // so many keys
}

// leastPruned is how many keys are kept without a look at what they are worth.
const leastPruned = 1024

// New returns a throttle.
func New[K comparable](atOnce int, interval time.Duration) *Throttle[K] {
	return &Throttle[K]{atOnce: atOnce, interval: interval, limiters: map[K]*rate.Limiter{}, turns: map[K]time.Time{}, pruneAt: leastPruned}
}

// Take says how long a change has to wait; 0 where it may be worked on now, and counts then.
func (t *Throttle[K]) Take(key K, now time.Time) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	turn := t.limiter(key, now).ReserveN(now, 1)
	wait := turn.DelayFrom(now)
	if wait > 0 {
		turn.CancelAt(now)
	}
	return wait
}

// Delay is for changes that are worked on after it without another question: what it
// returns counts. Changes that wait together have one turn.
func (t *Throttle[K]) Delay(key K, now time.Time) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if wait := t.turns[key].Sub(now); wait > 0 {
		return wait
	}
	delete(t.turns, key)
	wait := t.limiter(key, now).ReserveN(now, 1).DelayFrom(now)
	if wait > 0 {
		t.turns[key] = now.Add(wait)
	}
	return wait
}

func (t *Throttle[K]) limiter(key K, now time.Time) *rate.Limiter {
	limiter := t.limiters[key]
	if limiter == nil {
		t.prune(now)
		limiter = rate.NewLimiter(rate.Every(t.interval), t.atOnce)
		t.limiters[key] = limiter
	}
	return limiter
}

// Forget drops what it knows of a key, and is false where that would let the key have more
// than it may.
func (t *Throttle[K]) Forget(key K, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if limiter := t.limiters[key]; limiter != nil && !t.isIdle(limiter, now) {
		return false
	}
	delete(t.limiters, key)
	delete(t.turns, key)
	return true
}

// prune drops all keys that gain nothing by it, whenever there are twice as many as the
// last time left.
func (t *Throttle[K]) prune(now time.Time) {
	if len(t.limiters) < t.pruneAt {
		return
	}
	maps.DeleteFunc(t.limiters, func(_ K, limiter *rate.Limiter) bool { return t.isIdle(limiter, now) })
	maps.DeleteFunc(t.turns, func(_ K, turn time.Time) bool { return !turn.After(now) })
	t.pruneAt = max(leastPruned, 2*len(t.limiters))
}

func (t *Throttle[K]) isIdle(limiter *rate.Limiter, now time.Time) bool {
	return limiter.TokensAt(now) >= float64(t.atOnce)
}
