// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"cmp"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"braid.dev/braid/internal/agentapi"
)

const (
	// mostPods of a namespace have series of their own, and so many of their rules: a
	// tenant makes pods and rules as it likes, and each series costs whoever scrapes.
	mostPods  = 128
	mostRules = 1024
	// others is the pod of what the others of a namespace did together. No pod has that
	// name.
	others = "_others"
)

var (
	leftOutPods  = describe("endpoint_left_out", "Pods of the namespace that have no series of their own: those with the least bytes.", []string{"namespace"})
	leftOutRules = describe("rule_left_out", "Rules of the namespace's pods that have no series.", []string{"namespace"})
)

// selection says which endpoints have series of their own.
type selection struct {
	shown   map[string]bool
	leftOut map[string]int // by namespace
}

// choose takes of each namespace the endpoints with the most bytes so far.
func (c *Collector) choose(endpoints map[string]*present) selection {
	byNamespace := map[string][]string{}
	for endpoint := range endpoints {
		namespace, _ := split(endpoint)
		byNamespace[namespace] = append(byNamespace[namespace], endpoint)
	}
	chosen := selection{shown: map[string]bool{}, leftOut: map[string]int{}}
	for namespace, all := range byNamespace {
		slices.SortFunc(all, func(a, b string) int { return cmp.Or(cmp.Compare(c.bytes(b), c.bytes(a)), strings.Compare(a, b)) })
		for _, endpoint := range all[:min(len(all), mostPods)] {
			chosen.shown[endpoint] = true
		}
		if more := len(all) - mostPods; more > 0 {
			chosen.leftOut[namespace] = more
		}
	}
	return chosen
}

// bytes are what an endpoint's subflows moved.
func (c *Collector) bytes(endpoint string) uint64 {
	total := c.totals[endpoint]
	if total == nil {
		return 0
	}
	return total[0][0] + total[0][1]
}

// addOthers adds to what the others of each namespace counted what was counted since the
// last reading: so it never falls, whichever endpoints the others are.
func (c *Collector) addOthers(chosen selection) {
	before := c.before
	c.before = make(map[string]counts, len(c.totals))
	for endpoint, total := range c.totals {
		c.before[endpoint] = *total
		if chosen.shown[endpoint] {
			continue
		}
		namespace, _ := split(endpoint)
		sum := c.others[namespace]
		if sum == nil {
			sum = &counts{}
			c.others[namespace] = sum
		}
		sum.add(total, before[endpoint])
	}
	for namespace := range c.others {
		if chosen.leftOut[namespace] == 0 {
			delete(c.others, namespace)
		}
	}
}

// add adds what was counted since before.
func (c *counts) add(now *counts, before counts) {
	if now.isBelow(before) {
		before = counts{}
	}
	for i := range now {
		for direction := range now[i] {
			c[i][direction] += now[i][direction] - before[i][direction]
		}
	}
}

// merge adds what the subflows of another endpoint are like.
func (p *present) merge(other *present) {
	p.subflows += other.subflows
	p.measured += other.measured
	p.rtt += other.rtt
	p.longest = max(p.longest, other.longest)
	for mechanism, count := range other.limited {
		if p.limited == nil {
			p.limited = map[string]int{}
		}
		p.limited[mechanism] += count
	}
}

// collectOthers offers what the endpoints without series of their own are like together.
func (c *Collector) collectOthers(metrics chan<- prometheus.Metric, now map[string]*present, chosen selection) {
	together := map[string]*present{}
	for endpoint, p := range now {
		if chosen.shown[endpoint] {
			continue
		}
		namespace, _ := split(endpoint)
		if together[namespace] == nil {
			together[namespace] = &present{}
		}
		together[namespace].merge(p)
	}
	for namespace, p := range together {
		p.collect(metrics, namespace+"/"+others)
		collectTotals(metrics, namespace+"/"+others, c.others[namespace])
		metrics <- prometheus.MustNewConstMetric(leftOutPods, prometheus.GaugeValue, float64(chosen.leftOut[namespace]), namespace)
	}
}

// shownRules are those with series, and how many of each namespace have none.
func shownRules(rules []agentapi.Rule, shown map[string]bool) (some []agentapi.Rule, leftOut map[string]int) {
	have, leftOut := map[string]int{}, map[string]int{}
	for _, rule := range rules {
		namespace, _ := split(rule.Endpoint)
		if !shown[rule.Endpoint] || have[namespace] == mostRules {
			leftOut[namespace]++
			continue
		}
		have[namespace]++
		some = append(some, rule)
	}
	return some, leftOut
}
