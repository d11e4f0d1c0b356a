// SPDX-License-Identifier: Apache-2.0

package metrics_test

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"braid.dev/braid/agent/metrics"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/agentapi"
)

// changing is a source whose answers the test changes.
type changing struct {
	subflows    []agentapi.Subflow
	rules       []agentapi.Rule
	subflowsErr error
}

func (c *changing) Rules() ([]agentapi.Rule, error) { return c.rules, nil }

func (c *changing) EachSubflow(visit func(*agentapi.Subflow)) error {
	for _, one := range c.subflows {
		visit(&one)
	}
	return c.subflowsErr
}

func subflow(endpoint string, port uint16, rtt, bytes uint64) agentapi.Subflow {
	return agentapi.Subflow{
		Endpoint: endpoint, Local: netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), port),
		Remote: netip.MustParseAddrPort("10.0.0.2:80"), RTTMicroseconds: rtt,
		Sent:     agentapi.Traffic{Bytes: bytes, Packets: bytes / 10, Retransmissions: 1},
		Received: agentapi.Traffic{Bytes: bytes / 2, Reordered: 2},
	}
}

func gather(t *testing.T, collector prometheus.Collector) []*dto.MetricFamily {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(collector)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	return families
}

// expect compares the metrics of these names, as Prometheus reads them.
func expect(t *testing.T, collector prometheus.Collector, want string, names ...string) {
	t.Helper()
	var got strings.Builder
	for _, family := range gather(t, collector) {
		if !slices.Contains(names, family.GetName()) {
			continue
		}
		if _, err := expfmt.MetricFamilyToText(&got, family); err != nil {
			t.Fatal(err)
		}
	}
	if got.String() != strings.TrimPrefix(want, "\n") {
		t.Errorf("the metrics are\n%s\nand not%s", got.String(), want)
	}
}

// series counts time series.
func series(t *testing.T, collector prometheus.Collector) (count int) {
	t.Helper()
	for _, family := range gather(t, collector) {
		count += len(family.GetMetric())
	}
	return count
}

func TestRulesAndEndpointsAreCounted(t *testing.T) {
	limited := subflow("team/web", 1, 2000, 100)
	limited.Limits = []agentapi.Limit{{InUse: v1alpha1.RateLimitPace}, {}}
	source := &changing{
		rules:    []agentapi.Rule{{Endpoint: "team/web", Policy: "MPTCPPolicy/team/p", Name: "slow", Hits: 3, Bytes: 40, Acted: 2}},
		subflows: []agentapi.Subflow{limited, subflow("team/web", 2, 4000, 50), subflow("team/web", 3, 0, 0)},
	}
	expect(t, metrics.NewCollector(source, logr.Discard()), `
# HELP braid_endpoint_limited_subflows Remembered subflows with a rate limit that is enforced, by mechanism.
# TYPE braid_endpoint_limited_subflows gauge
braid_endpoint_limited_subflows{mechanism="Pace",namespace="team",pod="web"} 1
# HELP braid_endpoint_received_bytes_total Payload that the endpoint's subflows received, repetitions included.
# TYPE braid_endpoint_received_bytes_total counter
braid_endpoint_received_bytes_total{namespace="team",pod="web"} 75
# HELP braid_endpoint_received_reordered_packets_total Packets that the endpoint's subflows received after later ones.
# TYPE braid_endpoint_received_reordered_packets_total counter
braid_endpoint_received_reordered_packets_total{namespace="team",pod="web"} 6
# HELP braid_endpoint_recorded_subflows Subflows of the endpoint that are remembered; ended ones are for a while.
# TYPE braid_endpoint_recorded_subflows gauge
braid_endpoint_recorded_subflows{namespace="team",pod="web"} 3
# HELP braid_endpoint_sent_bytes_total Payload that the endpoint's subflows sent, repetitions included.
# TYPE braid_endpoint_sent_bytes_total counter
braid_endpoint_sent_bytes_total{namespace="team",pod="web"} 150
# HELP braid_endpoint_sent_retransmitted_packets_total Packets that the endpoint's subflows sent more than once.
# TYPE braid_endpoint_sent_retransmitted_packets_total counter
braid_endpoint_sent_retransmitted_packets_total{namespace="team",pod="web"} 3
# HELP braid_endpoint_smoothed_rtt_maximum_seconds The longest smoothed round-trip time of the endpoint's subflows.
# TYPE braid_endpoint_smoothed_rtt_maximum_seconds gauge
braid_endpoint_smoothed_rtt_maximum_seconds{namespace="team",pod="web"} 0.004
# HELP braid_endpoint_smoothed_rtt_seconds Mean of the smoothed round-trip times of the endpoint's subflows.
# TYPE braid_endpoint_smoothed_rtt_seconds gauge
braid_endpoint_smoothed_rtt_seconds{namespace="team",pod="web"} 0.003
# HELP braid_rule_acted_packets_total Packets that the rule's actions changed, dropped or answered.
# TYPE braid_rule_acted_packets_total counter
braid_rule_acted_packets_total{namespace="team",pod="web",policy="MPTCPPolicy/team/p",rule="slow"} 2
# HELP braid_rule_matched_bytes_total Payload of the packets that the rule matched.
# TYPE braid_rule_matched_bytes_total counter
braid_rule_matched_bytes_total{namespace="team",pod="web",policy="MPTCPPolicy/team/p",rule="slow"} 40
# HELP braid_rule_matched_packets_total Packets that the rule matched.
# TYPE braid_rule_matched_packets_total counter
braid_rule_matched_packets_total{namespace="team",pod="web",policy="MPTCPPolicy/team/p",rule="slow"} 3
`,
		"braid_endpoint_limited_subflows", "braid_endpoint_received_bytes_total", "braid_endpoint_received_reordered_packets_total",
		"braid_endpoint_recorded_subflows", "braid_endpoint_sent_bytes_total", "braid_endpoint_sent_retransmitted_packets_total",
		"braid_endpoint_smoothed_rtt_seconds", "braid_endpoint_smoothed_rtt_maximum_seconds", "braid_rule_acted_packets_total",
		"braid_rule_matched_bytes_total", "braid_rule_matched_packets_total")
}

