// SPDX-License-Identifier: Apache-2.0

package announcements

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

var keptBack = prometheus.NewDesc("braid_join_answers_kept_back_total",
	"Answers to joins of peers that were kept back because the join was not finished.", nil, nil)

// Describe implements prometheus.Collector.
func (h *Holder) Describe(descriptions chan<- *prometheus.Desc) { descriptions <- keptBack }

// Collect implements prometheus.Collector. The count is pinned: it goes on while no agent
// runs.
func (h *Holder) Collect(metrics chan<- prometheus.Metric) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	if !h.loaded.Is() {
		return
	}
	count, err := h.keptBack()
	if err != nil {
		metrics <- prometheus.NewInvalidMetric(keptBack, err)
		return
	}
	metrics <- prometheus.MustNewConstMetric(keptBack, prometheus.CounterValue, float64(count))
}

func (h *Holder) keptBack() (sum uint64, err error) {
	var each []uint64 // of a CPU
	if err := h.loaded.Value.KeptBack.Lookup(uint32(0), &each); err != nil {
		return 0, fmt.Errorf("reading how many answers to joins were kept back: %w", err)
	}
	for _, count := range each {
		sum += count
	}
	return sum, nil
}
