// SPDX-License-Identifier: Apache-2.0

package pathmanager

import "time"

// delayed is what a connection that waits for its further subflows has done.
type delayed struct {
	waits bool
	began time.Time
	// bytes that it had moved when it was looked at last, and when it last had more
	// than the time before.
	bytes         uint64
	looked, moved time.Time
}

const (
	// firstLook is how old a connection is when it is looked at.
	firstLook = 20 * time.Millisecond
	// shortestLook and longestLook are how soon a connection that waits is looked at
	// again while bytes move, and idleLook while none do.
	shortestLook = 10 * time.Millisecond
	longestLook  = time.Second
	idleLook     = 5 * time.Second
	// lookRate is how many connections of a pod are looked at in a second, at most;
	// with more of them each is looked at less often.
	lookRate = 1000
)

// delay lets a connection wait that was just found.
func (t *tracker) delay(c *connection, now time.Time) {
	if (t.settings.OpenAfter == OpenAfter{}) {
		return
	}
	c.delayed = delayed{waits: true, began: now, looked: now, moved: now}
	t.delaying++
	c.due = t.nextLook(c, now)
}

// release ends a connection's wait.
func (t *tracker) release(c *connection) {
	if c.delayed.waits {
		c.delayed.waits = false
		t.delaying--
	}
}

// looked takes note of the bytes that a waiting connection has moved, and ends its
// wait when they or its age suffice.
func (t *tracker) looked(c *connection, bytes uint64, now time.Time) {
	d, after := &c.delayed, t.settings.OpenAfter
	if after.Bytes > 0 && bytes >= after.Bytes || after.Time > 0 && now.Sub(d.began) >= after.Time {
		t.release(c)
		c.due = now
		if c.byKernel {
			t.leaveToKernel(c, now)
		}
	} else {
		rate := bytesIn(d, bytes, now)
		if rate > 0 {
			d.moved = now
		}
		d.bytes, d.looked = bytes, now
		c.due = t.nextLookAt(c, rate, now)
	}
	t.refresh(c)
}

// bytesIn is the rate in bytes a second since the last look.
func bytesIn(d *delayed, bytes uint64, now time.Time) float64 {
	passed := now.Sub(d.looked)
	if bytes <= d.bytes || passed <= 0 {
		return 0
	}
	return float64(bytes-d.bytes) / passed.Seconds()
}

func (t *tracker) nextLook(c *connection, now time.Time) time.Time { return t.nextLookAt(c, 0, now) }

// nextLookAt is when to look at a waiting connection again: when it will have
// moved enough at its present rate, less and less often while it is idle, and in
// any case when it is old enough.
func (t *tracker) nextLookAt(c *connection, rate float64, now time.Time) time.Time {
	d, after := &c.delayed, t.settings.OpenAfter
	ripe := d.began.Add(after.Time)
	if after.Bytes == 0 {
		return ripe
	}
	wait := min(now.Sub(d.moved)/4, idleLook)
	if rate > 0 {
		wait = time.Duration(min(float64(after.Bytes-d.bytes)/rate, longestLook.Seconds()) * float64(time.Second))
	}
	look := now.Add(max(wait, shortestLook, time.Duration(t.delaying)*time.Second/lookRate))
	if after.Time > 0 && ripe.Before(look) {
		return ripe
	}
	return look
}
