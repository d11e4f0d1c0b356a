// SPDX-License-Identifier: Apache-2.0

package pathmanager

import (
	"container/list"
	"time"
)

// delayed is what a connection that waits for its further subflows has done.
type delayed struct {
	waits bool
	// held: it has moved enough or is old enough, and waits for room on the paths alone;
	// its place among those, or nil.
	held *list.Element
	// rescued: it stood still, and got another subflow though there was no room.
	rescued bool
	began   time.Time
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
	// heldLook is how often it is looked whether full paths have room again, and
	// mostLetGo how many connections get their subflows then, at most.
	heldLook  = 250 * time.Millisecond
	mostLetGo = 256
	// lookRate is how many connections of a tenant are looked at in a second, about and
	// at most; with more of them each is looked at less often.
	lookRate = 1000
)

// delay lets a connection wait that was just found.
func (t *tracker) delay(c *connection, now time.Time) {
	if (t.settings.OpenAfter == OpenAfter{}) {
		return
	}
	c.delayed = delayed{waits: true, began: now, looked: now, moved: now}
	t.count(1)
	c.due = t.nextLook(c, now)
}

// count counts the connections that are looked at.
func (t *tracker) count(more int) {
	t.delaying += more
	t.share.counts.waiting.Add(int64(more))
}

// release ends a connection's wait.
func (t *tracker) release(c *connection) {
	switch d := &c.delayed; {
	case d.held != nil:
		t.leaveHeld(d.held)
		d.held, d.waits = nil, false
	case d.waits:
		d.waits = false
		t.count(-1)
	}
}

// isOldEnough: what it has moved does not matter any more.
func (t *tracker) isOldEnough(c *connection, now time.Time) bool {
	after := t.settings.OpenAfter.Time
	return after > 0 && now.Sub(c.delayed.began) >= after
}

// looked takes note of the bytes that a waiting connection has moved, and ends its
// wait when they or its age suffice, and there is room on the paths.
func (t *tracker) looked(c *connection, bytes uint64, now time.Time) {
	d, after := &c.delayed, t.settings.OpenAfter
	if after.Bytes > 0 && bytes >= after.Bytes || t.isOldEnough(c, now) {
		if t.share.crowd.Take() {
			t.letGo(c, now)
		} else {
			t.hold(c, now)
		}
		return
	}
	rate := bytesIn(d, bytes, now)
	if rate > 0 {
		d.moved = now
	}
	d.bytes, d.looked = bytes, now
	c.due = t.nextLookAt(c, rate, now)
	t.refresh(c)
}

func (t *tracker) letGo(c *connection, now time.Time) {
	t.release(c)
	c.due = now
	if c.byKernel {
		t.leaveToKernel(c, now)
	}
	t.refresh(c)
}

// hold has a connection wait for room on the paths. That costs nothing, however many do.
func (t *tracker) hold(c *connection, now time.Time) {
	if t.held.Len() == 0 {
		t.heldUntil = now.Add(heldLook)
	}
	c.delayed.held = t.held.PushBack(c)
	t.share.crowd.Wait(1)
	t.count(-1)
	t.refresh(c)
}

// letGoHeld ends the wait of as many connections as there is room for, those first that
// wait longest. It is false while it is not time to look for room.
func (t *tracker) letGoHeld(now time.Time) bool {
	if t.held.Len() == 0 || now.Before(t.heldUntil) {
		return false
	}
	t.heldUntil = now.Add(heldLook)
	for range min(mostLetGo, t.held.Len()) {
		if !t.share.crowd.Take() {
			break
		}
		t.letGo(t.held.Front().Value.(*connection), now)
	}
	return true
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
	look := now.Add(max(wait, shortestLook, time.Duration(t.share.counts.waiting.Load())*time.Second/lookRate))
	if after.Time > 0 && ripe.Before(look) {
		return ripe
	}
	return look
}
