// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTheMedianIsWithinTheMiddleOfASample(t *testing.T) {
	var values []float64
	for i := range 100 {
		values = append(values, float64(i))
	}
	least, most := MedianWithin(values)
	require.Equal(t, []float64{39, 60}, []float64{least, most}, "the 40th and the 61st of a hundred")
	least, most = MedianWithin(values[:3])
	require.Equal(t, []float64{0, 2}, []float64{least, most}, "few say no more than their least and their most")
}
