// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/resource"

	"braid.dev/braid/api/v1alpha1"
)

// chainRule is the rule of a size that means what the stand-in's chain does.
func chainRule(size chainSize) []v1alpha1.PlanRule {
	return ruleOf(chainMatch(size.selectors), chainActions(size.actions)...)
}

// pacedRule is the same for a pod, whose own socket is paced: no window is written.
func pacedRule(size chainSize) []v1alpha1.PlanRule {
	actions := chainActions(size.actions)
	actions[0] = limitTo(20, v1alpha1.RateLimitAuto)
	match := chainMatch(size.selectors)
	match.Direction = v1alpha1.DirectionFromEndpoint
	return ruleOf(match, actions...)
}

func chainMatch(selectors int) *v1alpha1.Match {
	match := &v1alpha1.Match{Selectors: v1alpha1.Selectors{Subflow: &v1alpha1.SubflowTuple{
		SourceAddress: v1alpha1.IPAddress(chainLocal.Addr().String()), SourcePort: int32(chainLocal.Port()),
		DestinationAddress: v1alpha1.IPAddress(chainRemote.Addr().String()), DestinationPort: int32(chainRemote.Port()),
	}}}
	if selectors > 1 {
		match.AddressPair = []v1alpha1.IPAddress{match.Subflow.SourceAddress, match.Subflow.DestinationAddress}
		match.Token = fmt.Sprintf("0x%08x", chainToken)
		match.PacketTypes = []v1alpha1.PacketType{v1alpha1.PacketDSS}
	}
	return match
}

// chainActions are the first actions of those that the stand-in has.
func chainActions(count int) []v1alpha1.Action {
	yes := true
	all := []v1alpha1.Action{
		limitTo(20, v1alpha1.RateLimitWindow),
		{Type: v1alpha1.ActionSetBackup, SetBackup: &v1alpha1.SetBackup{Backup: &yes}},
		{Type: v1alpha1.ActionReportSubflow},
		{Type: v1alpha1.ActionRecord},
	}
	return all[:count]
}

func limitTo(mbit int64, mechanism v1alpha1.RateLimitMechanism) v1alpha1.Action {
	return v1alpha1.Action{Type: v1alpha1.ActionRateLimit, RateLimit: &v1alpha1.RateLimit{
		Rate: *resource.NewQuantity(mbit*1_000_000, resource.DecimalSI),
		Per:  v1alpha1.RateLimitPerSubflow, Mechanism: mechanism,
	}}
}

func ruleOf(match *v1alpha1.Match, actions ...v1alpha1.Action) []v1alpha1.PlanRule {
	return []v1alpha1.PlanRule{{
		Rule:   v1alpha1.Rule{Name: "bench", Match: match, Actions: actions},
		Policy: "ClusterMPTCPPolicy/bench",
	}}
}
