// SPDX-License-Identifier: Apache-2.0

package testutil

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTimeWithoutAFreeProcessorCountsAQuarter(t *testing.T) {
	for name, test := range map[string]struct {
		passed, waited, spent, stretched time.Duration
	}{
		"free all the time":                      {4 * time.Minute, 0, 4 * time.Minute, time.Minute},
		"never free":                             {4 * time.Minute, 4 * time.Minute, time.Minute, 4 * time.Minute},
		"free half of the time":                  {4 * time.Minute, 2 * time.Minute, 150 * time.Second, 96 * time.Second},
		"the kernel counted more than there was": {4 * time.Minute, time.Hour, time.Minute, 4 * time.Minute},
		"the kernel's count has gone back":       {4 * time.Minute, -time.Minute, 4 * time.Minute, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			counted := time.Hour
			p := newPatience(func() time.Duration { return counted })
			p.began = p.began.Add(-test.passed)
			counted += test.waited
			require.InDelta(t, test.spent, p.Spent(), float64(10*time.Second))
			require.InDelta(t, test.stretched, p.Stretch(time.Minute), float64(10*time.Second))
		})
	}
}
