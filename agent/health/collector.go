// SPDX-License-Identifier: Apache-2.0

package health

import (
	"github.com/prometheus/client_golang/prometheus"
)

// There are series for paths, of which a node has eight at most, and none for peers.
var (
	pathLabel = []string{"path"}

	pathPeers = describe("path_peers", "Other nodes on the path, by what probes say of the path to them.", "path", "state")
	pathRTT   = describe("path_rtt_seconds", "Median over the other nodes of the path's smoothed round-trip time.", pathLabel...)
	pathLoss  = describe("path_loss_ratio", "Mean over the other nodes of the share of the latest probes that was lost.", pathLabel...)

	pathDistant = describe("path_distant_peers", "Other nodes to which a packet and its answer take much longer by the path than by others.", pathLabel...)

	probesSent     = describe("path_probes_sent_total", "Probes sent on the path.", pathLabel...)
	probesAnswered = describe("path_probes_answered_total", "Probes that were answered.", pathLabel...)
	probesLost     = describe("path_probes_lost_total",
		"Probes that were lost: not answered, while the same node answered on another path.", pathLabel...)

	probesUnsent   = describe("probes_unsent_total", "Probes that the kernel did not take.")
	answersUnasked = describe("probe_answers_unasked_total", "Answers to no probe, late by more than a second, or from elsewhere.")
	requestsServed = describe("probe_requests_answered_total", "Probes of other nodes that were answered.")
	requestsFailed = describe("probe_requests_failed_total", "Probes of other nodes whose answer could not be sent.")
	stalledSeconds = describe("probe_stalled_seconds_total", "Time in which the prober was held up, and judged nothing.")
)

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("braid_"+name, help, labels, nil)
}

// totals count the probes of one path.
type totals struct{ sent, answered, lost uint64 }

// Collector offers what a Prober and a Responder know and count.
type Collector struct {
	prober    *Prober
	responder *Responder
}

// NewCollector offers these two.
func NewCollector(prober *Prober, responder *Responder) *Collector {
	return &Collector{prober: prober, responder: responder}
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(descriptions chan<- *prometheus.Desc) {
	for _, description := range []*prometheus.Desc{
		pathPeers, pathRTT, pathLoss, pathDistant, probesSent, probesAnswered, probesLost,
		probesUnsent, answersUnasked, requestsServed, requestsFailed, stalledSeconds,
	} {
		descriptions <- description
	}
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(metrics chan<- prometheus.Metric) {
	emit := func(description *prometheus.Desc, kind prometheus.ValueType, value float64, labels ...string) {
		metrics <- prometheus.MustNewConstMetric(description, kind, value, labels...)
	}
	c.prober.mu.Lock()
	view, counts := c.prober.view(), c.prober.counts
	byPath := map[string]totals{}
	for path, total := range c.prober.tracker.totals {
		byPath[path] = *total
	}
	c.prober.mu.Unlock()
	c.responder.mu.Lock()
	served := c.responder.counts
	c.responder.mu.Unlock()

	for path, summary := range view.Summaries() {
		emit(pathPeers, prometheus.GaugeValue, float64(summary.Alive), path, Alive.String())
		emit(pathPeers, prometheus.GaugeValue, float64(summary.Dead), path, Dead.String())
		emit(pathPeers, prometheus.GaugeValue, float64(summary.Unknown), path, Unknown.String())
		if summary.MedianRTT > 0 {
			emit(pathRTT, prometheus.GaugeValue, summary.MedianRTT.Seconds(), path)
		}
		emit(pathLoss, prometheus.GaugeValue, summary.Loss, path)
		emit(pathDistant, prometheus.GaugeValue, float64(len(summary.Distant)), path)
	}
	for path, total := range byPath {
		emit(probesSent, prometheus.CounterValue, float64(total.sent), path)
		emit(probesAnswered, prometheus.CounterValue, float64(total.answered), path)
		emit(probesLost, prometheus.CounterValue, float64(total.lost), path)
	}
	emit(probesUnsent, prometheus.CounterValue, float64(counts.unsent))
	emit(answersUnasked, prometheus.CounterValue, float64(counts.unasked))
	emit(stalledSeconds, prometheus.CounterValue, counts.stalled.Seconds())
	emit(requestsServed, prometheus.CounterValue, float64(served.answered))
	emit(requestsFailed, prometheus.CounterValue, float64(served.failed))
}
