// SPDX-License-Identifier: Apache-2.0

package guests

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNoNamespaceTakesTheTablesOfOthersPods(t *testing.T) {
	wants := map[uint32]want{100: {}, 101: {}} // VMs that are no pods do not count
	for index := range uint32(10) {
		wants[1+index] = want{pod: "greedy"}
	}
	none := func(uint32) bool { return false }
	require.Empty(t, beyond(wants, 10, none))
	require.Equal(t, []uint32{9, 10}, beyond(wants, 8, none))

	t.Run("whoever comes gets its part", func(t *testing.T) {
		wants[20], wants[21] = want{pod: "modest"}, want{pod: "modest"}
		has := func(index uint32) bool { return index >= 3 && index <= 10 }
		require.Equal(t, []uint32{1, 2, 9, 10}, sorted(beyond(wants, 8, has)))
	})
	t.Run("who has one keeps it against who is no worse off", func(t *testing.T) {
		wants := map[uint32]want{1: {pod: "a"}, 2: {pod: "b"}, 3: {pod: "c"}}
		require.Equal(t, []uint32{1}, beyond(wants, 2, func(index uint32) bool { return index > 1 }))
	})
}

func sorted(all []uint32) []uint32 {
	slices.Sort(all)
	return all
}
