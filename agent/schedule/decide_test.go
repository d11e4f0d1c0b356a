// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func ms(n int) time.Duration { return time.Duration(n) * time.Millisecond }

func TestEarliestCompletionFirst(t *testing.T) {
	fast := subflow{delay: ms(10), rate: 6e6}
	slow := subflow{delay: ms(25), rate: 2e6}
	wide := subflow{delay: ms(25), rate: 6e6}
	unknown := subflow{delay: ms(25), rate: math.Inf(1)}
	rested := func(s subflow) subflow {
		s.resting = true
		return s
	}
	for name, c := range map[string]struct {
		backlog  uint64
		subflows []subflow
		resting  []bool
	}{
		"nothing to send: the slow one rests":                {0, []subflow{fast, slow}, []bool{false, true}},
		"gone before the slow one delivers: it rests":        {64 << 10, []subflow{fast, slow}, []bool{false, true}},
		"a long backlog: both are used":                      {1 << 20, []subflow{fast, slow}, []bool{false, false}},
		"a wide one pays earlier than a narrow and far one":  {256 << 10, []subflow{fast, wide, {delay: ms(40), rate: 2e6}}, []bool{false, false, true}},
		"the order does not matter":                          {0, []subflow{slow, fast}, []bool{true, false}},
		"equal ones are both used":                           {1, []subflow{fast, fast}, []bool{false, false}},
		"just worth it":                                      {200_000, []subflow{fast, wide}, []bool{false, false}},
		"just worth it, and it rests already: it goes on so": {200_000, []subflow{fast, rested(wide)}, []bool{false, true}},
		"a single one never rests":                           {0, []subflow{slow}, []bool{false}},
		"none":                                               {0, nil, []bool{}},
		"one whose limit is not known is tried":              {256 << 10, []subflow{fast, unknown}, []bool{false, false}},
		"a fast one whose limit is not known is tried alone": {1 << 20, []subflow{{delay: ms(10), rate: math.Inf(1)}, slow}, []bool{false, true}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := earliestCompletionFirst(c.backlog, c.subflows); !slices.Equal(got, c.resting) {
				t.Errorf("resting: %v, not %v", got, c.resting)
			}
		})
	}
}

// Whatever is measured, the fastest subflow is used, and more backlog never lets
// more subflows rest.
func TestDecisionsAreSane(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		subflows := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) subflow {
			return subflow{
				delay:   time.Duration(rapid.IntRange(1, 1e9).Draw(t, "delay")),
				rate:    rapid.Float64Range(1, 1e12).Draw(t, "rate"),
				resting: rapid.Bool().Draw(t, "resting"),
			}
		}), 1, 8).Draw(t, "subflows")
		backlog := rapid.Uint64Range(0, 1<<40).Draw(t, "backlog")
		few := earliestCompletionFirst(backlog, subflows)
		if !slices.Contains(few, false) {
			t.Errorf("all rest: %+v", subflows)
		}
		if len(subflows) == 2 { // with more, one that is used makes room that lets another rest
			more := earliestCompletionFirst(backlog*2, subflows)
			for i := range few {
				if more[i] && !few[i] {
					t.Errorf("with more to send, subflow %d rests", i)
				}
			}
		}
	})
}
