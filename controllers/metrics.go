// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

var (
	compileDuration = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "braid_controller_compile_duration_seconds",
		Help:    "Time to compile the plans that changes concern, from reading the objects to the result.",
		Buckets: prometheus.ExponentialBuckets(0.001, 2, 12),
	})
	planWrites = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "braid_controller_plan_writes_total",
		Help: "Plans written, by operation.",
	}, []string{"operation"})
	hintEvents = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "braid_controller_hint_events_total",
		Help: "Events about hints of pods that have no effect, by outcome: written, dropped because too many waited, or failed.",
	}, []string{"outcome"})
)

func init() { metrics.Registry.MustRegister(compileDuration, planWrites, hintEvents) }
