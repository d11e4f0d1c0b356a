// SPDX-License-Identifier: Apache-2.0

package slow

import (
	"math"
	"time"

	"braid.dev/braid/agent/datapath"
	"braid.dev/braid/bpf/uplink"
)

const (
	// enough is how many connections must have ended on each of two paths before they are compared, and few how many on
	// one where they plainly last longer. tried is how many on a slow one show that it no longer is.
	enough, few, tried = 8, 3, 3
	// much is by what factor they must last longer on a slow path, and still those that are tried there. Of two
	// paths that are both full, without the one of half the rate as many connections end in a second as with it.
	much, still = 2, 1.7
	// plain is the factor from which on one look is enough; less must last for moments: a path may have
	// more to carry for a while.
	plain, moments = 8, 2 * time.Second
	// rarely is the part of the connections on a better path that may live as long as those on one where they do not end.
	rarely = 1.0 / 8
	// firstRest is for how long no connection begins on a path that was found to be slow, or that it is not
	// suspected where nothing was gained. It doubles where that is found again, up to longestRest.
	firstRest, longestRest = 10 * time.Second, 5 * time.Minute
)

// ages are how old connections are that tell by themselves, before they have ended, and how many must be.
var ages = []struct {
	age    time.Duration
	enough float64
}{{time.Second, enough}, {2 * time.Second, enough / 2}, {4 * time.Second, enough / 2}}

// path is what is known of one path to a peer.
type path struct {
	times
	slow  bool
	until time.Time     // while slow: before that no connection begins there; in a trial when its half ends
	rest  time.Duration // how long it was slow the last time
	ended time.Time     // when it was no longer found to be slow
	since time.Time     // while not slow: when it first seemed to be
	took  float64       // while slow: the ticks that showed it
	rests bool          // until is still to come
	trial               // while it is not known yet whether anything is gained
}

// isKnownSlow tells whether connections begin elsewhere, and something is gained by it.
func (p *path) isKnownSlow() bool { return p.slow && !p.isTrial }

// verdict is what is new of a path: that it is slow for so long, or, with 0, no longer.
type verdict struct {
	path  uint8
	lasts time.Duration
	times float64 // as long as on the best one; 0 where it is to be tried soon
	trial bool    // begins, or ended in vain
}

// pair is what is known of the connections of one endpoint to one peer.
type pair struct {
	seen    datapath.Lasting
	history history
	paths   [uplink.MaxPaths]path
	looked  time.Time // when any had begun or ended
	calm    time.Time // until then a change of where they begin may still show
	doubt
}

// adopt begins with what was counted before, which is not looked at.
func adopt(now time.Time, seen *datapath.Lasting) *pair {
	p := &pair{seen: *seen, history: history{momentOf(now, seen)}, looked: now}
	for i, on := range seen.On {
		if on.Slow {
			p.paths[i] = path{slow: true, until: now.Add(firstRest), rest: firstRest, rests: true, took: math.Inf(1)}
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
		found := p.judge(m, i)
		if len(found) > 0 {
			p.calm = now.Add(max(p.paths[i].half, shortestHalf)*2 + somewhat)
		}
		verdicts = append(verdicts, found...)
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

func (p *pair) judge(now moment, number int) []verdict {
	of := &p.paths[number]
	than, best := p.best(number)
	switch {
	case of.isTrial:
		return p.judgeTrial(now, number)
	case best == nil:
		return nil
	case of.slow:
		return of.judgeSlow(now.at, uint8(number), best)
	case now.at.Before(p.calm):
		return nil
	}
	if of.logarithms.number >= few && !now.at.Before(p.trusted) {
		if took, by := of.slower(&best.times); by > 0 {
			return p.suspect(now, number, took, by)
		}
	}
	of.since = time.Time{}
	for _, old := range ages {
		if by := ticks(old.age) / best.usual(); by > much && p.live(now, number, than, old.age) >= old.enough {
			return p.try(now, number, ticks(old.age), by)
		}
	}
	return nil
}

// suspect begins a trial at once where connections last plainly longer on a path, else when they have for moments.
func (p *pair) suspect(now moment, number int, took, by float64) []verdict {
	of := &p.paths[number]
	if of.since.IsZero() {
		of.since = now.at
	}
	if by < plain && now.at.Sub(of.since) < moments {
		return nil
	}
	return p.try(now, number, took, by)
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

// judgeSlow judges by those that began there all the same. They do before their time where the others come to last
// as long: by now more may be gained with the path.
func (p *path) judgeSlow(now time.Time, number uint8, best *path) []verdict {
	switch {
	case p.rests && best.usual() >= p.took: // it is tried before its time
		p.rests, p.until, p.times = false, now, times{}
		return []verdict{{path: number, lasts: interval}}
	case p.rests || p.logarithms.number < tried && !p.isPlainlySlower(best):
		return nil
	case p.usual() < best.usual()*still:
		return p.isNoLongerSlow(now, number)
	}
	return p.isNowSlow(now, number, p.usual(), p.usual()/best.usual())
}

// isPlainlySlower tells whether a single try is enough: it may have cost a second.
func (p *path) isPlainlySlower(than *path) bool {
	if p.logarithms.number == 0 {
		return false
	}
	_, by := p.slower(&than.times)
	return by >= plain
}

func (p *path) isNoLongerSlow(now time.Time, number uint8) []verdict {
	p.slow, p.rests, p.ended, p.since, p.times = false, false, now, time.Time{}, times{}
	return []verdict{{path: number}}
}

func (p *path) isNowSlow(now time.Time, number uint8, took, by float64) []verdict {
	if p.slow || now.Sub(p.ended) < 2*p.rest {
		p.rest = min(2*p.rest, longestRest)
	} else {
		p.rest = firstRest
	}
	p.slow, p.rests, p.until, p.took, p.times = true, true, now.Add(p.rest), took, times{}
	return []verdict{{path: number, lasts: p.rest, times: by}}
}
