// SPDX-License-Identifier: Apache-2.0

package slow

import (
	"math"
	"time"

	"braid.dev/braid/agent/datapath"
	"braid.dev/braid/bpf/uplink"
)

const (
	// enough is how many connections must have ended on each of two paths before they are compared,
	// and tried how many on a slow one to see whether it still is.
	enough, tried = 8, 3
	// much is by what factor they must last longer on a slow path, and still those that are tried there. Of two
	// paths that are both full, without the one of half the rate as many connections end in a second as with it.
	much, still = 2, 1.7
	// plain is the factor from which on one look is enough; less must last for moments: a path may have
	// more to carry for a while.
	plain, moments = 8, 2 * time.Second
	// window is how long ago connections may have begun that have not ended; rarely is the part of them
	// that may live so long on a better path.
	window = 16 * time.Second
	rarely = 1.0 / 8
	// somewhat lies between two moments that are remembered: there may be thousands of pairs.
	somewhat = 500 * time.Millisecond
	// firstRest is for how long no connection begins on a path that was found to be slow. It doubles
	// where that is found again, up to longestRest.
	firstRest, longestRest = 10 * time.Second, 5 * time.Minute
)

// ages are how old connections are that tell by themselves, before they have ended, and how many must be.
var ages = []struct {
	age    time.Duration
	enough float64
}{{time.Second, enough}, {2 * time.Second, enough / 2}, {4 * time.Second, enough / 2}}

// counts are how many had begun and ended on a path.
type counts struct{ begun, ended uint32 }

// moment is when there were so many.
type moment struct {
	at time.Time
	on [uplink.MaxPaths]counts
}

func momentOf(at time.Time, seen *datapath.Lasting) moment {
	m := moment{at: at}
	for i, on := range seen.On {
		m.on[i] = counts{on.Begun, on.Ended}
	}
	return m
}

// history are moments of the last window, each somewhat after the one before, and one before all.
type history []moment

func (h history) add(m moment) history {
	for len(h) > 1 && m.at.Sub(h[1].at) > window {
		h = h[1:]
	}
	if len(h) > 0 && m.at.Sub(h[len(h)-1].at) < somewhat {
		return h
	}
	return append(h, m)
}

// old tells how many of those that began on a path within the window are older than age, and how many of
// these at least have not ended.
func (h history) old(path int, age time.Duration, now moment) (begun, living float64) {
	for _, then := range h {
		if now.at.Sub(then.at) < age {
			break
		}
		begun = float64(then.on[path].begun - h[0].on[path].begun)
	}
	if begun == 0 {
		return 0, 0
	}
	return begun, max(0, begun-float64(now.on[path].ended-h[0].on[path].ended))
}

// path is what is known of one path to a peer.
type path struct {
	times
	slow  bool
	until time.Time     // while slow: before that no connection begins there
	rest  time.Duration // how long it was slow the last time
	ended time.Time     // when it was no longer found to be slow
	since time.Time     // while not slow: when it first seemed to be
	with  float64       // while slow: how long connections lasted in the mean of all paths when they began here too
	by    float64       // and how many times as long they did here
	rests bool          // until is still to come
}

// verdict is what is new of a path: that it is slow for so long, or, with 0, no longer.
type verdict struct {
	path  uint8
	lasts time.Duration
	times float64 // as long as on the best one; 0 where it is to be tried soon
}

// pair is what is known of the connections of one endpoint to one peer.
type pair struct {
	seen    datapath.Lasting
	history history
	paths   [uplink.MaxPaths]path
	looked  time.Time // when any had begun or ended
}

// adopt begins with what was counted before, which is not looked at.
func adopt(now time.Time, seen *datapath.Lasting) *pair {
	p := &pair{seen: *seen, history: history{momentOf(now, seen)}, looked: now}
	for i, on := range seen.On {
		if on.Slow {
			p.paths[i] = path{slow: true, until: now.Add(firstRest), rest: firstRest, rests: true, with: math.Inf(1)}
		}
	}
	return p
}

// isAnother tells whether the connections are counted anew.
func (p *pair) isAnother(seen *datapath.Lasting) bool {
	for i, on := range seen.On {
		if on.Begun < p.seen.On[i].Begun || on.Ended < p.seen.On[i].Ended {
			return true
		}
	}
	return false
}

