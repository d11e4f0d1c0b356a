// SPDX-License-Identifier: Apache-2.0

package crowd

import "github.com/prometheus/client_golang/prometheus"

var waitForRoom = prometheus.NewDesc("braid_subflows_wait_for_room",
	"1 while the namespace's connections fill the node's paths, and wait for further subflows until there is room.", []string{"namespace"}, nil)

// Describe implements prometheus.Collector.
func (c *Crowd) Describe(descriptions chan<- *prometheus.Desc) { descriptions <- waitForRoom }

// Collect implements prometheus.Collector.
func (c *Crowd) Collect(metrics chan<- prometheus.Metric) {
	for _, tenant := range c.bound() {
		metrics <- prometheus.MustNewConstMetric(waitForRoom, prometheus.GaugeValue, 1, tenant)
	}
}
