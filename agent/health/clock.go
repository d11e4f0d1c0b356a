// SPDX-License-Identifier: Apache-2.0

package health

import "time"

// stall is by how much the agent may be late without being held up.
const stall = 10 * time.Millisecond

// clock is the time that a goroutine was attending: when it comes late to what it had
// planned, as on a machine with too much to do, the time in between does not count.
// Answers may have been on their way then, and nobody there to take them.
type clock struct {
	missed time.Duration
	last   time.Duration
}

// resume is called after waiting until planned, a time of this clock.
func (c *clock) resume(planned time.Duration) time.Duration {
	now := monotonic() - c.missed
	if late := now - max(planned, c.last); late > stall {
		c.missed += late
		now -= late
	}
	c.last = now
	return now
}

func (c *clock) now() time.Duration {
	c.last = monotonic() - c.missed
	return c.last
}

// started is what monotonic counts from; times of trackers are never 0.
var started = time.Now().Add(-time.Hour)

func monotonic() time.Duration { return time.Since(started) }

// wallClock is the clock of the kernel's timestamps.
func wallClock() time.Duration { return time.Duration(time.Now().UnixNano()) }
