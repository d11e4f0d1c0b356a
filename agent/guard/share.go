// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"cmp"
	"slices"
)

// demand is what one asks for; all rates are in bits a second.
type demand struct {
	// wants is infinite for one that takes what it can get.
	wants float64
	// most is what it may have at all; infinite where nothing limits it.
	most float64
	// weight is its part where not all get what they want.
	weight float64
}

// group is a tenant: a demand of its own, and those of its endpoints, who share
// what the tenant gets.
type group struct {
	weight  float64
	most    float64
	members []demand
}

// allocate divides a capacity among groups by their weights, and what a group gets
// among its members. It returns a rate for each member:
//
//   - A member gets no less than it wants, unless that is more than it or its group
//     may have, or others have as much for their weights (weighted max-min).
//   - What nobody wants is divided too, so that everyone has room to grow.
//   - The rates of a group's members never exceed what it may have, and those of
//     all never the capacity.
func allocate(capacity float64, groups []group) [][]float64 {
	wanted := make([]demand, len(groups))
	for i := range groups {
		wanted[i] = groups[i].total()
	}
	rates := make([][]float64, len(groups))
	for i, budget := range fill(capacity, wanted) {
		rates[i] = fill(budget, groups[i].members)
	}
	return rates
}

// kept is the part of its fair share that is kept for one that sends little: so much
// that its first packets need not wait until it is known to want more.
const kept = 0.25

// keep raises what is wanted to that. All together is no more than that part of the
// capacity.
func keep(capacity float64, groups []group) {
	weights := 0.0
	for i := range groups {
		weights += groups[i].weight
	}
	for _, g := range groups {
		fair := min(g.most, capacity*g.weight/weights)
		for i := range g.members {
			g.members[i].wants = max(g.members[i].wants, kept*fair/float64(len(g.members)))
		}
	}
}

// total is what a group asks for as a whole.
func (g *group) total() demand {
	wants, most := 0.0, 0.0
	for _, member := range g.members {
		wants += min(member.wants, member.most)
		most += member.most
	}
	return demand{wants: wants, most: min(g.most, most), weight: g.weight}
}

// fill divides a budget by what is wanted, and then what is left by what may be had.
func fill(budget float64, demands []demand) []float64 {
	rates := divide(budget, demands, func(d *demand) float64 { return min(d.wants, d.most) })
	rest := budget
	for _, rate := range rates {
		rest -= rate
	}
	if rest <= 0 {
		return rates
	}
	more := make([]demand, len(demands))
	for i, d := range demands {
		more[i] = demand{most: max(0, d.most-rates[i]), weight: d.weight}
	}
	for i, rate := range divide(rest, more, func(d *demand) float64 { return d.most }) {
		// What was subtracted and is added again may be a rounding more than it was.
		rates[i] = min(rates[i]+rate, demands[i].most)
	}
	return rates
}

// divide gives to each what it wants as long as the budget allows, and to those who
// want more the same for their weights.
func divide(budget float64, demands []demand, wants func(*demand) float64) []float64 {
	order := make([]int, 0, len(demands))
	weights := 0.0
	for i := range demands {
		if demands[i].weight > 0 {
			order = append(order, i)
			weights += demands[i].weight
		}
	}
	slices.SortFunc(order, func(a, b int) int {
		return cmp.Compare(wants(&demands[a])/demands[a].weight, wants(&demands[b])/demands[b].weight)
	})
	rates := make([]float64, len(demands))
	for _, i := range order {
		fair := max(0, budget) * min(1, demands[i].weight/weights)
		rates[i] = min(wants(&demands[i]), fair)
		budget -= rates[i]
		weights -= demands[i].weight
	}
	return rates
}
