// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"github.com/prometheus/client_golang/prometheus"

	"braid.dev/braid/bpf/transport"
)

// requestsTotal has series once a policy of the node gives settings.
var requestsTotal = prometheus.NewDesc("braid_transport_requests_total",
	"Requests of peers for settings of sockets, by what they ask for and whether they were honoured: each once for a socket, and again for another value.",
	[]string{"request", "verdict"}, nil)

// counts are of requests, by their types.
type counts struct{ honoured, refused [transport.Requests]uint64 }

func (c *counts) add(exchange *transport.TransportExchange) {
	for request := range transport.Requests {
		c.honoured[request] += exchange.Honoured[request]
		c.refused[request] += exchange.Refused[request]
	}
}

// requestNames are the names of what can be asked for.
var requestNames = [transport.Requests]string{
	transport.RequestUserTimeout:       "userTimeout",
	transport.RequestInitialWindow:     "initialWindow",
	transport.RequestCongestionControl: "congestionControl",
	transport.RequestDelayedACK:        "delayedAck",
	transport.RequestRate:              "rate",
	transport.RequestCredit:            "credit",
	transport.RequestSchedule:          "schedule",
	transport.RequestDelayThreshold:    "delayThreshold",
	transport.RequestInactivityTimeout: "inactivityTimeout",
}

// Names are those of requests, of which each has a bit.
func Names(asked uint32) (names []string) {
	for request, name := range requestNames {
		if asked&(1<<request) != 0 {
			names = append(names, name)
		}
	}
	return names
}

// Describe says which metrics there are.
func (p *Part) Describe(descriptions chan<- *prometheus.Desc) { descriptions <- requestsTotal }

// Collect tells of the requests of all peers of the node's pods.
func (p *Part) Collect(metrics chan<- prometheus.Metric) {
	all, loaded := p.requests()
	if !loaded {
		return
	}
	for request, name := range requestNames {
		metrics <- prometheus.MustNewConstMetric(requestsTotal, prometheus.CounterValue, float64(all.honoured[request]), name, "Honoured")
		metrics <- prometheus.MustNewConstMetric(requestsTotal, prometheus.CounterValue, float64(all.refused[request]), name, "Refused")
	}
}

// requests adds up those of all peers; loaded is false while nothing is.
func (p *Part) requests() (all counts, loaded bool) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if !p.loaded.Is() {
		return all, false
	}
	all = p.ended
	var cookie uint64
	var exchange transport.TransportExchange
	entries := p.loaded.Value.TransportExchanges.Iterate()
	for entries.Next(&cookie, &exchange) {
		all.add(&exchange)
	}
	if err := entries.Err(); err != nil {
		p.options.Log.Error(err, "failed to read how many requests of peers were honoured")
		return all, false
	}
	return all, true
}
