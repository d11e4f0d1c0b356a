// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func ms(n int) time.Duration { return time.Duration(n) * time.Millisecond }

func TestEarliestCompletionFirst(t *testing.T) {
	fast := subflow{rtt: ms(20), window: 100_000}
	slow := subflow{rtt: ms(50), window: 100_000}
	rested := slow
	rested.resting = true
	for name, c := range map[string]struct {
		backlog  uint64
		subflows []subflow
		resting  []bool
	}{
		"nothing to send: the slow one rests":                   {0, []subflow{fast, slow}, []bool{false, true}},
		"one window: the slow one rests":                        {100_000, []subflow{fast, slow}, []bool{false, true}},
		"many windows: both are used":                           {1_000_000, []subflow{fast, slow}, []bool{false, false}},
		"the order does not matter":                             {0, []subflow{slow, fast}, []bool{true, false}},
		"equal ones are both used":                              {1, []subflow{fast, fast}, []bool{false, false}},
		"a little more than one round trip of the slow one":     {160_000, []subflow{fast, slow}, []bool{false, false}},
		"the same, and it rests already: it goes on resting":    {160_000, []subflow{fast, rested}, []bool{false, true}},
		"a single one never rests":                              {0, []subflow{slow}, []bool{false}},
		"none":                                                  {0, nil, []bool{}},
		"two fast ones have room for more before a third works": {250_000, []subflow{fast, fast, slow}, []bool{false, false, true}},
		"an unknown window counts for nothing":                  {1, []subflow{{rtt: ms(20)}, slow}, []bool{false, false}},
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
				rtt:       time.Duration(rapid.IntRange(1, 1e9).Draw(t, "rtt")),
				variation: time.Duration(rapid.IntRange(0, 1e9).Draw(t, "variation")),
				window:    rapid.Uint64Range(0, 1<<30).Draw(t, "window"),
				resting:   rapid.Bool().Draw(t, "resting"),
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
