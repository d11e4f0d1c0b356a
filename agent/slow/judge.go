// SPDX-License-Identifier: Apache-2.0

package slow

import (
	"math"
	"slices"
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
	// window is how long ago connections may have begun that have not ended; rarely is the part of them
	// that may live so long on a better path.
	window = 16 * time.Second
	rarely = 1.0 / 8
	// somewhat lies between two moments that are remembered: there may be thousands of pairs.
	somewhat = 500 * time.Millisecond
	// firstRest is for how long no connection begins on a path that was found to be slow, or that it is not
	// suspected where nothing was gained. It doubles where that is found again, up to longestRest.
	firstRest, longestRest = 10 * time.Second, 5 * time.Minute
	// For a half of a trial what began on the path ends, and for the other one it shows whether anything is gained. A half
	// is as long as connections last there, and so many of all end, within these bounds.
	shortestHalf, longestHalf = 300 * time.Millisecond, 2 * time.Second
	telling                   = 60
	// fewer is the part of the connections before of which as many must end in a second without the path, unless
	// the difference is less than surely of its standard errors.
	fewer, surely = 0.85, 1.5
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

// ended are the connections that had ended on all paths.
func (m *moment) ended() (sum float64) {
	for _, on := range m.on {
		sum += float64(on.ended)
	}
	return sum
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

// rate is how many connections ended in a second over so long, or somewhat longer, as far as is known, and how many
// these were.
func (h history) rate(now moment, over time.Duration) (perSecond, number float64) {
	for _, then := range slices.Backward(h) {
		passed := now.at.Sub(then.at)
		if passed > 0 {
			number = now.ended() - then.ended()
			perSecond = number / passed.Seconds()
		}
		if passed >= over {
			break
		}
	}
	return perSecond, number
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
	took  float64       // while slow: the ticks that showed it, and how many times as many they are as elsewhere
	by    float64
	rests bool // until is still to come
	trial      // while it is not known yet whether anything is gained
}

// trial is whether as many connections end in a second while none begins on a path.
type trial struct {
	isTrial     bool
	half        time.Duration
	before      float64   // so many did in a second
	number      float64   // of so many that was seen
	halfway     time.Time // zero before it is
	endedByThen float64
}

// doubt is what comes after nothing was gained without a path: how many connections wait for each of several paths that
// are full is by chance, and stays so, as each ends as many as begin there.
type doubt struct {
	trusted time.Time // until then none is suspected for how long connections lasted
	lasts   time.Duration
}

// deepen has it last longer where nothing was gained again.
func (d *doubt) deepen(now time.Time) {
	if now.Sub(d.trusted) < 2*d.lasts {
		d.lasts = min(2*d.lasts, longestRest)
	} else {
		d.lasts = firstRest
	}
	d.trusted = now.Add(d.lasts)
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

// try has no connection begin on a path for a while, to see whether anything is gained.
func (p *pair) try(now moment, number int, took, by float64) []verdict {
	of := &p.paths[number]
	half := halfOf(time.Duration(took * float64(datapath.LastingTick)))
	if rate, _ := p.history.rate(now, half); rate > 0 {
		half = halfOf(max(half, time.Duration(telling/rate*float64(time.Second))))
	}
	rate, seen := p.history.rate(now, half)
	of.slow, of.took, of.by = true, took, by
	of.trial = trial{isTrial: true, half: half, before: rate, number: seen}
	of.until = now.at.Add(half)
	return []verdict{{path: uint8(number), lasts: 2*half + longestPause, times: by, trial: true}}
}

func halfOf(lasts time.Duration) time.Duration { return min(max(lasts, shortestHalf), longestHalf) }

// judgeTrial ends a trial when its second half is over. Connections that began on the path before it end in the first one.
func (p *pair) judgeTrial(now moment, number int) []verdict {
	of := &p.paths[number]
	switch {
	case now.at.Before(of.until):
		return nil
	case of.halfway.IsZero():
		of.halfway, of.endedByThen, of.until = now.at, now.ended(), now.at.Add(of.half)
		return nil
	}
	of.isTrial, of.slow = false, false
	if !of.endFewer(now) {
		return of.isNowSlow(now.at, uint8(number), of.took, of.by)
	}
	p.deepen(now.at)
	of.since, of.times = time.Time{}, times{}
	return []verdict{{path: uint8(number), trial: true}}
}

// endFewer tells whether plainly fewer connections ended in a second than before.
func (t *trial) endFewer(now moment) bool {
	passed := now.at.Sub(t.halfway).Seconds()
	without, with := now.ended()-t.endedByThen, t.before*passed
	variance := without + with*with/max(t.number, 1)
	return without < fewer*with && with-without > surely*math.Sqrt(variance)
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
	p.slow, p.rests, p.until, p.took, p.by, p.times = true, true, now.Add(p.rest), took, by, times{}
	return []verdict{{path: number, lasts: p.rest, times: by}}
}
