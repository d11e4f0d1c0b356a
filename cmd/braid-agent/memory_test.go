// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math"
	"runtime/debug"
	"testing"
)

func TestTheHeapGetsTwoThirdsOfTheContainersMemory(t *testing.T) {
	for _, test := range []struct {
		name, limit string
		want        int64
		refused     bool
	}{
		{name: "no limit is known", want: math.MaxInt64},
		{name: "half a GiB", limit: "536870912", want: 357913940},
		{name: "a quantity", limit: "512Mi", want: math.MaxInt64, refused: true},
		{name: "nothing", limit: "0", want: math.MaxInt64, refused: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			before := debug.SetMemoryLimit(math.MaxInt64)
			t.Cleanup(func() { debug.SetMemoryLimit(before) })
			t.Setenv(memoryVariable, test.limit)
			if err := limitHeap(); (err != nil) != test.refused {
				t.Errorf("error %v", err)
			}
			if got := debug.SetMemoryLimit(-1); got != test.want {
				t.Errorf("the runtime's limit is %d, not %d", got, test.want)
			}
		})
	}
}
