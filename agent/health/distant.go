// SPDX-License-Identifier: Apache-2.0

package health

import "time"

const (
	// A path is distant from a peer where the shortest of its round trips is so many times as long as those of the best path
	// usually are by now, and longer by so much, for so long.
	distantTimes = 2
	distantBy    = 300 * time.Microsecond
	distantAfter = time.Second
	// It no longer is where its shortest round trip is less than so many times as long, or longer by less than half of that;
	// and it is not again within so long.
	nearTimes = 1.5
	nearFor   = 5 * time.Second
	// The shortest round trip is that of so many windows, the last of which is not over. What waits in the queues
	// of a path is not its length: some probe finds them short within that time.
	window  = 10 * time.Second
	windows = 6
	// fewestRoundTrips tell how long a path is.
	fewestRoundTrips = 4
)

// shortest remembers the shortest of the last round trips.
type shortest struct {
	of    [windows]time.Duration // the last window first; 0 where none was measured
	began time.Duration
	count int
}

func (s *shortest) add(now, rtt time.Duration) {
	if passed := int((now - s.began) / window); passed > 0 || s.count == 0 {
		s.forget(passed)
		s.began = now
	}
	s.count++
	if s.of[0] == 0 || rtt < s.of[0] {
		s.of[0] = rtt
	}
}

// forget begins a window after so many have passed.
func (s *shortest) forget(passed int) {
	passed = min(passed, windows)
	copy(s.of[passed:], s.of[:windows-passed])
	clear(s.of[:passed])
}

// roundTrip is 0 where few were measured.
func (s *shortest) roundTrip() (rtt time.Duration) {
	if s.count < fewestRoundTrips {
		return 0
	}
	for _, of := range s.of {
		if of > 0 && (rtt == 0 || of < rtt) {
			rtt = of
		}
	}
	return rtt
}

// distance is whether a path is distant.
type distance struct {
	shortest shortest
	distant  bool
	known    bool          // whether it is, so far
	seemed   time.Duration // since when it seems to be, while it is not; 0 while it does not
	near     time.Duration // when it no longer was; 0 before
}

// compareDistances finds which paths to the peer are distant.
func (p *peer) compareDistances(now time.Duration) {
	var best time.Duration
	for _, target := range p.targets {
		if target.state == Alive && target.rtt > 0 && (best == 0 || target.rtt < best) {
			best = target.rtt
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

// compare takes in how long the round trip of the best path to the same peer usually is.
func (d *distance) compare(now, best time.Duration) {
	own := d.shortest.roundTrip()
	if d.distant {
		if own < time.Duration(float64(best)*nearTimes) || own-best < distantBy/2 {
			d.distant, d.near = false, now
		}
		return
	}
	if own < distantTimes*best || own-best < distantBy {
		d.seemed, d.known = 0, d.known || own > 0
		return
	}
	if d.seemed == 0 {
		d.seemed = now
	}
	if now-d.seemed >= distantAfter && (d.near == 0 || now-d.near >= nearFor) {
		d.distant, d.known, d.seemed = true, true, 0
	}
}
