// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"k8s.io/apimachinery/pkg/api/resource"

	"braid.dev/braid/api/v1alpha1"
)

// RuleOf is a rule of a plan.
func RuleOf(match *v1alpha1.Match, actions ...v1alpha1.Action) []v1alpha1.PlanRule {
	return []v1alpha1.PlanRule{{
		Rule:   v1alpha1.Rule{Name: "bench", Match: match, Actions: actions},
		Policy: "ClusterMPTCPPolicy/bench",
	}}
}

// LimitTo limits each subflow's rate.
func LimitTo(mbit int64, mechanism v1alpha1.RateLimitMechanism) v1alpha1.Action {
	return v1alpha1.Action{Type: v1alpha1.ActionRateLimit, RateLimit: &v1alpha1.RateLimit{
		Rate: *resource.NewQuantity(mbit*1_000_000, resource.DecimalSI),
		Per:  v1alpha1.RateLimitPerSubflow, Mechanism: mechanism,
	}}
}
