// SPDX-License-Identifier: Apache-2.0

// Package metrics offers to Prometheus what the chains of a node do. Maps are read
// when they are asked for, and at no other time.
//
// There are series for endpoints and for their rules, of each namespace for those that
// moved most and for the others together, and none for subflows: these come and go by the thousand. The debug
// commands show them.
package metrics

import (
	"strings"
	"sync"
	"time"
	"unique"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"

	"braid.dev/braid/internal/agentapi"
)

var (
	ruleLabels     = []string{"namespace", "pod", "policy", "rule"}
	endpointLabels = []string{"namespace", "pod"}

	ruleMatchedPackets = describe("rule_matched_packets_total", "Packets that the rule matched.", ruleLabels)
	ruleMatchedBytes   = describe("rule_matched_bytes_total", "Payload of the packets that the rule matched.", ruleLabels)
	ruleActedPackets   = describe("rule_acted_packets_total",
		"Packets that the rule's actions changed, dropped or answered.", ruleLabels)

	endpointSubflows = describe("endpoint_recorded_subflows",
		"Subflows of the endpoint that are remembered; ended ones are for a while.", endpointLabels)
	endpointLimited = describe("endpoint_limited_subflows",
		"Remembered subflows with a rate limit that is enforced, by mechanism.", append(endpointLabels[:2:2], "mechanism"))
	endpointRTT = describe("endpoint_smoothed_rtt_seconds",
		"Mean of the smoothed round-trip times of the endpoint's subflows.", endpointLabels)
	endpointRTTMaximum = describe("endpoint_smoothed_rtt_maximum_seconds",
		"The longest smoothed round-trip time of the endpoint's subflows.", endpointLabels)
	readErrors = describe("chain_read_errors_total", "Readings of the chains' maps that failed.", nil)
)

// trafficCounter is a count that subflows have for each direction.
type trafficCounter struct {
	sent, received *prometheus.Desc
	value          func(*agentapi.Traffic) uint64
}

var trafficCounters = [...]trafficCounter{
	inBothDirections("bytes_total", "Payload that the endpoint's subflows %s, repetitions included.",
		func(t *agentapi.Traffic) uint64 { return t.Bytes }),
	inBothDirections("packets_total", "Packets that the endpoint's subflows %s.",
		func(t *agentapi.Traffic) uint64 { return t.Packets }),
	inBothDirections("retransmitted_packets_total", "Packets that the endpoint's subflows %s more than once.",
		func(t *agentapi.Traffic) uint64 { return t.Retransmissions }),
	inBothDirections("reordered_packets_total", "Packets that the endpoint's subflows %s after later ones.",
		func(t *agentapi.Traffic) uint64 { return t.Reordered }),
}

func inBothDirections(what, help string, value func(*agentapi.Traffic) uint64) trafficCounter {
	counter := func(direction string) *prometheus.Desc {
		return describe("endpoint_"+direction+"_"+what, strings.ReplaceAll(help, "%s", direction), endpointLabels)
	}
	return trafficCounter{counter("sent"), counter("received"), value}
}

func describe(name, help string, labels []string) *prometheus.Desc {
	return prometheus.NewDesc("braid_"+name, help, labels, nil)
}

// Source is what a Collector reads.
type Source interface {
	Rules() ([]agentapi.Rule, error)
	// EachSubflow visits all subflows in any order, and may visit one twice. What it
	// points to holds during the visit alone.
	EachSubflow(visit func(*agentapi.Subflow)) error
}

// Collector reads the chains' maps for Prometheus. It is safe for concurrent use.
type Collector struct {
	source Source
	log    logr.Logger

	mutex sync.Mutex
	// totals are by endpoint, and hold what forgotten subflows counted too.
	totals map[string]*counts
	// last are the counts of each subflow at the last reading, because a subflow
	// that is forgotten must not take its share of the totals with it.
	last    map[subflowKey]reading
	reading uint64 // the number of the latest reading
	// before are the totals at the last reading, and others what the endpoints without
	// series of their own counted, by namespace.
	before map[string]counts
	others map[string]*counts
	failed uint64
}

