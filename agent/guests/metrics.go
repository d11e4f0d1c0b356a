// SPDX-License-Identifier: Apache-2.0

package guests

import (
	"github.com/prometheus/client_golang/prometheus"

	"braid.dev/braid/bpf/guest"
)

// counter is a metric, and where its value is.
type counter struct {
	description *prometheus.Desc
	of          func(*guest.FromGuestGuestCounts) uint64
}

func newCounter(name, help string, of func(*guest.FromGuestGuestCounts) uint64) counter {
	return counter{prometheus.NewDesc(name, help, nil, nil), of}
}

var counters = []counter{
	newCounter("braid_guest_connections_total", "MPTCP connections that VMs began and whose further subflows the node manages.",
		func(c *guest.FromGuestGuestCounts) uint64 { return c.Connections }),
	newCounter("braid_guest_announcements_total", "Announcements of ports to VMs.",
		func(c *guest.FromGuestGuestCounts) uint64 { return c.Announcements }),
	newCounter("braid_guest_echoes_total", "Announcements that VMs echoed.",
		func(c *guest.FromGuestGuestCounts) uint64 { return c.Echoes }),
	newCounter("braid_guest_joins_total", "Joins of VMs to announced ports.",
		func(c *guest.FromGuestGuestCounts) uint64 { return c.Joins }),
	newCounter("braid_guest_joins_refused_total", "Joins of VMs that were dropped because the real port makes them another flow.",
		func(c *guest.FromGuestGuestCounts) uint64 { return c.Refused }),
}

// Describe implements prometheus.Collector.
func (p *Part) Describe(descriptions chan<- *prometheus.Desc) {
	for _, one := range counters {
		descriptions <- one.description
	}
}

// Collect implements prometheus.Collector. The counts are pinned: they go on while no
// agent runs.
func (p *Part) Collect(metrics chan<- prometheus.Metric) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if !p.loaded.Is() {
		return
	}
	counts, err := p.countsOf(all)
	for _, one := range counters {
		if err != nil {
			metrics <- prometheus.NewInvalidMetric(one.description, err)
			continue
		}
		metrics <- prometheus.MustNewConstMetric(one.description, prometheus.CounterValue, float64(one.of(&counts)))
	}
}
