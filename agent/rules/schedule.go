// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"context"
	"net/netip"

	"github.com/go-logr/logr"

	"braid.dev/braid/agent/chains"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/agent/schedule"
	"braid.dev/braid/api/v1alpha1"
)

// scheduling carries out the strategy that is Braid's own.
type scheduling struct {
	chains *chains.Chains
	*schedule.Scheduler
	log logr.Logger
}

func (s *scheduling) Apply(_ context.Context, model *node.Model) (report node.Report) {
	var wanted []schedule.Endpoint
	for _, g := range governedBy(s.chains, model) {
		if rules := schedulingRules(g.Rules); rules != 0 {
			wanted = append(wanted, schedule.Endpoint{Number: g.Number, Path: g.Namespace, Rules: rules})
		}
	}
	if err := s.Scheduler.Apply(wanted); err != nil {
		s.log.Error(err, "failed to schedule the connections of some endpoints")
	}
	return report
}

func (s *scheduling) Remove(context.Context) error { return s.Scheduler.Apply(nil) }

// schedulingRules has a bit for each rule that asks for Braid's own strategy.
func schedulingRules(rules []v1alpha1.PlanRule) (mask uint64) {
	for i := range rules {
		for _, action := range rules[i].Actions {
			if action.Schedule != nil && action.At != v1alpha1.ActionAtPeer && action.Schedule.Strategy == v1alpha1.StrategyEarliestCompletionFirst {
				mask |= 1 << i
			}
		}
	}
	return mask
}

// matching reads from the programs' records which rules match what an endpoint
// sends on a subflow; none while the subflow is not known.
func matching(c *chains.Chains) schedule.Matching {
	return func(endpoint uint32, local, remote netip.AddrPort) uint64 {
		record, err := c.Subflow(endpoint, local, remote)
		if err != nil || record == nil {
			return 0
		}
		return record.Sure[0] | record.Maybe[0]
	}
}
