// SPDX-License-Identifier: Apache-2.0

package pace

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"

	"braid.dev/braid/agent/transport/numbers"
	"braid.dev/braid/api/v1alpha1"
)

func TestOfMatchingRulesTheLeastRateIsAskedForAndTheLastChoiceOfTheClustersFirst(t *testing.T) {
	rule := func(policy string, action v1alpha1.Action) v1alpha1.PlanRule {
		action.At = v1alpha1.ActionAtPeer
		return v1alpha1.PlanRule{Policy: policy, Rule: v1alpha1.Rule{Actions: []v1alpha1.Action{action}}}
	}
	rate := func(rate string) v1alpha1.Action {
		return v1alpha1.Action{Type: v1alpha1.ActionRateLimit, RateLimit: &v1alpha1.RateLimit{Rate: resource.MustParse(rate)}}
	}
	choice := func(name string) v1alpha1.Action {
		return v1alpha1.Action{Type: v1alpha1.ActionCongestion, Congestion: &v1alpha1.Congestion{Algorithm: name}}
	}
	const cluster, tenant = "ClusterMPTCPPolicy/edge", "MPTCPPolicy/team/web"
	rules := []v1alpha1.PlanRule{
		rule(cluster, choice("bbr")), rule(cluster, choice("cubic")), rule(cluster, rate("30M")),
		rule(tenant, rate("20M")), rule(tenant, rate("40M")), rule(tenant, choice("reno")),
		rule(tenant, v1alpha1.Action{Type: v1alpha1.ActionSchedule, Schedule: &v1alpha1.Schedule{Strategy: "s"}}),
	}
	for matching, want := range map[uint64]Request{
		0:         {},
		0b1111111: {numbers.OfRate(20e6), numbers.OfName("cubic"), numbers.OfName("s")},
		0b0010100: {Rate: numbers.OfRate(30e6)},
		0b0100001: {CongestionControl: numbers.OfName("bbr")},
		0b1100000: {CongestionControl: numbers.OfName("reno"), Schedule: numbers.OfName("s")},
	} {
		require.Equal(t, want, Asked(rules, matching), "%b", matching)
	}
}
