// SPDX-License-Identifier: Apache-2.0

package spreading

import "braid.dev/braid/api/v1alpha1"

const (
	// agreeing is how many intervals must say the same before another verdict is told in
	// the place of one: traffic that changes between two is not to be written each time.
	agreeing = 2
	// remembered is how many intervals a verdict outlives what it was made of.
	remembered = 10
)

// settled is what is told of an endpoint, one verdict after the other.
type settled struct {
	told verdict
	// next was judged last, so many times in a row.
	next  verdict
	times int
}

// take takes in what an interval was judged to be, and says whether something else is to
// be told.
func (s *settled) take(v verdict) (changed bool) {
	if v != s.next && !(v.isUnknown() && s.next.isUnknown()) {
		s.times = 0
	}
	s.next = v
	s.times++
	if v == s.told || s.times < s.needed(v) {
		return false
	}
	s.told = v
	return true
}

// needed is how often in a row a verdict must come. What is better than nothing is told
// at once.
func (s *settled) needed(v verdict) int {
	switch {
	case s.told == verdict{}, v.reason == v1alpha1.ReasonNotAnswered: // nobody answered for long
		return 1
	case v.isUnknown() && !s.told.isUnknown():
		return remembered
	case s.told.isUnknown() && !v.isUnknown():
		return 1
	}
	return agreeing
}

func (v verdict) isUnknown() bool { return v.state == v1alpha1.SpreadingUnknown }
