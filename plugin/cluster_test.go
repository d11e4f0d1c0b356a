// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPlansAreReadOneByOneWhereThatCostsLessThanAList(t *testing.T) {
	for _, test := range []struct {
		wanted, all int
		oneByOne    bool
	}{
		{0, 0, true}, {64, 64, true}, {65, 65, false}, {65, 259, false}, {65, 260, true}, {100, 1000, true},
		{200, 1000, true}, {201, 1000, false}, {201, 5000, false}, {64, 0, true}, {65, 0, false}, // of nobody knows how many
	} {
		require.Equal(t, test.oneByOne, fewEnough(test.wanted, test.all), "%d of %d", test.wanted, test.all)
	}
}
