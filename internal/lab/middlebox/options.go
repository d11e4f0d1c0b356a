// SPDX-License-Identifier: Apache-2.0

package middlebox

import (
	"slices"
	"time"
)

// each is a changer without a memory.
func each(change func(s *segment) []passed) func() changer {
	return func() changer { return oneByOne(change) }
}

func on(s *segment) []passed { return []passed{{segment: s}} }

func isAny(*segment) bool      { return true }
func isSYN(s *segment) bool    { return s.is(syn|ack, syn) }
func isSYNACK(s *segment) bool { return s.is(syn|ack, syn|ack) }
func isLater(s *segment) bool  { return s.is(syn, 0) }

func isJoin(s *segment) bool {
	return isSYN(s) && slices.ContainsFunc(s.options, isSubtype(mpJoin))
}

func isSubtype(subtype byte) func(option) bool {
	return func(o option) bool { return o.mptcp() && o.subtype() == subtype }
}

// stripIf takes options from some segments.
func stripIf(concerned func(*segment) bool, strip func(option) bool) func(*segment) []passed {
	return func(s *segment) []passed {
		if concerned(s) {
			s.options = slices.DeleteFunc(s.options, strip)
		}
		return on(s)
	}
}

// replaceByNOPs keeps the length of the header.
func replaceByNOPs(s *segment) []passed {
	var options []option
	for _, o := range s.options {
		if !o.mptcp() {
			options = append(options, o)
			continue
		}
		for range o {
			options = append(options, option{optionNOP})
		}
	}
	s.options = options
	return on(s)
}

func dropIf(concerned func(*segment) bool) func(*segment) []passed {
	return func(s *segment) []passed {
		if concerned(s) {
			return nil
		}
		return on(s)
	}
}

// midway takes MPTCP's options from a direction of a connection from then on that so many
// of its segments have passed, as a box does that begins to look into a flow when it lasts,
// or one that takes the flow over from another.
type midway struct{ passed map[ends]int }

// untouched is how many segments pass first: with MPTCP's data and acknowledgements long
// under way.
const untouched = 200

func (m *midway) pass(s *segment) []passed {
	if m.passed[s.ends]++; m.passed[s.ends] > untouched {
		s.options = slices.DeleteFunc(s.options, option.mptcp)
	}
	return on(s)
}

func (*midway) due(time.Time) []passed { return nil }
