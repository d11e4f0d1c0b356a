// SPDX-License-Identifier: Apache-2.0

package asking

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"braid.dev/braid/agent/transport"
	"braid.dev/braid/bpf/guest"
)

// asksTotal has a series while the peers of some guest are asked.
var asksTotal = prometheus.NewDesc("braid_guest_requests_total",
	"Acknowledgements of VMs into which their node wrote requests to the peer.", nil, nil)

// Describe says which metrics there are.
func (p *Part) Describe(descriptions chan<- *prometheus.Desc) { descriptions <- asksTotal }

// Collect tells of all guests together.
func (p *Part) Collect(metrics chan<- prometheus.Metric) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if !p.loaded.Is() {
		return
	}
	written := p.ended
	for index := range p.wants {
		written += p.writtenOf(index)
	}
	metrics <- prometheus.MustNewConstMetric(asksTotal, prometheus.CounterValue, float64(written))
}

// writtenOf is 0 of a guest that is not known.
func (p *Part) writtenOf(index uint32) uint64 {
	var of guest.AskPeersAskingGuest
	_ = p.loaded.Value.AskingGuests.Lookup(index, &of)
	return of.Written
}

// names lists what is asked for, as the fields of policies and rules name it.
func (w *want) names() string {
	names := transport.Names(w.Asked)
	if len(w.rates) > 0 {
		names = append(names, "rates")
	}
	if w.rules {
		names = append(names, "what rules ask of peers")
	}
	return strings.Join(names, ", ")
}
