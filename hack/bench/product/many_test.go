// SPDX-License-Identifier: Apache-2.0

package product

import (
	"testing"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/hack/bench/rig"
	"braid.dev/braid/internal/lab/traffic"
)

// An experiment whose figures are not declared fails when it has measured them all.
func TestAllFiguresOfManyConnectionsAreDeclared(t *testing.T) {
	results := map[string]manyResult{}
	for way := range manyWays {
		results[way] = manyResult{&traffic.Result{Mbit: 10, ConnectionMbit: []float64{1, 2, 3, 4}}, 1}
	}
	for _, one := range experiments {
		if about := one.About(); about.Name == "many" {
			m := rig.NewMeasurement(rig.Options{}, about.Figures)
			addMany(m, "many.connections100.", results)
			require.NoError(t, m.Undeclared())
			require.InDelta(t, 1, m.Last("many.connections100.slowest_tenth_to_tcp"), 0)
			return
		}
	}
	t.Fatal("there is no experiment of many connections")
}
