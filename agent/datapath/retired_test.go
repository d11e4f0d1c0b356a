// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/agent/node"
)

func endpointsRetired(numbers ...uint32) node.Numbers {
	retired := node.Numbers{node.KindEndpoint: {}, node.KindPath: {}}
	for _, number := range numbers {
		retired[node.KindEndpoint][number] = true
	}
	return retired
}

func TestFlowsAreClearedOfARetiredNumberAtOnceAndThenNowAndAgain(t *testing.T) {
	begin := time.Now()
	var c cleared
	at := func(after time.Duration, retired ...uint32) (due []uint32) {
		now := begin.Add(after)
		numbers := c.due(endpointsRetired(retired...), now)
		for number := range numbers[node.KindEndpoint] {
			due = append(due, number)
		}
		c.note(endpointsRetired(retired...), now)
		return due
	}
	require.Equal(t, []uint32{7}, at(0, 7), "one that is retired is due")
	require.Empty(t, at(time.Second, 7), "one that was cleared is not due again at once")
	require.Equal(t, []uint32{8}, at(2*time.Second, 7, 8), "another one that is retired later is due")
	require.Empty(t, at(3*time.Second, 7, 8))
	require.ElementsMatch(t, []uint32{7, 8}, at(clearAgain, 7, 8), "those that stay retired are due again after a while")
	require.Empty(t, at(clearAgain+time.Second, 8))
	require.Equal(t, []uint32{7}, at(clearAgain+2*time.Second, 7, 8), "one that was in use meanwhile is due")
}
