// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestLooksAtWhatWaitsAreFrequentWhereMuchWaits(t *testing.T) {
	for _, c := range []struct {
		name  string
		waits int
		took  time.Duration
		pause time.Duration
	}{
		{"nothing waits", 0, 0, memoryInterval},
		{"a look at many connections takes a fiftieth of the time at most", 0, 20 * time.Millisecond, time.Second},
		{"much waits", 25, time.Millisecond, nearInterval},
		{"much waits in many connections", 200, 100 * time.Millisecond, 500 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := memory{most: 100}
			m.note(map[string][]waiting{"one": {{bytes: c.waits}}})
			require.Equal(t, c.pause, m.pause(c.took))
		})
	}
}
