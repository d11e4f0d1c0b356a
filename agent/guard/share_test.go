// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

var infinite = math.Inf(1)

func drawRate(t *rapid.T, name string) float64 {
	switch rapid.IntRange(0, 3).Draw(t, name+" kind") {
	case 0:
		return infinite
	case 1:
		return 0
	}
	return rapid.Float64Range(1, 1e11).Draw(t, name)
}

func drawGroups(t *rapid.T) []group {
	groups := make([]group, rapid.IntRange(1, 8).Draw(t, "groups"))
	for i := range groups {
		groups[i] = group{weight: float64(rapid.IntRange(1, 1000).Draw(t, "weight")), most: drawRate(t, "ceiling")}
		for range rapid.IntRange(0, 6).Draw(t, "members") {
			groups[i].members = append(groups[i].members, demand{wants: drawRate(t, "wants"), most: drawRate(t, "most"), weight: 1})
		}
	}
	return groups
}

// about forgives what floating point does.
func about(value float64) float64 { return value*1e-9 + 1e-6 }

func sum(rates []float64) (total float64) {
	for _, rate := range rates {
		total += rate
	}
	return total
}

// wanted is what a group can use.
func (g *group) wanted() float64 {
	total := g.total()
	return min(total.wants, total.most)
}

func forAllAllocations(t *testing.T, expect func(t *rapid.T, capacity float64, groups []group, rates [][]float64)) {
	rapid.Check(t, func(t *rapid.T) {
		capacity, groups := rapid.Float64Range(1, 1e11).Draw(t, "capacity"), drawGroups(t)
		expect(t, capacity, groups, allocate(capacity, groups))
	})
}

func TestSumsNeverExceedCeilingsOrTheCapacity(t *testing.T) {
	forAllAllocations(t, func(t *rapid.T, capacity float64, groups []group, rates [][]float64) {
		all := 0.0
		for i := range groups {
			total := sum(rates[i])
			all += total
			if total > groups[i].most+about(groups[i].most) {
				t.Errorf("group %d has %g of %g", i, total, groups[i].most)
			}
			for j, rate := range rates[i] {
				if rate < 0 || rate > groups[i].members[j].most {
					t.Errorf("member %d of group %d has %g of %g", j, i, rate, groups[i].members[j].most)
				}
			}
		}
		if all > capacity+about(capacity) {
			t.Errorf("%g is given of %g", all, capacity)
		}
	})
}

// A rounding more than the most is more: rates are compared with it as they are.
func TestWhatIsGivenInTwoPartsIsNoMoreThanTheMost(t *testing.T) {
	most := 66.00000000000004
	rates := fill(66.5, []demand{{wants: 2.0000000000000213, most: most, weight: 1}})
	if rates[0] != most {
		t.Errorf("a member has %v of %v", rates[0], most)
	}
}

func TestNothingLiesIdleThatSomebodyWantsAndMayHave(t *testing.T) {
	forAllAllocations(t, func(t *rapid.T, capacity float64, groups []group, rates [][]float64) {
		all, useful := 0.0, 0.0
		for i := range groups {
			useful += groups[i].wanted()
			for j, rate := range rates[i] {
				all += min(rate, groups[i].members[j].wants)
			}
		}
		if least := min(capacity, useful); all < least-about(least) {
			t.Errorf("%g of %g is of use, where %g could be: %v", all, capacity, least, rates)
		}
	})
}

// Nobody who gets less than it wants could get more but from one that has no more
// for its weight.
func TestRatesAreMaxMinByWeight(t *testing.T) {
	forAllAllocations(t, func(t *rapid.T, capacity float64, groups []group, rates [][]float64) {
		for i := range groups {
			least := sum(rates[i]) / groups[i].weight
			if sum(rates[i]) >= groups[i].wanted()-about(groups[i].wanted()) {
				continue
			}
			for j := range groups {
				if other := min(sum(rates[j]), capacity) / groups[j].weight; other > least+about(other) {
					t.Errorf("group %d wants more than %g for its weight, and group %d has %g", i, least, j, other)
				}
			}
			for m, member := range groups[i].members {
				if rates[i][m] < min(member.wants, member.most)-about(rates[i][m]) && rates[i][m] < slices.Max(rates[i])-about(slices.Max(rates[i])) {
					t.Errorf("member %d of group %d has %g of %v", m, i, rates[i][m], rates[i])
				}
			}
		}
	})
}

func TestSomethingIsKeptForThoseWhoSendLittle(t *testing.T) {
	groups := []group{
		{3, infinite, []demand{{wants: infinite, most: infinite, weight: 1}}},
		{1, infinite, []demand{{0, infinite, 1}, {0, infinite, 1}}},
	}
	keep(100, groups)
	for i, rate := range allocate(100, groups)[1] {
		if rate < 100*kept/4/2 {
			t.Errorf("member %d has %g", i, rate)
		}
	}
}

func TestAllocations(t *testing.T) {
	takes := func(n int) (members []demand) {
		for range n {
			members = append(members, demand{wants: infinite, most: infinite, weight: 1})
		}
		return members
	}
	wants := func(rate float64) []demand { return []demand{{wants: rate, most: infinite, weight: 1}} }
	for name, test := range map[string]struct {
		groups   []group
		expected [][]float64
	}{
		"three to one": {
			[]group{{3, infinite, takes(1)}, {1, infinite, takes(1)}}, [][]float64{{75}, {25}},
		},
		"the number of pods does not count": {
			[]group{{1, infinite, takes(4)}, {1, infinite, takes(1)}}, [][]float64{{12.5, 12.5, 12.5, 12.5}, {50}},
		},
		"what one does not want the other has": {
			[]group{{3, infinite, wants(20)}, {1, infinite, takes(1)}}, [][]float64{{20}, {80}},
		},
		"a ceiling leaves the rest to others": {
			[]group{{3, 10, takes(2)}, {1, infinite, takes(1)}}, [][]float64{{5, 5}, {90}},
		},
		"when nobody wants anything everyone has room": {
			[]group{{3, infinite, wants(0)}, {1, infinite, wants(0)}}, [][]float64{{75}, {25}},
		},
		"a ceiling holds also for what nobody wants": {
			[]group{{1, 30, []demand{{0, infinite, 1}, {10, infinite, 1}}}}, [][]float64{{10, 20}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			for i, rates := range allocate(100, test.groups) {
				for j, rate := range rates {
					if math.Abs(rate-test.expected[i][j]) > 1e-9 {
						t.Errorf("member %d of group %d has %g instead of %g", j, i, rate, test.expected[i][j])
					}
				}
			}
		})
	}
}
