// SPDX-License-Identifier: Apache-2.0

package pace

import (
	"cmp"
	"math"
	"slices"
)

// The constants of sharing, found by trial on real connections.
const (
	// hungry is the part of its pace that a subflow must use to be given more.
	hungry = 0.8
	// room is what a subflow that uses less than its share may grow by at once: so
	// much that it is not taken for hungry when it does not.
	room = 1.4
	// repayment is the time in seconds in which too much is paid back.
	repayment = 0.5
	// mostDebt and mostCredit are in seconds of the whole rate. Pacing by timers
	// falls short by some percent, which the credit makes up for.
	mostDebt, mostCredit = 0.5, 0.075
	// leastBudget is the part of the rate that is left however large the debt.
	leastBudget = 0.25
	// wakingPace is what a resting subflow keeps, in bytes a second, unless its even
	// share is less: at a slower pace the first burst of 64 KiB would keep it waiting.
	wakingPace = 437_500
)

// member is one of the subflows that share a rate; all in bytes a second.
type member struct {
	used float64 // in the long run
	last float64 // since the last look
	pace float64 // that it was given; 0: none yet
}

func (m *member) isHungry() bool { return m.pace == 0 || max(m.used, m.last) >= hungry*m.pace }

// Sockets send bursts of so many bytes where the round trip is short, however slow
// their pace: what a subflow uses shows only over some of them.
const (
	burst         = 64 << 10
	burstsToJudge = 3
	longestToWait = 0.6 // seconds
)

// smooth is what a subflow uses in the long run, after it sent at this rate for
// some seconds.
func (m *member) smooth(rate, seconds float64) {
	long := min(burstsToJudge*burst/max(m.pace, 1), longestToWait)
	part := 1 - math.Exp(-seconds/max(long, seconds))
	m.used, m.last = m.used+part*(rate-m.used), rate
}

// account is how far a rate was exceeded (debt, positive) or not reached while
// somebody wanted more (credit, negative), in bytes.
type account struct{ debt float64 }

// share divides a rate among the members for the time to come, after they used
// this much in the last seconds.
func (a *account) share(rate, used, seconds float64, members []member) []float64 {
	anyHungry := slices.ContainsFunc(members, func(m member) bool { return m.isHungry() })
	a.settle(rate, used, seconds, anyHungry)
	budget := max(rate-a.debt/repayment, rate*leastBudget)
	demands := make([]float64, len(members))
	for i := range members {
		demands[i] = members[i].used
		if members[i].isHungry() {
			demands[i] = math.Inf(1)
		}
	}
	shares := divide(budget, demands)
	level := budget / float64(max(len(members), 1))
	rest := budget
	for i := range shares {
		level = max(level, shares[i])
		rest -= shares[i]
	}
	even := rest / float64(max(len(members), 1)) // nothing when somebody is hungry
	resting := min(wakingPace, rate/float64(max(len(members), 1)))
	for i := range shares {
		if !math.IsInf(demands[i], 1) {
			shares[i] = max(min(shares[i]*room, level), shares[i]+even, resting)
		}
	}
	return shares
}

// settle adds what was used to the account. While nobody wants more no credit
// arises, and what there is dwindles.
func (a *account) settle(rate, used, seconds float64, anyHungry bool) {
	before := a.debt
	a.debt += used - rate*seconds
	if !anyHungry {
		a.debt = max(a.debt, min(before, 0)/2)
	}
	a.debt = min(max(a.debt, -mostCredit*rate), mostDebt*rate)
}

// divide gives to each demand what it asks for as long as the budget allows, and
// to those that ask for more the same to each: the share of one grows only with
// that of all who have less.
func divide(budget float64, demands []float64) []float64 {
	order := make([]int, len(demands))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(demands[a], demands[b]) })
	shares := make([]float64, len(demands))
	for n, i := range order {
		shares[i] = min(demands[i], budget/float64(len(order)-n))
		budget -= shares[i]
	}
	return shares
}
