// SPDX-License-Identifier: Apache-2.0

package slow

import (
	"math"
	"time"

	"braid.dev/braid/agent/datapath"
)

const (
	// In the first half of a trial what began on the path ends, and in the second one it shows whether anything is gained.
	// Each lasts as long as connections do there, and as it takes until so many on all paths have ended, which is
	// telling, within these bounds.
	shortestHalf, longestHalf = 300 * time.Millisecond, 2 * time.Second
	telling                   = 60
	// Nothing is gained where fewer connections end in a second than this part of those before, and the difference is
	// so many times its standard error.
	fewer, surely = 0.85, 1.5
)

// trial is whether as many connections end in a second while none begins on a path.
type trial struct {
	isTrial     bool
	by          float64 // how many times as long connections lasted there
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

// try has no connection begin on a path for a while, to see whether anything is gained.
func (p *pair) try(now moment, number int, took, by float64) []verdict {
	of := &p.paths[number]
	half := halfOf(time.Duration(took * float64(datapath.LastingTick)))
	if rate, _ := p.history.rate(now, half); rate > 0 {
		half = halfOf(max(half, time.Duration(telling/rate*float64(time.Second))))
	}
	rate, seen := p.history.rate(now, half)
	of.slow, of.took = true, took
	of.trial = trial{isTrial: true, by: by, half: half, before: rate, number: seen}
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
