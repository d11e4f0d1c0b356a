// SPDX-License-Identifier: Apache-2.0

package network

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAPolicerLosesWhatIsMoreThanItsRateAndABurst(t *testing.T) {
	const size, burst = 1000, 10_000
	now := time.Unix(1000, 0)
	p := newPolicer(2, 8, burst, func() time.Time { return now })
	passed := func(port, frames int) (count int) {
		for range frames {
			count += len(p.Pass(port, make([]byte, virtioHeader+size)))
		}
		return count
	}
	require.Equal(t, 10, passed(0, 25), "a burst")
	require.Equal(t, 10, passed(1, 25), "each node has its own")
	now = now.Add(5 * time.Millisecond)
	require.Equal(t, 5, passed(0, 25), "8 Mbit/s are 5 frames in 5 ms")
	now = now.Add(time.Hour)
	require.Equal(t, 10, passed(0, 25), "after a pause no more than a burst")
	require.Empty(t, p.Due(now))
}
