// SPDX-License-Identifier: Apache-2.0

package metrics_test

import (
	"fmt"
	"testing"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"braid.dev/braid/agent/metrics"
	"braid.dev/braid/internal/agentapi"
)

// sentBytes are the bytes sent by pod.
func sentBytes(t *testing.T, collector prometheus.Collector) map[string]float64 {
	t.Helper()
	found := map[string]float64{}
	for _, family := range gather(t, collector) {
		for _, metric := range family.GetMetric() {
			if family.GetName() == "braid_endpoint_sent_bytes_total" {
				found[metric.GetLabel()[1].GetValue()] = metric.GetCounter().GetValue()
			}
		}
	}
	return found
}

func TestOfATenantWithManyPodsThoseThatMoveMostAreShown(t *testing.T) {
	const pods, shown = 300, 128
	source := &changing{}
	for i := range pods {
		endpoint := fmt.Sprintf("team/pod-%03d", i)
		source.subflows = append(source.subflows, subflow(endpoint, 1, 0, uint64(i)))
		for rule := range 64 {
			source.rules = append(source.rules, agentapi.Rule{Endpoint: endpoint, Policy: "p", Name: fmt.Sprint(rule)})
		}
	}
	source.subflows = append(source.subflows, subflow("quiet/pod", 1, 0, 1))
	collector := metrics.NewCollector(source, logr.Discard())
	first := sentBytes(t, collector)
	require.Len(t, first, shown+1+1)
	require.Contains(t, first, "pod-299")
	require.Contains(t, first, "pod", "another tenant's")
	require.EqualValues(t, 171*172/2, first["_others"])
	if count := series(t, collector); count > 1024*3+130*12 {
		t.Errorf("there are %d series", count)
	}

	source.subflows[0] = subflow("team/pod-000", 1, 0, 100_000) // moves most from now on
	source.subflows[1] = subflow("team/pod-001", 1, 0, 11)
	second := sentBytes(t, collector)
	require.EqualValues(t, 100_000, second["pod-000"])
	require.NotContains(t, second, "pod-172")
	require.Equal(t, first["_others"]+10, second["_others"], "what is added up does not fall")
}