// reading is what a subflow had counted when it was read last.
type reading struct {
	counts counts
	number uint64
}

// counts are the values of trafficCounters, sent and received.
type counts [len(trafficCounters)][2]uint64

// subflowKey is small, for there are thousands.
type subflowKey struct {
	endpoint   unique.Handle[string]
	addresses  [2][16]byte // local, remote
	localPort  uint16
	remotePort uint16
}

func keyOf(subflow *agentapi.Subflow) subflowKey {
	return subflowKey{
		unique.Make(subflow.Endpoint),
		[2][16]byte{subflow.Local.Addr().As16(), subflow.Remote.Addr().As16()},
		subflow.Local.Port(), subflow.Remote.Port(),
	}
}

// NewCollector reads this source. What a subflow counts between the last reading
// and its being forgotten is lost; forgotten are those that were idle for long.
func NewCollector(source Source, log logr.Logger) *Collector {
	return &Collector{source: source, log: log, totals: map[string]*counts{}, last: map[subflowKey]reading{}, others: map[string]*counts{}}
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(descriptions chan<- *prometheus.Desc) {
	for _, description := range []*prometheus.Desc{
		ruleMatchedPackets, ruleMatchedBytes, ruleActedPackets,
		endpointSubflows, endpointLimited, endpointRTT, endpointRTTMaximum, readErrors,
		leftOutPods, leftOutRules,
	} {
		descriptions <- description
	}
	for _, counter := range trafficCounters {
		descriptions <- counter.sent
		descriptions <- counter.received
	}
}

// Collect implements prometheus.Collector. What cannot be read is left out: the
// agent's other metrics do not depend on it.
func (c *Collector) Collect(metrics chan<- prometheus.Metric) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	rules, err := c.source.Rules()
	if err != nil {
		c.fail(err)
	}
	now, err := c.readSubflows(endpointsOf(rules))
	if err != nil {
		c.fail(err)
	}
	chosen := c.choose(now)
	if err == nil {
		c.collectSubflows(metrics, now, chosen)
	}
	collectRules(metrics, rules, chosen.shown)
	metrics <- prometheus.MustNewConstMetric(readErrors, prometheus.CounterValue, float64(c.failed))
}

func (c *Collector) fail(err error) {
	c.failed++
	c.log.Error(err, "failed to read the chains for metrics")
}

func collectRules(metrics chan<- prometheus.Metric, all []agentapi.Rule, shown map[string]bool) {
	rules, leftOut := shownRules(all, shown)
	for namespace, count := range leftOut {
		metrics <- prometheus.MustNewConstMetric(leftOutRules, prometheus.GaugeValue, float64(count), namespace)
	}
	for i := range rules {
		rule := &rules[i]
		namespace, pod := split(rule.Endpoint)
		count := func(description *prometheus.Desc, value uint64) {
			metrics <- prometheus.MustNewConstMetric(description, prometheus.CounterValue, float64(value), namespace, pod, rule.Policy, rule.Name)
		}
		count(ruleMatchedPackets, rule.Hits)
		count(ruleMatchedBytes, rule.Bytes)
		count(ruleActedPackets, rule.Acted)
	}
}

func endpointsOf(rules []agentapi.Rule) map[string]bool {
	endpoints := map[string]bool{}
	for i := range rules {
		endpoints[rules[i].Endpoint] = true
	}
	return endpoints
}

// present is what the subflows of an endpoint are like now.
type present struct {
	subflows, measured int
	rtt, longest       time.Duration
	limited            map[string]int // by mechanism
}

// readSubflows adds the subflows up by endpoint. There may be tens of thousands of
// subflows: none is kept but what it counted.
func (c *Collector) readSubflows(endpoints map[string]bool) (map[string]*present, error) {
	now := map[string]*present{}
	for endpoint := range endpoints {
		now[endpoint] = &present{}
	}
	c.reading++
	err := c.source.EachSubflow(func(subflow *agentapi.Subflow) {
		if !c.count(subflow) {
			return
		}
		if now[subflow.Endpoint] == nil {
			now[subflow.Endpoint] = &present{}
		}
		now[subflow.Endpoint].add(subflow)
	})
	return now, err
}

