// SPDX-License-Identifier: Apache-2.0

package slow

import (
	"math"

	"braid.dev/braid/agent/datapath"
)

const (
	// counted is how many of the last connections count where their usual time is compared, and countedMean
	// how many where the mean is, which a few that lasted very long make; of these many must have ended.
	counted, countedMean, many = 32, 2048, 64
	// distinct is how many times as large as its standard error the difference must be, of the logarithms and of
	// the times themselves.
	distinct, distinctMean = 5, 4
	// long is how many ticks they must last on the slow path: half a millisecond. Less is within what processors do.
	long = 8
	// leastVariance is that of logarithms which seem all alike: they are told in steps.
	leastVariance = 0.1
)

// sample are the last ones of some numbers.
type sample struct{ number, sum, squares float64 }

// add adds some. No more than so many count.
func (s *sample) add(number, sum, squares, most float64) {
	s.number, s.sum, s.squares = s.number+number, s.sum+sum, s.squares+squares
	if s.number > most {
		s.sum, s.squares, s.number = s.sum*most/s.number, s.squares*most/s.number, most
	}
}

func (s *sample) mean() float64 { return s.sum / s.number }

func (s *sample) variance() float64 { return s.squares/s.number - s.mean()*s.mean() }

// spread is the standard error of the mean, squared. The variance is no less than least.
func (s *sample) spread(least float64) float64 { return max(least, s.variance()) / s.number }

// times are how long connections lasted: the logarithms, to the base of 2, of how many ticks, and how many
// ticks that are.
type times struct{ logarithms, ticks sample }

// add adds those that have ended since.
func (t *times) add(now, before datapath.LastingOn) {
	number := float64(now.Timed - before.Timed)
	t.logarithms.add(number, float64(now.Times-before.Times)*datapath.LastingUnit,
		float64(now.Squares-before.Squares)*datapath.LastingUnit*datapath.LastingUnit, counted)
	t.ticks.add(number, float64(now.Total-before.Total), float64(now.TotalSquares-before.TotalSquares), countedMean)
}

// usual is how many ticks a connection usually lasts. A few that last very long change little of it.
func (t *times) usual() float64 { return math.Exp2(t.logarithms.mean()) }

// slower tells how many ticks connections lasted, and by what factor that is longer than on a better path, where
// it is by much; else 0. Either most of them do, or a few that waited for lost packets, which take a
// hundred times as long: they make the mean. Fewer than enough tell only where they plainly last longer, and more than
// those on the better path differ from each other.
func (t *times) slower(than *times) (took, by float64) {
	least, variance := float64(much), leastVariance
	if t.logarithms.number < enough {
		least, variance = plain, max(leastVariance, than.logarithms.variance())
	}
	if by = t.usual() / than.usual(); by >= least && t.usual() >= long && isMore(&t.logarithms, &than.logarithms, distinct, variance) {
		return t.usual(), by
	}
	if min(t.ticks.number, than.ticks.number) < many {
		return 0, 0
	}
	if by = t.ticks.mean() / than.ticks.mean(); by >= much && t.ticks.mean() >= long && isMore(&t.ticks, &than.ticks, distinctMean, 0) {
		return t.ticks.mean(), by
	}
	return 0, 0
}

// isMore tells whether a mean is more by so many standard errors.
func isMore(a, b *sample, errors, leastVariance float64) bool {
	return a.mean()-b.mean() >= errors*math.Sqrt(a.spread(leastVariance)+b.spread(leastVariance))
}
