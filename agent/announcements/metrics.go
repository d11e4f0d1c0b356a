// SPDX-License-Identifier: Apache-2.0

package announcements

import (
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"github.com/prometheus/client_golang/prometheus"

	"braid.dev/braid/agent/entries"
	"braid.dev/braid/bpf"
	"braid.dev/braid/bpf/announcements"
)

var (
	keptBack = prometheus.NewDesc("braid_join_answers_kept_back_total",
		"Answers to joins of peers that were kept back because the join was not finished.", nil, nil)
	turnsLeft = prometheus.NewDesc("braid_announcement_turns_left",
		"How many connections of a namespace that are old enough and have moved little get what they wait for at once; 0 while they wait for turns.", []string{"namespace"}, nil)
)

// Describe implements prometheus.Collector.
func (h *Holder) Describe(descriptions chan<- *prometheus.Desc) {
	descriptions <- keptBack
	descriptions <- turnsLeft
}

// Collect implements prometheus.Collector. The counts are pinned: they go on while no agent
// runs.
func (h *Holder) Collect(metrics chan<- prometheus.Metric) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	if !h.loaded.Is() {
		return
	}
	metrics <- counted(keptBack, h.loaded.Value.KeptBack)
	h.collectTurns(metrics)
}

// counted is what a program has counted, on all CPUs.
func counted(of *prometheus.Desc, in *ebpf.Map) prometheus.Metric {
	sum, err := entries.Sum(in, 0)
	if err != nil {
		return prometheus.NewInvalidMetric(of, fmt.Errorf("reading what the program at the pods' interfaces has counted: %w", err))
	}
	return prometheus.MustNewConstMetric(of, prometheus.CounterValue, float64(sum))
}

// collectTurns is of the namespaces any of whose connections took a turn.
func (h *Holder) collectTurns(metrics chan<- prometheus.Metric) {
	now := bpf.Now()
	for tenant, key := range h.rooms {
		var until uint64
		switch err := h.loaded.Value.Turns.Lookup(key, &until); {
		case errors.Is(err, ebpf.ErrKeyNotExist):
		case err != nil:
			metrics <- prometheus.NewInvalidMetric(turnsLeft, fmt.Errorf("reading the turns of namespace %s: %w", tenant, err))
		default:
			metrics <- prometheus.MustNewConstMetric(turnsLeft, prometheus.GaugeValue, float64(turnsAt(now, time.Duration(until))), tenant)
		}
	}
}

// turnsAt is how many turns may be taken at once where those until a time are taken.
func turnsAt(now, until time.Duration) int {
	if until > now {
		return 0
	}
	return int(min((now-until)/announcements.TurnEvery+1, announcements.TurnsAtOnce))
}
