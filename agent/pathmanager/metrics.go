// SPDX-License-Identifier: Apache-2.0

package pathmanager

import (
	"maps"

	"github.com/prometheus/client_golang/prometheus"

	"braid.dev/braid/agent/node"
)

// The metrics have series for tenants with managed pods on the node.
var (
	managedConnections = prometheus.NewDesc("braid_pathmanager_connections",
		"Connections of the namespace's pods that the agent manages.", []string{"namespace"}, nil)
	unmanagedConnections = prometheus.NewDesc("braid_pathmanager_unmanaged_connections_total",
		"Connections that keep their first subflow because the pod's share of those that the agent manages was used.", []string{"namespace"}, nil)
	rescuedConnections = prometheus.NewDesc("braid_pathmanager_rescued_connections_total",
		"Connections that waited for room on the node's paths, stood still, and so got a second subflow without it.", []string{"namespace"}, nil)
	eventsLost = prometheus.NewDesc("braid_pathmanager_events_lost_total",
		"How often events of the namespace's pods were lost because more came than the agent received; it looks for itself then.", []string{"namespace"}, nil)
)

// Describe says which metrics there are.
func (p *Pods) Describe(descriptions chan<- *prometheus.Desc) {
	for _, description := range []*prometheus.Desc{managedConnections, unmanagedConnections, rescuedConnections, eventsLost} {
		descriptions <- description
	}
}

// Collect tells of the tenants that have pods here. Counts of a tenant end with its last
// pod: to Prometheus that looks like a restart.
func (p *Pods) Collect(metrics chan<- prometheus.Metric) {
	p.mu.Lock()
	all := maps.Clone(p.counts)
	p.mu.Unlock()
	for tenant, counts := range all {
		metrics <- prometheus.MustNewConstMetric(managedConnections, prometheus.GaugeValue, float64(p.namespace.Room.Held(tenant)), tenant)
		metrics <- prometheus.MustNewConstMetric(unmanagedConnections, prometheus.CounterValue, float64(counts.Unmanaged.Load()), tenant)
		metrics <- prometheus.MustNewConstMetric(rescuedConnections, prometheus.CounterValue, float64(counts.Rescued.Load()), tenant)
		metrics <- prometheus.MustNewConstMetric(eventsLost, prometheus.CounterValue, float64(counts.EventsLost.Load()), tenant)
	}
}

func (p *Pods) countsOf(tenant string) *Counts {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.counts[tenant] == nil {
		p.counts[tenant] = &Counts{}
	}
	return p.counts[tenant]
}

// forgetTenants drops the counts of those that have no pod here.
func (p *Pods) forgetTenants(model *node.Model) {
	here := map[string]bool{}
	for _, endpoint := range managed(model) {
		here[endpoint.Namespace] = true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.counts, func(tenant string, _ *Counts) bool { return !here[tenant] })
}
