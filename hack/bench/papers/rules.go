// SPDX-License-Identifier: Apache-2.0

package papers

import (
	"fmt"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/hack/bench/rig"
)

// chainRule is the rule of a size that means what the baseline's chain does.
func chainRule(size chainSize) []v1alpha1.PlanRule {
	return rig.RuleOf(chainMatch(size.selectors), chainActions(size.actions)...)
}

// pacedRule is the same for a pod, whose own socket is paced: no window is written.
func pacedRule(size chainSize) []v1alpha1.PlanRule {
	actions := chainActions(size.actions)
	actions[0] = rig.LimitTo(20, v1alpha1.RateLimitAuto)
	match := chainMatch(size.selectors)
	match.Direction = v1alpha1.DirectionFromEndpoint
	return rig.RuleOf(match, actions...)
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

// setBackup makes a subflow a backup.
var setBackup = v1alpha1.Action{Type: v1alpha1.ActionSetBackup, SetBackup: &v1alpha1.SetBackup{Backup: new(true)}}

// chainActions are the first actions of those that the baseline has.
func chainActions(count int) []v1alpha1.Action {
	all := []v1alpha1.Action{
		rig.LimitTo(20, v1alpha1.RateLimitWindow),
		setBackup,
		{Type: v1alpha1.ActionReportSubflow},
		{Type: v1alpha1.ActionRecord},
	}
	return all[:count]
}
