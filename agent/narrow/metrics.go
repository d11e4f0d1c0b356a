// SPDX-License-Identifier: Apache-2.0

package narrow

import "github.com/prometheus/client_golang/prometheus"

var sharePath = prometheus.NewDesc("braid_connections_share_path",
	"Connections that send much whose subflows all leave by the best of their paths, because their receivers' windows or send buffers are too small for paths that differ, or what they send in bursts waits on another one.", nil, nil)

// Describe implements prometheus.Collector.
func (n *Narrow) Describe(descriptions chan<- *prometheus.Desc) { descriptions <- sharePath }

// Collect implements prometheus.Collector.
func (n *Narrow) Collect(metrics chan<- prometheus.Metric) {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	metrics <- prometheus.MustNewConstMetric(sharePath, prometheus.GaugeValue, float64(n.shared))
}
