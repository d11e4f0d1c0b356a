// SPDX-License-Identifier: Apache-2.0

package chains

import (
	"slices"

	"braid.dev/braid/bpf/endpoint"
)

// condition is a match as leaves that are joined by all and any; what was under
// a not is negated in the leaves.
type condition struct {
	kind  conditionKind
	leaf  Selector
	parts []condition
}

type conditionKind uint8

const (
	always conditionKind = iota
	never
	single // a leaf
	all
	some
)

func allOf(parts ...condition) condition { return join(all, always, never, parts) }

func anyOf(parts ...condition) condition { return join(some, never, always, parts) }

// join leaves out the parts that change nothing and ends with the one that
// decides alone.
func join(kind, neutral, decisive conditionKind, parts []condition) condition {
	if slices.ContainsFunc(parts, func(part condition) bool { return part.kind == decisive }) {
		return condition{kind: decisive}
	}
	kept := slices.DeleteFunc(slices.Clone(parts), func(part condition) bool { return part.kind == neutral })
	switch len(kept) {
	case 0:
		return condition{kind: neutral}
	case 1:
		return kept[0]
	}
	return condition{kind: kind, parts: kept}
}

func leafOf(selector Selector) condition { return condition{kind: single, leaf: selector} }

// negation holds when the condition does not.
func (c condition) negation() condition {
	switch c.kind {
	case always:
		return condition{kind: never}
	case never:
		return condition{kind: always}
	case single:
		c.leaf.Negated ^= 1
		return c
	}
	opposite := condition{kind: all}
	if c.kind == all {
		opposite.kind = some
	}
	for _, part := range c.parts {
		opposite.parts = append(opposite.parts, part.negation())
	}
	return opposite
}

// size is the number of leaves.
func (c condition) size() int {
	if c.kind == single {
		return 1
	}
	total := 0
	for _, part := range c.parts {
		total += part.size()
	}
	return total
}

// place writes the leaves to the selectors from at on, each with where to go on:
// to the next part while the result is open, to ifTrue or ifFalse as soon as it
// is not. All jumps lead forwards.
func (c condition) place(selectors []Selector, at int, ifTrue, ifFalse uint16) {
	if c.kind == single {
		selectors[at] = c.leaf
		selectors[at].IfTrue, selectors[at].IfFalse = ifTrue, ifFalse
		if c.leaf.Kind == endpoint.SelectProgram {
			selectors[at].Index = uint16(at)
		}
		return
	}
	for i, part := range c.parts {
		next := at + part.size()
		partTrue, partFalse := ifTrue, ifFalse
		if i < len(c.parts)-1 {
			if c.kind == all {
				partTrue = uint16(next)
			} else {
				partFalse = uint16(next)
			}
		}
		part.place(selectors, at, partTrue, partFalse)
		at = next
	}
}

// directions are those in which the condition can hold, as bits.
func (c condition) directions() uint8 {
	const both = fromEndpoint | toEndpoint
	switch c.kind {
	case always:
		return both
	case never:
		return 0
	case single:
		return selectorDirections(&c.leaf)
	}
	result := uint8(0)
	if c.kind == all {
		result = both
	}
	for _, part := range c.parts {
		if c.kind == all {
			result &= part.directions()
		} else {
			result |= part.directions()
		}
	}
	return result
}

func selectorDirections(s *Selector) uint8 {
	const both = fromEndpoint | toEndpoint
	switch {
	case s.Kind != endpoint.SelectDirection:
		return both
	case s.Negated == 1:
		return both &^ uint8(s.Mask)
	}
	return uint8(s.Mask)
}

// needs are what the leaves look at beside the headers of the packet and the
// record of its subflow.
func (c condition) needs() (needs uint8) {
	if c.kind == single {
		return selectorNeeds(&c.leaf)
	}
	for _, part := range c.parts {
		needs |= part.needs()
	}
	return needs
}

func selectorNeeds(s *Selector) uint8 {
	switch s.Kind {
	case endpoint.SelectTypes:
		if s.Mask&^typesOfHeader != 0 {
			return endpoint.NeedsOptions
		}
	case endpoint.SelectBackup, endpoint.SelectProgram: // what the ends say is in options; programs are told of them
		return endpoint.NeedsOptions
	case endpoint.SelectDataSequence:
		return endpoint.NeedsOptions | endpoint.NeedsConnection
	case endpoint.SelectConnectionSent:
		return endpoint.NeedsConnection
	}
	return 0
}
