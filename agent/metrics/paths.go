// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

var pathUp = prometheus.NewDesc("braid_path_up",
	"1 while the path can be used on the node, 0 while its NIC is down, has no carrier or address, or is not there.", []string{"path"}, nil)

// Paths tells of each path that the node is to have whether it can be used. What probes find
// vanishes with the NIC; this stays. It is safe for concurrent use.
type Paths struct {
	up atomic.Pointer[map[string]bool]
}

// Set takes all paths of the node, by name; nobody changes them afterwards.
func (p *Paths) Set(up map[string]bool) { p.up.Store(&up) }

// Describe implements prometheus.Collector.
func (p *Paths) Describe(descriptions chan<- *prometheus.Desc) { descriptions <- pathUp }

// Collect implements prometheus.Collector.
func (p *Paths) Collect(metrics chan<- prometheus.Metric) {
	all := p.up.Load()
	if all == nil {
		return
	}
	for path, up := range *all {
		value := 0.0
		if up {
			value = 1
		}
		metrics <- prometheus.MustNewConstMetric(pathUp, prometheus.GaugeValue, value, path)
	}
}
