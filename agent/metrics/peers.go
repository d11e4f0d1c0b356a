// SPDX-License-Identifier: Apache-2.0

package metrics

import "github.com/prometheus/client_golang/prometheus"

// NewUnsteeredPeers counts the other nodes to which a node steers nothing because there
// are too many.
func NewUnsteeredPeers() prometheus.Gauge {
	return prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "braid_agent_unsteered_peers",
		Help: "Other nodes to which nothing is steered, because there are more than the node has room for.",
	})
}
