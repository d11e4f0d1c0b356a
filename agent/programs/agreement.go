// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"fmt"
	"slices"
)

// agreement is how the programs of a policy declare a map that they share.
type agreement struct {
	layout *layout
	by     []*candidate
}

// refuse says how a program declares the map otherwise.
func (a *agreement) refuse(b *binding, where string) error {
	problem := "programs that share it must declare it alike"
	if a == nil || a.layout == nil {
		return refuse("map ", b.name, " is declared otherwise ", where, ": ", problem)
	}
	here, there := b.layout.difference(a.layout)
	return refuse("map ", b.name, " is declared otherwise ", where, " (here ", here, ", there ", there, "): ", problem)
}

// agree compares how programs declare what they share, before any of them is loaded. Those
// that contradict each other are refused, all of them: none is more right.
func agree(candidates []*candidate) map[string]*agreement {
	agreed := map[string]*agreement{}
	for _, c := range candidates {
		for i := range c.SharedState {
			shared := &c.SharedState[i]
			if c.err != nil || !isOwn(c.PlanProgram, shared) {
				continue
			}
			id := stateIdentity(c.PlanProgram, shared)
			if agreed[id] == nil {
				agreed[id] = &agreement{layout: c.layouts[shared.Name]}
			}
			agreed[id].by = append(agreed[id].by, c)
		}
	}
	for _, c := range candidates {
		c.contradict(agreed)
	}
	boundMemory(candidates)
	return agreed
}

// contradict finds another program that declares a map otherwise.
func (c *candidate) contradict(agreed map[string]*agreement) {
	for i := range c.SharedState {
		shared := &c.SharedState[i]
		a := agreed[stateIdentity(c.PlanProgram, shared)]
		if c.err != nil || a == nil || !slices.Contains(a.by, c) {
			continue
		}
		own := &binding{name: shared.Name, layout: c.layouts[shared.Name]}
		for _, other := range a.by {
			there := &agreement{layout: other.layouts[shared.Name]}
			if here, _ := own.layout.difference(there.layout); here != "" {
				c.err = there.refuse(own, "in program "+other.Name)
			}
		}
	}
}

// boundMemory refuses the programs of policies that would share too much.
func boundMemory(candidates []*candidate) {
	memory, counted := map[string]uint64{}, map[string]bool{}
	for _, c := range candidates {
		for i := range c.SharedState {
			shared := &c.SharedState[i]
			id := stateIdentity(c.PlanProgram, shared)
			if c.err == nil && isOwn(c.PlanProgram, shared) && !counted[id] {
				counted[id] = true
				memory[c.Policy] += c.layouts[shared.Name].memory
			}
		}
	}
	for _, c := range candidates {
		if c.err == nil && len(c.SharedState) > 0 && memory[c.Policy] > maxStateMemory {
			c.err = refuse(fmt.Sprintf("the maps that programs of policy %s share have room for %d bytes; they may have %d", c.Policy, memory[c.Policy], maxStateMemory))
		}
	}
}
