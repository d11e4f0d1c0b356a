// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Loop is one of the agent's: a value of the label "loop".
type Loop string

// The agent's loops.
const (
	// LoopNode follows NICs, paths and peers, and steers.
	LoopNode Loop = "node"
	// LoopPods programs pods, and says what became of the plan.
	LoopPods Loop = "pods"
	// LoopRules loads the pods' chains, beside the other loops.
	LoopRules Loop = "rules"
)

// Rounds measures how long the rounds of the agent's loops take. It is safe for
// concurrent use.
type Rounds struct{ durations *prometheus.HistogramVec }

// NewRounds has measured nothing yet.
func NewRounds() *Rounds {
	r := &Rounds{prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "braid_agent_round_duration_seconds",
		Help:    "Time that a round of one of the agent's loops takes, failed ones included.",
		Buckets: prometheus.ExponentialBuckets(0.002, 2, 12), // to 4 s
	}, []string{"loop"})}
	for _, loop := range []Loop{LoopNode, LoopPods, LoopRules} {
		r.durations.WithLabelValues(string(loop)) // there from the start
	}
	return r
}

// Measure does something and counts it as a round of a loop, unless the agent was
// told to end meanwhile.
func (r *Rounds) Measure(ctx context.Context, loop Loop, do func() error) error {
	begun := time.Now()
	err := do()
	if ctx.Err() == nil {
		r.durations.WithLabelValues(string(loop)).Observe(time.Since(begun).Seconds())
	}
	return err
}

// Describe implements prometheus.Collector.
func (r *Rounds) Describe(descriptions chan<- *prometheus.Desc) { r.durations.Describe(descriptions) }

// Collect implements prometheus.Collector.
func (r *Rounds) Collect(metrics chan<- prometheus.Metric) { r.durations.Collect(metrics) }
