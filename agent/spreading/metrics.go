// SPDX-License-Identifier: Apache-2.0

package spreading

import (
	"cmp"

	"github.com/prometheus/client_golang/prometheus"

	"braid.dev/braid/api/v1alpha1"
)

// The metrics have series for namespaces with pods here: by reasons that are told, and by
// paths that were used.
var (
	podsByReason = prometheus.NewDesc("braid_spreading_pods",
		"Pods of the namespace by what their traffic does: Spread, or the reason why it is not.", []string{"namespace", "reason"}, nil)
	sentBytes = prometheus.NewDesc("braid_spreading_sent_bytes_total",
		"Payload that sockets of the namespace's pods sent to other nodes on the path, as far as they lived when they were looked at.", []string{"namespace", "path"}, nil)
	receivedBytes = prometheus.NewDesc("braid_spreading_received_bytes_total",
		"Payload that they received, likewise.", []string{"namespace", "path"}, nil)
)

// withoutPath is the path of what goes by the cluster network's route.
const withoutPath = "none"

// Describe says which metrics there are.
func (s *Spreading) Describe(descriptions chan<- *prometheus.Desc) {
	for _, description := range []*prometheus.Desc{podsByReason, sentBytes, receivedBytes} {
		descriptions <- description
	}
}

// Collect adds the pods of each namespace up. Its counts end with its last pod here: to
// Prometheus that looks like a restart.
func (s *Spreading) Collect(metrics chan<- prometheus.Metric) {
	type label struct{ namespace, of string }
	pods := map[label]int{}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.pods {
		pods[label{p.namespace, cmp.Or(p.settled.told.reason, v1alpha1.ReasonNotReported)}]++
	}
	for at, count := range pods {
		metrics <- prometheus.MustNewConstMetric(podsByReason, prometheus.GaugeValue, float64(count), at.namespace, at.of)
	}
	for namespace, paths := range s.totals {
		for path, total := range paths {
			path = cmp.Or(path, withoutPath)
			metrics <- prometheus.MustNewConstMetric(sentBytes, prometheus.CounterValue, float64(total.sent), namespace, path)
			metrics <- prometheus.MustNewConstMetric(receivedBytes, prometheus.CounterValue, float64(total.received), namespace, path)
		}
	}
}
