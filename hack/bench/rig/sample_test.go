// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"testing"

	"braid.dev/braid/internal/lab/traffic"
)

const millisecond = 1_000_000

// switching sends 10 kB every 10 ms: over blue for 500 ms, then over green.
func switching() (samples []Sample) {
	var blue, green uint64
	for i := range int64(100) {
		samples = append(samples, Sample{At: i * 10 * millisecond, Sent: map[string]uint64{"blue": blue, "green": green}})
		if i < 50 {
			blue += 10_000
		} else {
			green += 10_000
		}
	}
	return samples
}

func TestWhenAPathBeganToCarryEverythingIsSeen(t *testing.T) {
	samples := switching()
	cases := map[string]struct {
		path     string
		from, to int64
		expected float64
	}{
		"it moves later":              {"green", 200 * millisecond, 990 * millisecond, 300},
		"it has moved":                {"green", 600 * millisecond, 990 * millisecond, 0},
		"it does not in time":         {"green", 200 * millisecond, 550 * millisecond, -1},
		"the other path is used last": {"blue", 600 * millisecond, 990 * millisecond, -1},
	}
	for name, c := range cases {
		if got := MovedAt(samples, c.path, c.from, c.to); got != c.expected {
			t.Errorf("%s: %v instead of %v", name, got, c.expected)
		}
	}
	if share := ShareOf(samples, "blue", 400*millisecond, 600*millisecond); share != 0.5 {
		t.Errorf("blue's share is %v", share)
	}
}

func TestTheLongestGapIsFound(t *testing.T) {
	result := &traffic.Result{StartNs: 1000 * millisecond, BinMs: 10, Bins: []int64{1, 0, 1, 0, 0, 0, 1, 1}}
	cases := map[string]struct {
		from, to int64
		expected Gap
	}{
		"in all":              {1000 * millisecond, 1079 * millisecond, Gap{30, 60}},
		"at the beginning":    {1040 * millisecond, 1079 * millisecond, Gap{0, 20}},
		"none":                {1062 * millisecond, 1079 * millisecond, Gap{}},
		"after the last byte": {1070 * millisecond, 1119 * millisecond, Gap{10, 50}},
	}
	for name, c := range cases {
		if got := LongestGap(result, c.from, c.to); got != c.expected {
			t.Errorf("%s: %v instead of %v", name, got, c.expected)
		}
	}
}
