// SPDX-License-Identifier: Apache-2.0

package testutil

import (
	"runtime"
	"time"

	"braid.dev/braid/internal/pressure"
)

// Slowdown is how much longer something may take while programs wait for a processor.
const Slowdown = 4

// Patience tells how long a test has waited, as a machine counts whose processors are free: time
// in which a program waited for one counts a quarter.
type Patience struct {
	began   time.Time
	waited  time.Duration // of the whole machine, when it began
	counted func() time.Duration
}

// NewPatience begins to wait.
func NewPatience() Patience { return newPatience(waitedForProcessors) }

func newPatience(counted func() time.Duration) Patience {
	return Patience{time.Now(), counted(), counted}
}

// Spent is how much of its time is over.
func (p Patience) Spent() time.Duration {
	passed := time.Since(p.began)
	waited := min(max(p.counted()-p.waited, 0), passed)
	return passed - waited + waited/Slowdown
}

// Stretch is what a bound on a machine with free processors became meanwhile on this one.
func (p Patience) Stretch(bound time.Duration) time.Duration {
	passed, spent := time.Since(p.began), p.Spent()
	if spent <= 0 {
		return bound
	}
	return time.Duration(float64(bound) * passed.Seconds() / spent.Seconds())
}

// waitedForProcessors is how long something has waited for a processor since the kernel's start,
// or the machine for its host; 0 where the kernel does not tell, so that all time counts.
func waitedForProcessors() time.Duration {
	is, err := pressure.Now()
	if err != nil {
		return 0
	}
	return is.Waited + is.Stolen/time.Duration(runtime.NumCPU())
}
