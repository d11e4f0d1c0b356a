// SPDX-License-Identifier: Apache-2.0

package pace

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func total(of []float64) (sum float64) {
	for _, value := range of {
		sum += value
	}
	return sum
}

func near(a, b float64) bool { return math.Abs(a-b) <= 1e-6*max(math.Abs(a), math.Abs(b), 1) }

func TestDividing(t *testing.T) {
	inf := math.Inf(1)
	tests := []struct {
		name            string
		budget          float64
		demands, shares []float64
	}{
		{"nobody gets nothing", 100, nil, []float64{}},
		{"one gets everything", 100, []float64{inf}, []float64{100}},
		{"equals get the same", 90, []float64{inf, inf, inf}, []float64{30, 30, 30}},
		{"what one leaves goes to the others", 90, []float64{inf, 10, inf}, []float64{40, 10, 40}},
		{"small demands come first", 90, []float64{80, 20, 30}, []float64{40, 20, 30}},
		{"nobody gets more than asked for", 90, []float64{10, 20}, []float64{10, 20}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := divide(test.budget, test.demands); !slices.EqualFunc(got, test.shares, near) {
				t.Errorf("got %v, want %v", got, test.shares)
			}
		})
	}
}

func demand() *rapid.Generator[float64] {
	return rapid.OneOf(rapid.Float64Range(0, 1e9), rapid.Just(math.Inf(1)))
}

func TestDividingIsFairAndComplete(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		budget := rapid.Float64Range(1, 1e9).Draw(t, "budget")
		demands := rapid.SliceOfN(demand(), 1, 40).Draw(t, "demands")
		shares := divide(budget, demands)
		wanted := total(demands)
		if sum := total(shares); sum > budget*(1+1e-9) || !near(sum, min(budget, wanted)) {
			t.Fatalf("%v of %v were given for demands of %v", sum, budget, wanted)
		}
		level := slices.Max(shares)
		for i, share := range shares {
			if share > demands[i] || share < 0 {
				t.Fatalf("%v is given to a demand of %v", share, demands[i])
			}
			if share < demands[i]*(1-1e-9) && !near(share, level) {
				t.Fatalf("%v is given to a demand of %v while another has %v", share, demands[i], level)
			}
		}
	})
}

// simulate runs the sharing among subflows that can send at most so much, and
// returns what each of them sent in each step of a tenth of a second.
func simulate(rate float64, steps int, able func(step int) []float64) (sent [][]float64) {
	const step = 0.1
	var a account
	members := make([]member, len(able(0)))
	for i := range members {
		members[i].pace = rate / float64(len(members))
	}
	for n := range steps {
		now := make([]float64, len(members))
		for i, most := range able(n) {
			now[i] = min(most, members[i].pace) * step
			members[i].smooth(now[i]/step, step)
		}
		for i, pace := range a.share(rate, total(now), step, members) {
			members[i].pace = pace
		}
		sent = append(sent, now)
	}
	return sent
}

func TestSharingReachesTheRateAndKeepsIt(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rate := rapid.Float64Range(1e5, 1e9).Draw(t, "rate")
		able := rapid.SliceOfN(rapid.OneOf(rapid.Float64Range(0, 2), rapid.Just(math.Inf(1))), 1, 12).Draw(t, "able, in rates")
		for i := range able {
			able[i] *= rate
		}
		sent := simulate(rate, 60, func(int) []float64 { return able })
		second := 0.0
		for _, step := range sent[50:] {
			second += total(step)
		}
		wanted := min(rate, total(able))
		if second > rate*1.02 || second < wanted*0.95 {
			t.Fatalf("in the last second %.0f of %.0f were sent, wanted %.0f", second, rate, wanted)
		}
	})
}

func TestWhatARestingSubflowLeavesGoesToTheOthersAtOnceAndComesBack(t *testing.T) {
	const rate = 10e6
	sent := simulate(rate, 60, func(step int) []float64 {
		if step >= 20 && step < 40 {
			return []float64{math.Inf(1), 0}
		}
		return []float64{math.Inf(1), math.Inf(1)}
	})
	if got := sent[23][0]; got < 0.97*rate*0.1 {
		t.Errorf("300 ms after the other came to rest %.0f of %.0f were sent", got, rate*0.1)
	}
	if a, b := sent[44][0], sent[44][1]; math.Abs(a-b) > 0.1*a {
		t.Errorf("400 ms after it woke one sent %.0f and the other %.0f", a, b)
	}
	for from := 10; from+10 <= len(sent); from++ {
		second := 0.0
		for _, step := range sent[from : from+10] {
			second += total(step)
		}
		if second > rate*1.1 {
			t.Errorf("in the second from step %d on %.0f of %.0f were sent", from, second, rate)
		}
	}
}

func TestMountsOfCgroup2AreFound(t *testing.T) {
	const table = `24 30 0:22 / /proc rw,nosuid - proc proc rw
31 24 0:27 / /sys/fs/cgroup ro,nosuid - tmpfs tmpfs ro
32 31 0:28 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/uni\040fied rw,relatime shared:1 master:2 - cgroup2 cgroup2 rw
42 31 0:38 /../.. /host/cgroup rw - cgroup2 none rw,nsdelegate
broken line`
	want := []string{"/sys/fs/cgroup/uni fied", "/host/cgroup"}
	if got := cgroupMounts(table); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
