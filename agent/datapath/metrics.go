// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"maps"

	"github.com/prometheus/client_golang/prometheus"

	"braid.dev/braid/agent/entries"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/bpf/uplink"
)

// There are series for paths, of which a node has eight at most, and for accounts, of which
// it has 255 at most, and none for peers or flows.
var (
	pathLabel = []string{"path"}

	flowsAvoiding = prometheus.NewDesc("braid_path_flows_avoiding",
		"Flows that avoid the path because it did not answer them, when the flows were looked at last.", pathLabel, nil)
	peersAvoided = prometheus.NewDesc("braid_path_peers_avoided",
		"Other nodes to which such a flow goes.", pathLabel, nil)
	trafficLabels = []string{"path", "namespace", "policy"}

	sentBytes = prometheus.NewDesc("braid_path_sent_bytes_total",
		"Bytes on the wire that flows of the policy's pods in the namespace sent on the path.", trafficLabels, nil)
	sentPackets = prometheus.NewDesc("braid_path_sent_packets_total",
		"Packets that they sent on the path.", trafficLabels, nil)
	receivedBytes = prometheus.NewDesc("braid_path_received_bytes_total",
		"Bytes on the wire that came in for them on the path.", trafficLabels, nil)
	receivedPackets = prometheus.NewDesc("braid_path_received_packets_total",
		"Packets that came in for them on the path.", trafficLabels, nil)

	flowsLeft = prometheus.NewDesc("braid_path_flows_left_total",
		"How often a flow left the path because it did not answer.", pathLabel, nil)
	duplicatesChanged = prometheus.NewDesc("braid_duplicate_acknowledgements_changed_total",
		"Duplicate acknowledgements whose DATA_ACK was made older, because the sender would have sent beyond the window: those that the node's pods sent, and those that they received.", []string{"direction"}, nil)
)

// Describe implements prometheus.Collector.
func (d *Datapath) Describe(descriptions chan<- *prometheus.Desc) {
	for _, description := range []*prometheus.Desc{flowsAvoiding, peersAvoided, flowsLeft, sentBytes, sentPackets, receivedBytes, receivedPackets, duplicatesChanged} {
		descriptions <- description
	}
}

// Collect implements prometheus.Collector. It reads no flow: the sweeps of the table count
// what avoids a path.
func (d *Datapath) Collect(metrics chan<- prometheus.Metric) {
	d.collectTraffic(metrics)
	found, err := d.flows.silences()
	if err != nil {
		d.options.Log.Error(err, "failed to read for metrics how often flows left paths")
	}
	if found == nil {
		return
	}
	for direction, count := range map[string]uint64{"sent": found.withdrawn[uplink.ACKSent], "received": found.withdrawn[uplink.ACKReceived]} {
		metrics <- prometheus.MustNewConstMetric(duplicatesChanged, prometheus.CounterValue, float64(count), direction)
	}
	emit := func(description *prometheus.Desc, kind prometheus.ValueType, value float64, path string) {
		metrics <- prometheus.MustNewConstMetric(description, kind, value, path)
	}
	for path, number := range d.peers.pathNumbers() {
		emit(flowsLeft, prometheus.CounterValue, float64(found.departures[number]), path)
		if found.avoidance != nil {
			emit(flowsAvoiding, prometheus.GaugeValue, float64(found.flows[number]), path)
			emit(peersAvoided, prometheus.GaugeValue, float64(len(found.peers[number])), path)
		}
	}
}

// collectTraffic tells of the node's paths, and of NICs of no path where something was
// counted there.
func (d *Datapath) collectTraffic(metrics chan<- prometheus.Metric) {
	err := d.traffic.each(func(path string, account node.Account, counted uplink.ToUplinkTraffic) {
		for description, value := range map[*prometheus.Desc]uint64{
			sentBytes: counted.SentBytes, sentPackets: counted.SentPackets,
			receivedBytes: counted.ReceivedBytes, receivedPackets: counted.ReceivedPackets,
		} {
			metrics <- prometheus.MustNewConstMetric(description, prometheus.CounterValue, float64(value), path, account.Namespace, account.Policy)
		}
	})
	if err != nil {
		d.options.Log.Error(err, "failed to read for metrics what was sent and received on paths")
	}
}

// silences are what is known of paths that did not answer, by their numbers, and of acknowledgements
// that were changed.
type silences struct {
	departures [uplink.MaxPaths]uint64
	withdrawn  [2]uint64
	*avoidance // nil before the first sweep
}

// silences returns nil while nothing is loaded.
func (s *sweeper) silences() (*silences, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.maps == nil {
		return nil, nil
	}
	found := &silences{avoidance: s.avoidance}
	for number := range found.departures {
		if err := s.maps.Departures.Lookup(uint32(number), &found.departures[number]); err != nil {
			return nil, fmt.Errorf("reading the departures from path %d: %w", number, err)
		}
	}
	for whose := range found.withdrawn {
		var err error
		if found.withdrawn[whose], err = entries.Sum(s.maps.Withdrawn, uint32(whose)); err != nil {
			return nil, fmt.Errorf("reading how many duplicate acknowledgements were changed: %w", err)
		}
	}
	return found, nil
}

func (t *peerTable) pathNumbers() pathNumbers {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.paths)
}
