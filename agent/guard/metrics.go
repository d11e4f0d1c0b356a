// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"github.com/prometheus/client_golang/prometheus"

	"braid.dev/braid/bpf/guard"
)

// The metrics have series for namespaces and paths, and for pods only where
// something of theirs was dropped: at most 1024 of those, 8 for each namespace.
var (
	sentBytes = prometheus.NewDesc("braid_guard_sent_bytes_total",
		"Bytes on the wire that guarded pods of the namespace sent on the path.", []string{"namespace", "path"}, nil)
	droppedBytes = prometheus.NewDesc("braid_guard_dropped_bytes_total",
		"Bytes beyond a limit that pods of the namespace would have sent on the path.", []string{"namespace", "path"}, nil)
	droppedPackets = prometheus.NewDesc("braid_guard_dropped_packets_total",
		"Packets beyond a limit that pods of the namespace would have sent on the path.", []string{"namespace", "path"}, nil)
	ceilings = prometheus.NewDesc("braid_guard_ceiling_bits_per_second",
		"The most that the pods of the namespace may send on the path from this node.", []string{"namespace", "path"}, nil)
	spoofedPackets = prometheus.NewDesc("braid_guard_spoofed_packets_total",
		"Packets of the pod that were dropped because their source was not an address of its own.", []string{"namespace", "pod"}, nil)
	unparsablePackets = prometheus.NewDesc("braid_guard_unparsable_packets_total",
		"Packets to and from the pod that were dropped because rules cannot see their TCP header.", []string{"namespace", "pod"}, nil)
)

// Describe says which metrics there are.
func (g *Guard) Describe(descriptions chan<- *prometheus.Desc) {
	for _, description := range []*prometheus.Desc{sentBytes, droppedBytes, droppedPackets, ceilings, spoofedPackets, unparsablePackets} {
		descriptions <- description
	}
}

// elsewhere is the path of NICs that belong to none.
const elsewhere = "none"

// tally is what the pods of a namespace did on one path.
type tally struct{ sent, dropped, packets uint64 }

// Collect reads the counters. Those of pods that are gone are gone with them: to
// Prometheus that looks like a restart.
func (g *Guard) Collect(metrics chan<- prometheus.Metric) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.loaded.Is() {
		return
	}
	count := func(description *prometheus.Desc, value uint64, labels ...string) {
		metrics <- prometheus.MustNewConstMetric(description, prometheus.CounterValue, float64(value), labels...)
	}
	tallies := map[string]*[slots + 1]tally{}
	for _, endpoint := range g.rows.endpoints {
		var usage guard.MeterUsage
		if err := g.loaded.Value.maps().Usages.Lookup(endpoint.Number, &usage); err != nil {
			metrics <- prometheus.NewInvalidMetric(sentBytes, err)
			return
		}
		if usage.SpoofedPackets > 0 {
			count(spoofedPackets, usage.SpoofedPackets, endpoint.Namespace, endpoint.Name)
		}
		if usage.UnparsablePackets > 0 {
			count(unparsablePackets, usage.UnparsablePackets, endpoint.Namespace, endpoint.Name)
		}
		of := tallies[endpoint.Namespace]
		if of == nil {
			of = &[slots + 1]tally{}
			tallies[endpoint.Namespace] = of
		}
		for i := range of {
			of[i].sent += usage.Sent[i]
			of[i].dropped += usage.Dropped[i]
			of[i].packets += usage.DroppedPackets[i]
		}
	}
	names := g.pathNames()
	for namespace, of := range tallies {
		for i, name := range names {
			count(sentBytes, of[i].sent, namespace, name)
			count(droppedBytes, of[i].dropped, namespace, name)
			count(droppedPackets, of[i].packets, namespace, name)
			if ceiling := g.rows.tenants[namespace].ceiling(i); ceiling > 0 {
				metrics <- prometheus.MustNewConstMetric(ceilings, prometheus.GaugeValue, ceiling, namespace, name)
			}
		}
	}
}

// pathNames are those of the node's paths by slot, and that of no path.
func (g *Guard) pathNames() map[int]string {
	names := map[int]string{noPath: elsewhere}
	for _, path := range g.rows.paths {
		names[int(path.number)] = path.name
	}
	return names
}

func (t *tenantRow) ceiling(slot int) float64 {
	if slot >= slots {
		return 0
	}
	return t.ceilings[slot]
}
