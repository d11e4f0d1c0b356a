// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"sync/atomic"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
)

var (
	pathLabel = []string{"path"}

	pathUp = describe("path_up",
		"1 while the path can be used on the node, 0 while its NIC is down, has no carrier or address, or is not there.", pathLabel)
	pathCapacity = describe("path_capacity_bits_per_second",
		"What the path's NIC can carry in each direction, as the path says.", pathLabel)
	nicSentBytes = describe("path_nic_sent_bytes_total",
		"Bytes that the path's NIC sent, of whomever, as the kernel counts them.", pathLabel)
	nicReceivedBytes = describe("path_nic_received_bytes_total",
		"Bytes that the path's NIC received, of whomever, as the kernel counts them.", pathLabel)
)

// Path is a path as the node has it.
type Path struct {
	Up        bool
	Interface int   // index of the NIC; 0 where there is none
	Capacity  int64 // in bits a second; 0 where it is not known
}

// NICBytes tells what the NIC with this index has sent and received, and false where there is
// no such NIC any more.
type NICBytes func(index int) (sent, received uint64, found bool, err error)

// Paths tells of each path that the node is to have whether it can be used, and how much its
// NIC carries. What probes find vanishes with the NIC; that it is down stays. It is safe for
// concurrent use.
type Paths struct {
	nic NICBytes
	log logr.Logger
	all atomic.Pointer[map[string]Path]
}

// NewPaths knows of no path yet.
func NewPaths(nic NICBytes, log logr.Logger) *Paths { return &Paths{nic: nic, log: log} }

// Set takes all paths of the node, by name; nobody changes them afterwards.
func (p *Paths) Set(all map[string]Path) { p.all.Store(&all) }

// Describe implements prometheus.Collector.
func (p *Paths) Describe(descriptions chan<- *prometheus.Desc) {
	for _, description := range []*prometheus.Desc{pathUp, pathCapacity, nicSentBytes, nicReceivedBytes} {
		descriptions <- description
	}
}

// Collect implements prometheus.Collector.
func (p *Paths) Collect(metrics chan<- prometheus.Metric) {
	all := p.all.Load()
	if all == nil {
		return
	}
	for name, path := range *all {
		up := 0.0
		if path.Up {
			up = 1
		}
		metrics <- prometheus.MustNewConstMetric(pathUp, prometheus.GaugeValue, up, name)
		if path.Capacity > 0 {
			metrics <- prometheus.MustNewConstMetric(pathCapacity, prometheus.GaugeValue, float64(path.Capacity), name)
		}
		if path.Interface > 0 {
			p.collectNIC(metrics, name, path.Interface)
		}
	}
}

func (p *Paths) collectNIC(metrics chan<- prometheus.Metric, name string, index int) {
	sent, received, found, err := p.nic(index)
	if err != nil {
		p.log.Error(err, "failed to read for metrics what a NIC carried", "path", name)
	}
	if err != nil || !found {
		return
	}
	metrics <- prometheus.MustNewConstMetric(nicSentBytes, prometheus.CounterValue, float64(sent), name)
	metrics <- prometheus.MustNewConstMetric(nicReceivedBytes, prometheus.CounterValue, float64(received), name)
}
