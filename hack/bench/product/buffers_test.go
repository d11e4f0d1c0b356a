// SPDX-License-Identifier: Apache-2.0

package product

import (
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/hack/bench/rig"
)

func TestTheCellsOfTheBuffersExperimentHaveNamesOfTheirOwn(t *testing.T) {
	seen := map[string]bool{}
	for _, second := range secondPaths {
		for _, c := range cellsOf(second) {
			require.False(t, seen[c.name()], c.name())
			seen[c.name()] = true
		}
	}
	require.GreaterOrEqual(t, len(seen), 40)
}

func TestTheWorstCellOfTheBuffersExperimentIsThatWithTheLeastMedian(t *testing.T) {
	m := rig.NewMeasurement(rig.Options{Trials: 3, Cases: regexp.MustCompile("")}, []rig.Unit{{"buffers.*", ""}})
	cells := cellsOf(secondPaths[0])
	m.Add(cells[0].name()+".to_tcp", 0.2, 1.5, 1.4)
	m.Add(cells[1].name()+".to_tcp", 0.9, 0.8, 1.9)
	m.Add(cells[0].name()+".stalls", 1, 0, 0)
	m.Add(cells[1].name()+".stalls", 0, 0, 1)
	summarize(m)
	require.Equal(t, []float64{0.9}, m.Values("buffers.worst_cell_to_tcp"))
	require.Equal(t, []float64{2}, m.Values("buffers.stalls"))
}
