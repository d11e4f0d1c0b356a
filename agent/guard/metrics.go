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
	newPodInterfaces = prometheus.NewDesc("braid_guard_new_pod_interfaces",
		"Interfaces of pods that are guarded before it is known who they are.", nil, nil)
	unparsablePackets = prometheus.NewDesc("braid_guard_unparsable_packets_total",
		"Packets to and from the pod that were dropped because rules cannot see their TCP header.", []string{"namespace", "pod"}, nil)
)

// Describe says which metrics there are.
func (g *Guard) Describe(descriptions chan<- *prometheus.Desc) {
	for _, description := range []*prometheus.Desc{sentBytes, droppedBytes, droppedPackets, ceilings, spoofedPackets, unparsablePackets, newPodInterfaces} {
		descriptions <- description
	}
}

// elsewhere is the path of NICs that belong to none.
const elsewhere = "none"

// tally is what the pods of a namespace did on one path.
type tally struct{ sent, dropped, packets uint64 }

// tallies are by path, and of no path at last.
type tallies [slots + 1]tally

// Collect reads the counters. Those of pods that are gone are gone with them: to
// Prometheus that looks like a restart.
func (g *Guard) Collect(metrics chan<- prometheus.Metric) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.loaded.Is() {
		return
	}
	if held, guarded := g.newPods.count(); guarded {
		metrics <- prometheus.MustNewConstMetric(newPodInterfaces, prometheus.GaugeValue, float64(held))
	}
	tallies, err := g.collectPods(metrics)
	if err != nil {
		metrics <- prometheus.NewInvalidMetric(sentBytes, err)
		return
	}
	g.collectTenants(metrics, tallies)
}

func count(metrics chan<- prometheus.Metric, description *prometheus.Desc, value uint64, labels ...string) {
	metrics <- prometheus.MustNewConstMetric(description, prometheus.CounterValue, float64(value), labels...)
}

// collectPods reads what the programs counted of each pod, and adds it up by namespace.
func (g *Guard) collectPods(metrics chan<- prometheus.Metric) (map[string]*tallies, error) {
	all := map[string]*tallies{}
	for _, endpoint := range g.rows.endpoints {
		var usage guard.MeterUsage
		if err := g.loaded.Value.maps().Usages.Lookup(endpoint.Number, &usage); err != nil {
			return nil, err
		}
		if usage.SpoofedPackets > 0 {
			count(metrics, spoofedPackets, usage.SpoofedPackets, endpoint.Namespace, endpoint.Name)
		}
		if usage.UnparsablePackets > 0 {
			count(metrics, unparsablePackets, usage.UnparsablePackets, endpoint.Namespace, endpoint.Name)
		}
		of := all[endpoint.Namespace]
		if of == nil {
			of = &tallies{}
			all[endpoint.Namespace] = of
		}
		of.add(&usage)
	}
	return all, nil
}

func (t *tallies) add(usage *guard.MeterUsage) {
	for i := range t {
		t[i].sent += usage.Sent[i]
		t[i].dropped += usage.Dropped[i]
		t[i].packets += usage.DroppedPackets[i]
	}
}

func (g *Guard) collectTenants(metrics chan<- prometheus.Metric, all map[string]*tallies) {
	names := g.pathNames()
	for namespace, of := range all {
		for i, name := range names {
			count(metrics, sentBytes, of[i].sent, namespace, name)
			count(metrics, droppedBytes, of[i].dropped, namespace, name)
			count(metrics, droppedPackets, of[i].packets, namespace, name)
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
