// SPDX-License-Identifier: Apache-2.0

package slow

import "github.com/prometheus/client_golang/prometheus"

var slowPaths = prometheus.NewDesc("braid_path_slow_pairs",
	"Pairs of a pod and another node between which new connections begin on other paths, because they last much longer on this one.", []string{"path"}, nil)

// Describe implements prometheus.Collector.
func (s *Slow) Describe(descriptions chan<- *prometheus.Desc) { descriptions <- slowPaths }

// Collect implements prometheus.Collector.
func (s *Slow) Collect(metrics chan<- prometheus.Metric) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	for number, name := range s.names.paths {
		count := 0
		for _, pair := range s.pairs {
			if pair.paths[number].isKnownSlow() {
				count++
			}
		}
		metrics <- prometheus.MustNewConstMetric(slowPaths, prometheus.GaugeValue, float64(count), name)
	}
}
