// SPDX-License-Identifier: Apache-2.0

package health

import "time"

const (
	// A path is distant from a peer where the shortest wait there of late is so many times as long as those of the best path
	// usually are by now, and longer by so much, for so long.
	distantTimes = 2
	distantBy    = 300 * time.Microsecond
	distantAfter = time.Second
	// It no longer is where its usual wait is less than so many times as long, or longer by less than half of that.
	nearTimes = 1.5
	// Where its queue goes as soon as connections rest elsewhere it was theirs: in the first ownQueue one short wait is enough,
	// and the path is left alone after that for nearFor, for twice as long each time, and longestNear at most.
	ownQueue    = 5 * time.Second
	nearFor     = 5 * time.Second
	longestNear = 5 * time.Minute
	// The shortest wait is that of so many windows, the last of which is not over: a queue that is empty now and then
	// makes no path distant.
	window  = 10 * time.Second
	windows = 2
	// fewestWaits tell how long a path is.
	fewestWaits = 4
)

// shortest remembers the shortest of the last waits.
type shortest struct {
	of    [windows]time.Duration // the last window first; 0 where none was measured
	began time.Duration
	count int
}

func (s *shortest) add(now, wait time.Duration) {
	if passed := int((now - s.began) / window); passed > 0 || s.count == 0 {
		s.forget(passed)
		s.began = now
	}
	s.count++
	if s.of[0] == 0 || wait < s.of[0] {
		s.of[0] = wait
	}
}

// forget begins a window after so many have passed.
func (s *shortest) forget(passed int) {
	passed = min(passed, windows)
	copy(s.of[passed:], s.of[:windows-passed])
	clear(s.of[:passed])
}

// wait is 0 where few were measured.
func (s *shortest) wait() (wait time.Duration) {
	if s.count < fewestWaits {
		return 0
	}
	for _, of := range s.of {
		if of > 0 && (wait == 0 || of < wait) {
			wait = of
		}
	}
	return wait
}

// distance is whether a path is distant. A wait is what a small packet and its answer take there and back, in the queues of
// both ends' NICs too: those are no part of Sample.RTT, and what a connection that moves little waits for all the same.
type distance struct {
	shortest shortest
	last     time.Duration // wait
	usual    time.Duration // smoothed
	distant  bool
	known    bool          // whether it is, so far
	seemed   time.Duration // since when it seems to be, while it is not; 0 while it does not
	since    time.Duration // when it became distant last
	near     time.Duration // when it no longer was; 0 before
	pause    time.Duration // before it may be again
}

// measure takes in a wait.
func (d *distance) measure(now, wait time.Duration) {
	d.shortest.add(now, wait)
	d.last = wait
	if d.usual == 0 {
		d.usual = wait
	}
	d.usual += (wait - d.usual) / 4
}

// compareDistances finds which paths to the peer are distant.
func (p *peer) compareDistances(now time.Duration) {
	var best time.Duration
	for _, target := range p.targets {
		if usual := target.distance.usual; target.state == Alive && usual > 0 && (best == 0 || usual < best) {
			best = usual
		}
	}
	for _, target := range p.targets {
		if target.state == Alive {
			target.distance.compare(now, best)
		} else {
			target.distance = distance{}
		}
	}
}

// compare takes in how long the best path to the same peer usually has one wait.
func (d *distance) compare(now, best time.Duration) {
	if d.distant {
		own := d.usual
		if now-d.since < ownQueue {
			own = min(own, d.last)
		}
		if own < time.Duration(float64(best)*nearTimes) || own-best < distantBy/2 {
			d.end(now)
		}
		return
	}
	own := d.shortest.wait()
	if own < distantTimes*best || own-best < distantBy {
		d.seemed, d.known = 0, d.known || own > 0
		return
	}
	if d.seemed == 0 {
		d.seemed = now
	}
	if now-d.seemed >= distantAfter && (d.near == 0 || now-d.near >= d.pause) {
		d.distant, d.known, d.seemed, d.since = true, true, 0, now
	}
}

// end has the path be distant no longer.
func (d *distance) end(now time.Duration) {
	d.distant, d.near = false, now
	if now-d.since < ownQueue {
		d.pause = min(2*d.pause, longestNear)
	} else {
		d.pause = 0
	}
	d.pause = max(d.pause, nearFor)
}
