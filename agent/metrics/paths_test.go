// SPDX-License-Identifier: Apache-2.0

package metrics_test

import (
	"errors"
	"testing"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"braid.dev/braid/agent/metrics"
)

// byPath are the values of a collector whose series have a path alone, by metric and path.
func byPath(t *testing.T, collector prometheus.Collector) map[string]float64 {
	t.Helper()
	found := map[string]float64{}
	for _, family := range gather(t, collector) {
		for _, metric := range family.GetMetric() {
			found[family.GetName()+" "+metric.GetLabel()[0].GetValue()] = metric.GetGauge().GetValue() + metric.GetCounter().GetValue()
		}
	}
	return found
}

func TestAPathWhoseNICIsDownKeepsItsSeries(t *testing.T) {
	paths := metrics.NewPaths(nil, logr.Discard())
	require.Empty(t, byPath(t, paths), "nothing is known before the first round")
	paths.Set(map[string]metrics.Path{"blue": {Up: true}, "green": {}})
	require.Equal(t, map[string]float64{"braid_path_up blue": 1, "braid_path_up green": 0}, byPath(t, paths))
	paths.Set(map[string]metrics.Path{"blue": {Up: true}})
	require.Equal(t, map[string]float64{"braid_path_up blue": 1}, byPath(t, paths), "a path that is deleted is none that is down")
}

func TestEachNICTellsWhatItCarriesAndCould(t *testing.T) {
	carried := map[int]uint64{2: 1000, 3: 3000}
	paths := metrics.NewPaths(func(index int) (sent, received uint64, found bool, err error) {
		if index == 4 {
			return 0, 0, false, errors.New("no answer")
		}
		return carried[index], carried[index] / 2, carried[index] > 0, nil
	}, logr.Discard())
	paths.Set(map[string]metrics.Path{
		"blue": {Up: true, Interface: 2, Capacity: 1e9}, "green": {Interface: 3}, "red": {Interface: 4}, "gone": {Interface: 5},
	})
	require.Equal(t, map[string]float64{
		"braid_path_up blue": 1, "braid_path_up green": 0, "braid_path_up red": 0, "braid_path_up gone": 0,
		"braid_path_capacity_bits_per_second blue": 1e9,
		"braid_path_nic_sent_bytes_total blue":     1000, "braid_path_nic_received_bytes_total blue": 500,
		"braid_path_nic_sent_bytes_total green": 3000, "braid_path_nic_received_bytes_total green": 1500,
	}, byPath(t, paths))
}
