// SPDX-License-Identifier: Apache-2.0

package health

import (
	"time"

	"braid.dev/braid/api/v1alpha1"
)

const (
	// To be returned to, a path must be better than the limit at which it is left:
	// so much of the excess of its round-trip time, and of its loss, is allowed.
	returnRTTPercent  = 80
	returnLossPercent = 50
	// A path that is left again within so many dwells of its return must wait twice
	// as long the next time, and up to 1<<mostStrikes times.
	relapseDwells  = 8
	shortestMemory = 2 * time.Second
	mostStrikes    = 6
)

// Judge says which paths are as good as preferences ask, with hysteresis. It is not
// safe for concurrent use; the zero Judge is ready.
type Judge struct {
	standings map[standingKey]*standing
}

type standingKey struct {
	peer, path string
	preference v1alpha1.PlanPreference
}

// standing is what was decided of one path to one peer under one preference.
type standing struct {
	left     bool
	since    time.Time // when it began to deserve the other decision; zero while it does not
	strikes  int
	returned time.Time
	seen     bool
}

// Update judges a view. The result has for each peer and each preference, by its
// index, the paths that are good; next is when to call again if nothing changes, zero
// for never. now must not go back.
//
// A path is left at once when it is dead, and when for leaveAfter it lost more than
// maxLossPercent or its round-trip time was longer than maxRTTPercent of that of the
// best path to the same peer, and longer by minRTTDifference. Of what is not
// known nothing is held against a path. It is returned to when for returnAfter it
// was clearly within those limits; one that is left again soon waits longer each
// time, so that a path near the limit does not flap.
func (j *Judge) Update(now time.Time, view View, peers, paths []string, preferences []v1alpha1.PlanPreference) (good map[string][]map[string]bool, next time.Time) {
	if j.standings == nil {
		j.standings = map[standingKey]*standing{}
	}
	good = make(map[string][]map[string]bool, len(peers))
	for _, peer := range peers {
		best := bestRTT(view, peer, paths)
		good[peer] = make([]map[string]bool, len(preferences))
		for i, preference := range preferences {
			good[peer][i] = map[string]bool{}
			for _, path := range paths {
				s := j.standing(standingKey{peer, path, preference})
				due := s.update(now, limitsOf(preference), view.Sample(peer, path), best)
				good[peer][i][path] = !s.left
				next = earlier(next, due)
			}
		}
	}
	j.forget()
	return good, next
}

func (j *Judge) standing(of standingKey) *standing {
	s := j.standings[of]
	if s == nil {
		s = &standing{}
		j.standings[of] = s
	}
	s.seen = true
	return s
}

// forget drops what was not asked for this time.
func (j *Judge) forget() {
	for of, s := range j.standings {
		if !s.seen {
			delete(j.standings, of)
		}
		s.seen = false
	}
}

func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// bestRTT is the shortest of the living paths; 0 where none is known.
func bestRTT(view View, peer string, paths []string) (best time.Duration) {
	for _, path := range paths {
		sample := view.Sample(peer, path)
		if sample.State == Alive && sample.RTT > 0 && (best == 0 || sample.RTT < best) {
			best = sample.RTT
		}
	}
	return best
}

// limits are a preference in units to calculate with.
type limits struct {
	factor                 float64
	difference             time.Duration
	loss                   float64
	leaveAfter, returnTime time.Duration
}

func limitsOf(preference v1alpha1.PlanPreference) limits {
	return limits{
		factor:     float64(preference.MaxRTTPercent) / 100,
		difference: time.Duration(preference.MinRTTDifferenceMicros) * time.Microsecond,
		loss:       float64(preference.MaxLossPercent) / 100,
		leaveAfter: time.Duration(preference.LeaveAfterMillis) * time.Millisecond,
		returnTime: time.Duration(preference.ReturnAfterMillis) * time.Millisecond,
	}
}

// rtt is beyond what a path is left.
func (l limits) rtt(best time.Duration) time.Duration {
	return max(time.Duration(float64(best)*l.factor), best+l.difference)
}

func (l limits) exceededBy(sample Sample, best time.Duration) bool {
	return sample.State == Dead || sample.Loss > l.loss || best > 0 && sample.RTT > l.rtt(best)
}

// keptBy is stricter than not being exceeded.
func (l limits) keptBy(sample Sample, best time.Duration) bool {
	allowed := best + (l.rtt(best)-best)*returnRTTPercent/100
	return sample.State != Dead && sample.Loss*100 <= l.loss*returnLossPercent && (best == 0 || sample.RTT <= allowed)
}

// update decides anew, and returns when it may decide otherwise if nothing changes.
func (s *standing) update(now time.Time, l limits, sample Sample, best time.Duration) time.Time {
	if !s.left && sample.State == Dead {
		s.leave(now, l, false)
		return time.Time{}
	}
	deserved, dwell := l.exceededBy(sample, best), l.leaveAfter
	if s.left {
		deserved, dwell = l.keptBy(sample, best), s.dwell(l)
	}
	if !deserved {
		s.since = time.Time{}
		return time.Time{}
	}
	if s.since.IsZero() {
		s.since = now
	}
	if due := s.since.Add(dwell); now.Before(due) {
		return due
	}
	if s.left {
		s.left, s.since, s.returned = false, time.Time{}, now
	} else {
		s.leave(now, l, true)
	}
	return time.Time{}
}

// dwell is how long a path that was left must be good again.
func (s *standing) dwell(l limits) time.Duration { return l.returnTime << s.strikes }

// leave leaves a path; of one that died its probes have their own hysteresis.
func (s *standing) leave(now time.Time, l limits, strike bool) {
	memory := max(relapseDwells*s.dwell(l), shortestMemory)
	switch {
	case s.returned.IsZero() || now.Sub(s.returned) >= memory:
		s.strikes = 0
	case strike:
		s.strikes = min(s.strikes+1, mostStrikes)
	}
	s.left, s.since = true, time.Time{}
}