// collectSubflows offers what a whole reading found. Endpoints that have neither rules nor
// subflows any more are dropped.
func (c *Collector) collectSubflows(metrics chan<- prometheus.Metric, now map[string]*present, chosen selection) {
	c.forget(now)
	c.addOthers(chosen)
	for endpoint, p := range now {
		if chosen.shown[endpoint] {
			p.collect(metrics, endpoint)
			collectTotals(metrics, endpoint, c.totals[endpoint])
		}
	}
	c.collectOthers(metrics, now, chosen)
}

// forget drops the subflows that this reading did not find, and the endpoints that are
// not among these.
func (c *Collector) forget(now map[string]*present) {
	for key, last := range c.last {
		if last.number != c.reading {
			delete(c.last, key)
		}
	}
	for endpoint := range c.totals {
		if now[endpoint] == nil {
			delete(c.totals, endpoint)
		}
	}
}

func (p *present) add(subflow *agentapi.Subflow) {
	p.subflows++
	if rtt := time.Duration(subflow.RTTMicroseconds) * time.Microsecond; rtt > 0 {
		p.measured++
		p.rtt += rtt
		p.longest = max(p.longest, rtt)
	}
	for _, limit := range subflow.Limits {
		if limit.InUse == "" {
			continue
		}
		if p.limited == nil {
			p.limited = map[string]int{}
		}
		p.limited[string(limit.InUse)]++
	}
}

func (p *present) collect(metrics chan<- prometheus.Metric, endpoint string) {
	namespace, pod := split(endpoint)
	gauge := func(description *prometheus.Desc, value float64, more ...string) {
		metrics <- prometheus.MustNewConstMetric(description, prometheus.GaugeValue, value, append([]string{namespace, pod}, more...)...)
	}
	gauge(endpointSubflows, float64(p.subflows))
	if p.measured > 0 {
		gauge(endpointRTT, p.rtt.Seconds()/float64(p.measured))
		gauge(endpointRTTMaximum, p.longest.Seconds())
	}
	for mechanism, count := range p.limited {
		gauge(endpointLimited, float64(count), mechanism)
	}
}

// count adds what a subflow counted since the last reading, and is false for one that
// this reading has had already. Counts that went down are those of a new subflow.
func (c *Collector) count(subflow *agentapi.Subflow) (first bool) {
	key := keyOf(subflow)
	last, now := c.last[key], countsOf(subflow)
	total := c.totals[subflow.Endpoint]
	if total == nil {
		total = &counts{}
		c.totals[subflow.Endpoint] = total
	}
	total.add(&now, last.counts)
	c.last[key] = reading{now, c.reading}
	return last.number != c.reading
}

func countsOf(subflow *agentapi.Subflow) (now counts) {
	for i, counter := range trafficCounters {
		now[i] = [2]uint64{counter.value(&subflow.Sent), counter.value(&subflow.Received)}
	}
	return now
}

// isBelow is true when one of the counts is less than it was.
func (c counts) isBelow(before counts) bool {
	for i := range c {
		if c[i][0] < before[i][0] || c[i][1] < before[i][1] {
			return true
		}
	}
	return false
}

func collectTotals(metrics chan<- prometheus.Metric, endpoint string, total *counts) {
	if total == nil {
		total = &counts{}
	}
	namespace, pod := split(endpoint)
	for i, counter := range trafficCounters {
		for direction, description := range []*prometheus.Desc{counter.sent, counter.received} {
			metrics <- prometheus.MustNewConstMetric(description, prometheus.CounterValue, float64(total[i][direction]), namespace, pod)
		}
	}
}

// split takes namespace and pod apart; an endpoint without a name has no namespace.
func split(endpoint string) (namespace, pod string) {
	if namespace, pod, ok := strings.Cut(endpoint, "/"); ok {
		return namespace, pod
	}
	return "", endpoint
}
