// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net/netip"

	"braid.dev/braid/agent/chains"
	"braid.dev/braid/agent/schedule"
	"braid.dev/braid/api/v1alpha1"
)

// scheduled are the endpoints whose rules ask for Braid's own strategy.
func scheduled(p planned, attached []chains.Attached) (wanted []schedule.Endpoint) {
	for _, endpoint := range attached {
		rules := schedulingRules(endpoint.Rules)
		if found, here := p.found[endpoint.UID]; here && rules != 0 {
			wanted = append(wanted, schedule.Endpoint{Number: endpoint.Number, Path: found.Path, Rules: rules})
		}
	}
	return wanted
}

// schedulingRules has a bit for each rule that asks for Braid's own strategy.
func schedulingRules(rules []v1alpha1.PlanRule) (mask uint64) {
	for i := range rules {
		for _, action := range rules[i].Actions {
			if action.Schedule != nil && action.Schedule.Strategy == v1alpha1.StrategyEarliestCompletionFirst {
				mask |= 1 << i
			}
		}
	}
	return mask
}

// matching reads from the programs' records which rules match what an endpoint
// sends on a subflow; none while the subflow is not known.
func (r *rules) matching(endpoint uint32, local, remote netip.AddrPort) uint64 {
	record, err := r.chains.Subflow(endpoint, local, remote)
	if err != nil || record == nil {
		return 0
	}
	return record.Sure[0] | record.Maybe[0]
}
