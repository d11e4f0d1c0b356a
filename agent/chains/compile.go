// SPDX-License-Identifier: Apache-2.0

// Package chains turns the rules of a node's plan into the chains that the
// endpoint half runs, and keeps its programs and maps as the plan says.
package chains

import (
	"fmt"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/bpf/endpoint"
)

// ProgramName names a custom program of the cluster's policy.
type ProgramName struct{ Policy, Name string }

// Surroundings are what the node gives to the names in rules.
type Surroundings struct {
	// Paths are the slots of the node's paths, 0 to 7. A path that is not here
	// has no subflows on this node.
	Paths map[string]uint8
	// Programs are the slots of the custom programs that are loaded.
	Programs map[ProgramName]uint32
	// Refused says why other custom programs are not.
	Refused map[ProgramName]error
}

// Compile turns rules into a chain. The error names the rule and the field that
// do not fit.
func Compile(rules []v1alpha1.PlanRule, surroundings Surroundings) (*Chain, error) {
	if len(rules) > endpoint.MaxRules {
		return nil, fmt.Errorf("%d rules: a chain can have %d at most", len(rules), endpoint.MaxRules)
	}
	c := compiler{surroundings: surroundings, chain: &Chain{}, limits: map[uint32]bool{}}
	for i := range rules {
		if err := c.rule(&rules[i]); err != nil {
			return nil, fmt.Errorf("rule %q of %s: %w", rules[i].Name, rules[i].Policy, err)
		}
	}
	return c.chain, nil
}

type compiler struct {
	surroundings Surroundings
	chain        *Chain
	selectors    int // that are in use
	actions      int
	programs     int // that are called
	asked        int // of these in matches: a turn of the chain's loop each, as an action
	at           *v1alpha1.PlanRule
	limits       map[uint32]bool // numbers that are in use
}

func (c *compiler) rule(rule *v1alpha1.PlanRule) error {
	c.at = rule
	condition, err := c.match(rule.Match)
	if err != nil {
		return err
	}
	compiled := &c.chain.Rule[c.chain.Rules]
	if compiled.FirstSelector, err = c.place(condition); err != nil {
		return err
	}
	compiled.Directions = condition.directions()
	compiled.Needs = condition.needs()
	if err := c.placeActions(rule, compiled); err != nil {
		return err
	}
	c.chain.Needs |= uint32(compiled.Needs)
	c.chain.Rules++
	return nil
}

// place lays the graph of a condition out behind those of the rules before.
func (c *compiler) place(condition condition) (first uint16, err error) {
	switch condition.kind {
	case always:
		return endpoint.Matched, nil
	case never:
		return endpoint.NotMatched, nil
	}
	first = uint16(c.selectors)
	if c.selectors += condition.size(); c.selectors > endpoint.MaxSelectors {
		return 0, fmt.Errorf("match: with this rule the chain has %d conditions, and can have %d at most", c.selectors, endpoint.MaxSelectors)
	}
	condition.place(c.chain.Selector[:], int(first), endpoint.Matched, endpoint.NotMatched)
	return first, nil
}

func (c *compiler) placeActions(rule *v1alpha1.PlanRule, compiled *Rule) error {
	if steps := c.actions + c.asked + len(rule.Actions); steps > endpoint.MaxActions {
		return fmt.Errorf("actions: with this rule the chain has %d actions, and can have %d at most", steps, endpoint.MaxActions)
	}
	compiled.FirstAction, compiled.Actions = uint16(c.actions), uint8(len(rule.Actions))
	for i := range rule.Actions {
		action, err := c.action(rule, i, compiled)
		if err != nil {
			return err
		}
		c.chain.Action[c.actions] = action
		c.actions++
	}
	return nil
}
