// SPDX-License-Identifier: Apache-2.0

package guests

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNoNamespaceTakesTheTablesOfOthersPods(t *testing.T) {
	pods := map[uint32]string{}
	for index := range uint32(10) {
		pods[1+index] = "greedy"
	}
	none := func(uint32) bool { return false }
	require.Empty(t, beyond(pods, 10, none))
	require.Equal(t, []uint32{9, 10}, beyond(pods, 8, none))

	t.Run("whoever comes gets its part", func(t *testing.T) {
		pods[20], pods[21] = "modest", "modest"
		has := func(index uint32) bool { return index >= 3 && index <= 10 }
		require.Equal(t, []uint32{1, 2, 9, 10}, sorted(beyond(pods, 8, has)))
	})
	t.Run("who has one keeps it against who is no worse off", func(t *testing.T) {
		pods := map[uint32]string{1: "a", 2: "b", 3: "c"}
		require.Equal(t, []uint32{1}, beyond(pods, 2, func(index uint32) bool { return index > 1 }))
	})
}

func sorted(all []uint32) []uint32 {
	slices.Sort(all)
	return all
}
