// SPDX-License-Identifier: Apache-2.0

package crowd

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/agent/datapath"
	"braid.dev/braid/bpf/uplink"
)

// traffic is what moves on the paths: in a slice of time each of so many flows moves so
// much.
type traffic [][]flows

type flows struct {
	count, each uint64
	direction   int
}

// after adds what an interval moves.
func (t traffic) after(loads datapath.Loads) datapath.Loads {
	const slices = uint64(interval / datapath.LoadSlice)
	loads.Paths = len(t)
	for path, on := range t {
		for _, f := range on {
			loads.Of[path].Moved[f.direction] += slices * f.count * f.each
			loads.Of[path].Squares[f.direction] += slices * f.count * f.each * f.each
		}
	}
	return loads
}

// judged is the verdict after so many intervals of the same traffic.
func (j *judge) judged(t traffic, intervals int) (crowded bool) {
	loads, at := j.last, j.at
	if at.IsZero() {
		at = time.Unix(0, 0)
		j.at = at
	}
	for range intervals {
		loads, at = t.after(loads), at.Add(interval)
		crowded = j.isCrowded(loads, at)
	}
	return crowded
}

func each(path ...flows) traffic { return traffic{path, path, path} }

func TestPathsAreFullOfFlowsThatAllWantToSend(t *testing.T) {
	bulk, slow := flows{count: 1, each: 10_000}, flows{count: 50, each: 10}
	tests := map[string]struct {
		traffic
		crowded bool
	}{
		"nothing":                     {each(), false},
		"one connection on each path": {each(bulk), false},
		"ten":                         {each(flows{count: 10, each: 100}), false},
		"hundred connections":         {each(flows{count: 33, each: 100}), true},
		"thousand that receive":       {each(flows{count: 333, each: 10, direction: 1}), true},
		"many that send little beside a large one":    {each(bulk, slow), false},
		"many beside a small one the other way":       {each(flows{count: 333, each: 30}, flows{count: 1, each: 5000, direction: 1}), true},
		"a large one beside many the other way":       {each(bulk, flows{count: 50, each: 10, direction: 1}), false},
		"many on one path alone":                      {traffic{{{count: 1000, each: 10}}, nil, nil}, false},
		"many on one of two paths":                    {traffic{{{count: 1000, each: 10}}, nil}, false},
		"many on one path, and a large one elsewhere": {traffic{{{count: 300, each: 10}}, {{count: 1, each: 90_000}}, {{count: 300, each: 10}}}, false},
		"many on all paths but one":                   {traffic{{{count: 500, each: 10}}, {{count: 500, each: 10}}, nil}, true},
		"by the capacities of 300, 100 and 10":        {traffic{{{count: 73, each: 100}}, {{count: 24, each: 100}}, {{count: 3, each: 100}}}, true},
		"thousands that send less than can be seen":   {each(flows{count: 5000, each: 0}), false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var j judge
			require.Equal(t, test.crowded, j.judged(test.traffic, 3))
		})
	}
}

func TestACrowdIsSeenAtOnceAndForgottenSlowly(t *testing.T) {
	var j judge
	many, few := each(flows{count: 300, each: 10}), each(flows{count: 2, each: 1000})
	require.True(t, j.judged(many, 1))
	require.True(t, j.judged(few, 2))
	require.False(t, j.judged(few, int(5*time.Second/interval)))
}

func TestWhatNobodyLookedAtIsForgotten(t *testing.T) {
	var j judge
	many := each(flows{count: 300, each: 10})
	require.True(t, j.judged(many, 3))
	require.False(t, j.isCrowded(many.after(j.last), j.at.Add(time.Minute)))
	require.True(t, j.judged(many, 1))
}

func TestSumsThatBeginAnewTellNothing(t *testing.T) {
	var j judge
	j.judged(each(flows{count: 2, each: 1000}), 3)
	require.False(t, j.isCrowded(datapath.Loads{Paths: 3}, j.at.Add(interval)))
	require.Equal(t, uplink.MaxPaths, len(j.flows))
}

// moved is what so many flows of a tenant move in an interval.
func (f flows) moved(before datapath.Load) datapath.Load {
	loads := traffic{{f}}.after(datapath.Loads{Of: [uplink.MaxPaths]datapath.Load{before}})
	return loads.Of[0]
}

func TestWhoHasManyFlowsWaitsForOthersNobodyDoes(t *testing.T) {
	var j judge
	tenants := map[string]flows{
		"thousand": {count: 1000, each: 10}, "forty": {count: 40, each: 10}, "twelve": {count: 12, each: 10},
		"one": {count: 1, each: 10}, "idle": {}, "one that receives": {count: 1, each: 5000, direction: 1},
	}
	sums := map[string]datapath.Load{}
	var guilty, suspected []string
	for i := range 10 {
		for name, f := range tenants {
			sums[name] = f.moved(sums[name])
		}
		guilty, suspected = j.guilty(sums, 3, interval)
		if i == 0 {
			require.Empty(t, guilty)
			require.Len(t, suspected, len(tenants), "nothing is known of the first look")
		}
	}
	require.ElementsMatch(t, []string{"thousand", "forty"}, guilty)
	require.Empty(t, suspected)
}

func TestSoManyAreLetGoAtOnceAsThereIsRoomFor(t *testing.T) {
	tests := map[string]struct {
		traffic
		places int
	}{
		"nothing":                      {each(), most},
		"ten on each path":             {each(flows{count: 10, each: 100}), 3},
		"one that is large":            {each(flows{count: 1, each: 10_000}), most},
		"as many as there is room for": {each(flows{count: 12, each: 100}), 1},
		"a crowd of others":            {each(flows{count: 100, each: 100}), few},
		"ten on one path alone":        {traffic{{{count: 10, each: 100}}}, 2},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var j judge
			j.judged(test.traffic, 3)
			require.Equal(t, test.places, j.places())
		})
	}
}
