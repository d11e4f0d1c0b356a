// SPDX-License-Identifier: Apache-2.0

package room

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWhoDoesTooMuchKeepsNobodyElseFromDoingIt(t *testing.T) {
	r := NewRates[string](0, 3, 100)
	for range 3 {
		require.True(t, r.Allow("loud"))
	}
	require.False(t, r.Allow("loud"))
	require.True(t, r.Allow("quiet"))
}

func TestRatesAreKnownOfABoundedNumberOfOwners(t *testing.T) {
	r := NewRates[int](0, 2, 100)
	for i := range 500 {
		r.Allow(i)
		r.Allow(i)
	}
	require.LessOrEqual(t, len(r.limits), 100)
}