func TestASubflowThatAReadingHasTwiceCountsOnce(t *testing.T) {
	one := subflow("team/web", 1, 2000, 100)
	source := &changing{subflows: []agentapi.Subflow{one, subflow("team/web", 2, 4000, 10), one}}
	expect(t, metrics.NewCollector(source, logr.Discard()), `
# HELP braid_endpoint_recorded_subflows Subflows of the endpoint that are remembered; ended ones are for a while.
# TYPE braid_endpoint_recorded_subflows gauge
braid_endpoint_recorded_subflows{namespace="team",pod="web"} 2
# HELP braid_endpoint_sent_bytes_total Payload that the endpoint's subflows sent, repetitions included.
# TYPE braid_endpoint_sent_bytes_total counter
braid_endpoint_sent_bytes_total{namespace="team",pod="web"} 110
# HELP braid_endpoint_smoothed_rtt_seconds Mean of the smoothed round-trip times of the endpoint's subflows.
# TYPE braid_endpoint_smoothed_rtt_seconds gauge
braid_endpoint_smoothed_rtt_seconds{namespace="team",pod="web"} 0.003
`, "braid_endpoint_recorded_subflows", "braid_endpoint_sent_bytes_total", "braid_endpoint_smoothed_rtt_seconds")
}

func TestTheNamesOfMetricsFollowTheConventions(t *testing.T) {
	source := &changing{
		rules:    []agentapi.Rule{{Endpoint: "team/web", Name: "slow"}},
		subflows: []agentapi.Subflow{subflow("team/web", 1, 2000, 100)},
	}
	families := gather(t, metrics.NewCollector(source, logr.Discard()))
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("%+v (%v)", problems, err)
	}
}

func TestTotalsNeverFallWhileAnEndpointExists(t *testing.T) {
	sent := func(value string) string {
		return `
# HELP braid_endpoint_sent_bytes_total Payload that the endpoint's subflows sent, repetitions included.
# TYPE braid_endpoint_sent_bytes_total counter
braid_endpoint_sent_bytes_total{namespace="team",pod="web"} ` + value + "\n"
	}
	source := &changing{rules: []agentapi.Rule{{Endpoint: "team/web", Name: "slow"}}}
	collector := metrics.NewCollector(source, logr.Discard())
	steps := []struct {
		name     string
		subflows []agentapi.Subflow
		want     string
	}{
		{"before any subflow", nil, "0"},
		{"two subflows", []agentapi.Subflow{subflow("team/web", 1, 0, 100), subflow("team/web", 2, 0, 10)}, "110"},
		{"they go on", []agentapi.Subflow{subflow("team/web", 1, 0, 130), subflow("team/web", 2, 0, 10)}, "140"},
		{"one is forgotten", []agentapi.Subflow{subflow("team/web", 2, 0, 15)}, "145"},
		{"a new one has the ports of an earlier one", []agentapi.Subflow{subflow("team/web", 2, 0, 7)}, "152"},
		{"all are forgotten", nil, "152"},
	}
	for _, step := range steps {
		source.subflows = step.subflows
		t.Run(step.name, func(t *testing.T) {
			expect(t, collector, sent(step.want), "braid_endpoint_sent_bytes_total")
		})
	}
	source.rules = nil
	expect(t, collector, "", "braid_endpoint_sent_bytes_total")
}

func TestSubflowsHaveNoSeriesOfTheirOwn(t *testing.T) {
	source := &changing{subflows: []agentapi.Subflow{subflow("team/web", 1, 1, 100)}}
	few := series(t, metrics.NewCollector(source, logr.Discard()))
	for port := range uint16(1000) {
		source.subflows = append(source.subflows, subflow("team/web", 10+port, 1, 100))
	}
	if many := series(t, metrics.NewCollector(source, logr.Discard())); many != few {
		t.Errorf("1 subflow has %d series, 1001 have %d", few, many)
	}
}

func TestAFailedReadingLeavesTheOtherMetricsAlone(t *testing.T) {
	source := &changing{
		rules:       []agentapi.Rule{{Endpoint: "team/web", Policy: "p", Name: "slow", Hits: 3}},
		subflowsErr: errors.New("the map is gone"),
	}
	expect(t, metrics.NewCollector(source, logr.Discard()), `
# HELP braid_chain_read_errors_total Readings of the chains' maps that failed.
# TYPE braid_chain_read_errors_total counter
braid_chain_read_errors_total 1
# HELP braid_rule_matched_packets_total Packets that the rule matched.
# TYPE braid_rule_matched_packets_total counter
braid_rule_matched_packets_total{namespace="team",pod="web",policy="p",rule="slow"} 3
`, "braid_chain_read_errors_total", "braid_rule_matched_packets_total", "braid_endpoint_sent_bytes_total")
}
