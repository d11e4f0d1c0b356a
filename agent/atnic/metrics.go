// SPDX-License-Identifier: Apache-2.0

package atnic

import (
	"github.com/prometheus/client_golang/prometheus"

	"braid.dev/braid/api/v1alpha1"
)

var (
	droppedPackets = prometheus.NewDesc("braid_xdp_dropped_packets_total",
		"Packets that rules dropped at the NIC's XDP hook.", []string{"path", "nic"}, nil)
	refusedNICs = prometheus.NewDesc("braid_xdp_refused",
		"1 for a NIC that agent.xdp: Native asks for and where rules act at TC all the same.", []string{"path", "nic", "reason"}, nil)
)

// Describe implements prometheus.Collector.
func (p *Part) Describe(descriptions chan<- *prometheus.Desc) {
	descriptions <- droppedPackets
	descriptions <- refusedNICs
}

// Collect implements prometheus.Collector.
func (p *Part) Collect(metrics chan<- prometheus.Metric) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	for index, is := range p.nics {
		if is.state != v1alpha1.XDPNative {
			metrics <- prometheus.MustNewConstMetric(refusedNICs, prometheus.GaugeValue, 1, is.path, is.name, string(is.state))
			continue
		}
		packets, err := p.objects.dropped(index)
		if err != nil {
			metrics <- prometheus.NewInvalidMetric(droppedPackets, err)
			continue
		}
		metrics <- prometheus.MustNewConstMetric(droppedPackets, prometheus.CounterValue, float64(packets), is.path, is.name)
	}
}
