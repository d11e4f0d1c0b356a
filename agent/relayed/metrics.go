// SPDX-License-Identifier: Apache-2.0

package relayed

import (
	"maps"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/prometheus/client_golang/prometheus"

	"braid.dev/braid/agent/attach"
	"braid.dev/braid/bpf/proxy"
)

var (
	relayedNow = prometheus.NewDesc("braid_proxy_connections",
		"Connections that the node's proxy relays (sockets.mode: Proxy), or is about to.", nil, nil)
	begun = prometheus.NewDesc("braid_proxy_connections_total",
		"What became of connections that the node's proxy might have relayed, since it began: Relayed, or untouched because the server speaks no MPTCP (PlainPeer), "+
			"did not answer (NoAnswer), or there was no room for more (NoRoom, Busy); and how many of those relayed were reset as too much waited in them (Reset).", []string{"outcome"}, nil)
)

var labels = map[uint32]string{
	proxy.OutcomeRelayed: "Relayed", proxy.OutcomePlainPeer: "PlainPeer", proxy.OutcomeNoAnswer: "NoAnswer",
	proxy.OutcomeNoRoom: "NoRoom", proxy.OutcomeBusy: "Busy", proxy.OutcomeReset: "Reset",
}

// Describe implements prometheus.Collector.
func (p *Part) Describe(descriptions chan<- *prometheus.Desc) {
	descriptions <- relayedNow
	descriptions <- begun
}

// Collect implements prometheus.Collector. There are no metrics while no proxy is there.
func (p *Part) Collect(metrics chan<- prometheus.Metric) {
	p.mu.Lock()
	interfaces := slices.Collect(maps.Keys(p.told))
	p.mu.Unlock()
	for _, index := range interfaces {
		for _, id := range attach.ProgramsAt(index, ebpf.AttachTCXIngress) {
			maps, _ := mapsOf(id)
			if readNamed(maps, outcomes, func(m *ebpf.Map) { collect(m, metrics) }) {
				return // a proxy counts for all its clients
			}
		}
	}
}

func collect(counted *ebpf.Map, metrics chan<- prometheus.Metric) {
	var count uint64
	if counted.Lookup(uint32(proxy.OutcomeNow), &count) == nil {
		metrics <- prometheus.MustNewConstMetric(relayedNow, prometheus.GaugeValue, float64(count))
	}
	for kind, label := range labels {
		if counted.Lookup(kind, &count) == nil {
			metrics <- prometheus.MustNewConstMetric(begun, prometheus.CounterValue, float64(count), label)
		}
	}
}
