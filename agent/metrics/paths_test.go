// SPDX-License-Identifier: Apache-2.0

package metrics_test

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"braid.dev/braid/agent/metrics"
)

func TestAPathWhoseNICIsDownKeepsItsSeries(t *testing.T) {
	paths, registry := &metrics.Paths{}, prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(paths))
	values := func() map[string]float64 {
		found := map[string]float64{}
		families, err := registry.Gather()
		require.NoError(t, err)
		for _, family := range families {
			for _, metric := range family.GetMetric() {
				found[metric.GetLabel()[0].GetValue()] = metric.GetGauge().GetValue()
			}
		}
		return found
	}
	require.Empty(t, values(), "nothing is known before the first round")
	paths.Set(map[string]bool{"blue": true, "green": false})
	require.Equal(t, map[string]float64{"blue": 1, "green": 0}, values())
	paths.Set(map[string]bool{"blue": true})
	require.Equal(t, map[string]float64{"blue": 1}, values(), "a path that is deleted is none that is down")
}
