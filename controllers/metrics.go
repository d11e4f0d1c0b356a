// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"sync/atomic"

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
		Help: "Events about hints of pods that have no effect, by outcome: written, withheld because the pod had many, dropped because too many waited, or failed.",
	}, []string{"outcome"})
)

// trafficCollector counts the pods of each policy by what their traffic does.
type trafficCollector struct {
	description *prometheus.Desc
	told        atomic.Pointer[verdicts] // nobody changes one that was stored
}

var policyPods = &trafficCollector{description: prometheus.NewDesc("braid_controller_policy_pods",
	"Pods that the policy decides for, by what their traffic does: Spread, or the reason why it is not.", []string{"kind", "namespace", "policy", "reason"}, nil)}

// Describe says which metric there is.
func (c *trafficCollector) Describe(descriptions chan<- *prometheus.Desc) {
	descriptions <- c.description
}

// Collect counts by the statuses that were told last.
func (c *trafficCollector) Collect(metrics chan<- prometheus.Metric) {
	told := c.told.Load()
	if told == nil {
		return
	}
	for of, verdict := range *told {
		for reason, count := range verdict.traffic {
			metrics <- prometheus.MustNewConstMetric(c.description, prometheus.GaugeValue, float64(count), of.Kind, of.Namespace, of.Name, reason)
		}
	}
}

func init() { metrics.Registry.MustRegister(compileDuration, planWrites, hintEvents, policyPods) }