// look takes in which connections have begun and ended since, and tells what follows.
func (p *pair) look(now time.Time, seen *datapath.Lasting) (verdicts []verdict) {
	for i := range p.paths {
		p.paths[i].look(now, seen.On[i], p.seen.On[i])
	}
	if seen.On != p.seen.On {
		p.looked = now
	}
	p.seen = *seen
	m := momentOf(now, seen)
	if now.Sub(p.looked) > window {
		p.history = history{m}
		return nil
	}
	p.history = p.history.add(m)
	for i := range p.paths {
		verdicts = append(verdicts, p.judge(m, i)...)
	}
	return verdicts
}

func (p *path) look(now time.Time, seen, before datapath.LastingOn) {
	if p.slow && !seen.Slow { // it was forgotten
		*p = path{}
	}
	p.add(seen, before)
	if p.rests && !now.Before(p.until) { // what ended since began before
		p.rests, p.times = false, times{}
	}
}

// tells is true of a path on which connections begin and some have ended.
func (p *path) tells() bool { return !p.slow && p.logarithms.number >= enough }

// best is the path other than this one on which connections last the shortest time, of those that are
// not slow.
func (p *pair) best(other int) (number int, best *path) {
	for i := range p.paths {
		if of := &p.paths[i]; i != other && of.tells() && (best == nil || of.usual() < best.usual()) {
			number, best = i, of
		}
	}
	return number, best
}

// mean is how long connections last in the mean of the paths that are not slow but this one, on which they
// last as long as took says, if it does.
func (p *pair) mean(other int, took ...float64) float64 {
	for i := range p.paths {
		if of := &p.paths[i]; i != other && of.tells() {
			took = append(took, of.usual())
		}
	}
	sum := 0.0
	for _, one := range took {
		sum += one
	}
	return sum / float64(len(took))
}

func (p *pair) judge(now moment, number int) []verdict {
	of := &p.paths[number]
	than, best := p.best(number)
	if best == nil {
		return nil
	}
	if of.slow {
		return of.judgeSlow(now.at, uint8(number), best, p.mean(number))
	}
	if of.tells() {
		if took, by := of.slower(&best.times); by > 0 {
			return of.judgeSlower(now.at, uint8(number), p.mean(number, took), by)
		}
	}
	of.since = time.Time{}
	for _, old := range ages {
		if by := ticks(old.age) / best.usual(); by > much && p.live(now, number, than, old.age) >= old.enough {
			return of.isNowSlow(now.at, uint8(number), p.mean(number, ticks(old.age)), by)
		}
	}
	return nil
}

func ticks(lasts time.Duration) float64 { return float64(lasts) / float64(datapath.LastingTick) }

// live tells how many connections of one path have not ended, if those are most of it, and nearly all of
// another one have; else none.
func (p *pair) live(now moment, number, than int, age time.Duration) float64 {
	begun, living := p.history.old(number, age, now)
	others, othersLiving := p.history.old(than, age, now)
	if others < enough || living < begun/2 || othersLiving*begun > rarely*living*others {
		return 0
	}
	return living
}

// judgeSlower has a path be slow at once where connections last plainly longer there.
func (p *path) judgeSlower(now time.Time, number uint8, with, by float64) []verdict {
	if p.since.IsZero() {
		p.since = now
	}
	if by < plain && now.Sub(p.since) < moments {
		return nil
	}
	return p.isNowSlow(now, number, with, by)
}

// judgeSlow judges by those that began there all the same, and by how long others last meanwhile: where
// that is as long as in the mean of all before, nothing is gained.
func (p *path) judgeSlow(now time.Time, number uint8, best *path, without float64) []verdict {
	inVain := without >= p.with
	switch {
	case p.rests && inVain && p.by < plain:
		return p.isNoLongerSlow(now, number)
	case p.rests && inVain: // it is tried before its time
		p.rests, p.until, p.times = false, now, times{}
		return []verdict{{path: number, lasts: interval}}
	case p.rests || p.logarithms.number < tried:
		return nil
	case p.usual() < best.usual()*still:
		return p.isNoLongerSlow(now, number)
	}
	return p.isNowSlow(now, number, p.with, p.usual()/best.usual())
}

func (p *path) isNoLongerSlow(now time.Time, number uint8) []verdict {
	p.slow, p.rests, p.ended, p.since, p.times = false, false, now, time.Time{}, times{}
	return []verdict{{path: number}}
}

func (p *path) isNowSlow(now time.Time, number uint8, with, by float64) []verdict {
	if p.slow || now.Sub(p.ended) < 2*p.rest {
		p.rest = min(2*p.rest, longestRest)
	} else {
		p.rest = firstRest
	}
	p.slow, p.rests, p.until, p.with, p.by, p.times = true, true, now.Add(p.rest), with, by, times{}
	return []verdict{{number, p.rest, by}}
}
