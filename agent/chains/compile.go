// SPDX-License-Identifier: Apache-2.0

// Package chains turns the rules of a node's plan into the chains that the
// endpoint half runs, and keeps its programs and maps as the plan says.
package chains

import (
	"fmt"
	"hash/fnv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"braid.dev/braid/agent/blocks"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/bpf/endpoint"
)

// BlockName names a custom block of the cluster's policy.
type BlockName struct{ Policy, Name string }

// Surroundings are what the node gives to the names in rules.
type Surroundings struct {
	// Paths are the slots of the node's paths, 0 to 7. A path that is not here
	// has no subflows on this node.
	Paths map[string]uint8
	// Blocks are the slots of the custom blocks that are loaded.
	Blocks map[BlockName]uint32
	// Refused says why other custom blocks are not.
	Refused map[BlockName]error
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
	programs     int
	limits       map[uint32]bool // numbers that are in use
}

func (c *compiler) rule(rule *v1alpha1.PlanRule) error {
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
	if c.actions+len(rule.Actions) > endpoint.MaxActions {
		return fmt.Errorf("actions: with this rule the chain has %d actions, and can have %d at most", c.actions+len(rule.Actions), endpoint.MaxActions)
	}
	compiled.FirstAction, compiled.Actions = uint16(c.actions), uint8(len(rule.Actions))
	for i := range rule.Actions {
		action, err := c.action(rule, i)
		if err != nil {
			return err
		}
		action.Flag |= enforcedFlags(rule, action.Kind)
		compiled.Enforces |= enforced(action)
		compiled.Needs |= actionNeeds(action)
		c.chain.Action[c.actions] = action
		c.actions++
	}
	return nil
}

// action translates one action of the rule.
func (c *compiler) action(rule *v1alpha1.PlanRule, i int) (Action, error) {
	action, at := &rule.Actions[i], field.NewPath("actions").Index(i)
	switch action.Type {
	case v1alpha1.ActionRateLimit:
		return c.rateLimit(rule, i, at.Child("rateLimit"))
	case v1alpha1.ActionSetBackup:
		if action.SetBackup == nil || action.SetBackup.Backup == nil {
			return Action{}, field.Required(at.Child("setBackup", "backup"), "say whether the subflows become backups")
		}
		return Action{Kind: endpoint.ActionSetBackup, Flag: bit(*action.SetBackup.Backup)}, nil
	case v1alpha1.ActionSuppressAddAddr:
		return Action{Kind: endpoint.ActionSuppressAddAddr, Flag: bit(action.SuppressAddAddr != nil && action.SuppressAddAddr.Answer)}, nil
	case v1alpha1.ActionRunProgram:
		return c.custom(rule, i, at.Child("runProgram"))
	}
	kind, ok := plainActions[action.Type]
	if !ok {
		return Action{}, field.NotSupported(at.Child("type"), action.Type, knownActions)
	}
	return Action{Kind: kind}, nil
}

// plainActions are those without parameters here.
var plainActions = map[v1alpha1.ActionType]uint8{
	v1alpha1.ActionReleaseAddAddr:   endpoint.ActionReleaseAddAddr,
	v1alpha1.ActionReportConnection: endpoint.ActionReportConnection,
	v1alpha1.ActionReportSubflow:    endpoint.ActionReportSubflow,
	v1alpha1.ActionRecord:           endpoint.ActionRecord,
	v1alpha1.ActionDrop:             endpoint.ActionDrop,
	v1alpha1.ActionReset:            endpoint.ActionReset,
	v1alpha1.ActionSchedule:         endpoint.ActionStack,
	v1alpha1.ActionCongestion:       endpoint.ActionStack,
}

var knownActions = []v1alpha1.ActionType{
	v1alpha1.ActionRateLimit, v1alpha1.ActionSetBackup, v1alpha1.ActionSuppressAddAddr, v1alpha1.ActionReleaseAddAddr,
	v1alpha1.ActionReportConnection, v1alpha1.ActionReportSubflow, v1alpha1.ActionRecord, v1alpha1.ActionDrop,
	v1alpha1.ActionReset, v1alpha1.ActionSchedule, v1alpha1.ActionCongestion, v1alpha1.ActionRunProgram,
}

var (
	mechanisms = map[v1alpha1.RateLimitMechanism]uint8{
		"": endpoint.MechanismAuto, v1alpha1.RateLimitAuto: endpoint.MechanismAuto, v1alpha1.RateLimitPace: endpoint.MechanismPace,
		v1alpha1.RateLimitWindow: endpoint.MechanismWindow, v1alpha1.RateLimitPolice: endpoint.MechanismPolice,
	}
	scopes = map[v1alpha1.RateLimitScope]uint8{
		"": endpoint.ScopeSubflow, v1alpha1.RateLimitPerSubflow: endpoint.ScopeSubflow,
		v1alpha1.RateLimitPerConnection: endpoint.ScopeConnection, v1alpha1.RateLimitPerEndpoint: endpoint.ScopeEndpoint,
	}
)

func (c *compiler) rateLimit(rule *v1alpha1.PlanRule, i int, at *field.Path) (Action, error) {
	wanted := rule.Actions[i].RateLimit
	if wanted == nil {
		return Action{}, field.Required(at, "give a rate")
	}
	bits := wanted.Rate.Value()
	if bits < 8 || wanted.Rate.CmpInt64(bits) != 0 {
		return Action{}, field.Invalid(at.Child("rate"), wanted.Rate.String(), "must be a whole number of bits a second, 8 at least")
	}
	mechanism, known := mechanisms[wanted.Mechanism]
	if !known {
		return Action{}, field.Invalid(at.Child("mechanism"), wanted.Mechanism, "is not known to this agent")
	}
	scope, known := scopes[wanted.Per]
	if !known {
		return Action{}, field.Invalid(at.Child("per"), wanted.Per, "is not known to this agent")
	}
	return Action{
		Kind: endpoint.ActionRateLimit, Mechanism: mechanism, Scope: scope, Limit: c.limit(rule, i), Rate: uint64(bits) / 8,
	}, nil
}

// limit numbers a limit by its name, so that it is the same one, with what it has
// used up, after other rules of the chain came and went. It is never 0.
func (c *compiler) limit(rule *v1alpha1.PlanRule, i int) uint32 {
	hash := fnv.New32a()
	fmt.Fprintf(hash, "%s %s %d", rule.Policy, rule.Name, i)
	number := hash.Sum32()
	for number == 0 || c.limits[number] {
		number++
	}
	c.limits[number] = true
	return number
}

func (c *compiler) custom(rule *v1alpha1.PlanRule, i int, at *field.Path) (Action, error) {
	wanted := rule.Actions[i].RunProgram
	if wanted == nil {
		return Action{}, field.Required(at, "name a program")
	}
	name := BlockOf(rule, wanted.Program)
	slot, loaded := c.surroundings.Blocks[name]
	if !loaded {
		return Action{}, field.Invalid(at.Child("program"), wanted.Program, c.whyNot(name))
	}
	if c.programs++; c.programs > blocks.MaxCalls {
		return Action{}, field.TooMany(at, c.programs, blocks.MaxCalls)
	}
	return Action{Kind: endpoint.ActionRunProgram, Limit: slot, Value: wanted.Value}, nil
}

func (c *compiler) whyNot(name BlockName) string {
	if reason := c.surroundings.Refused[name]; reason != nil {
		return "is not loaded on this node: " + reason.Error()
	}
	return "is not loaded on this node"
}

// BlockOf is the block that a rule refers to by this name: one of its own policy,
// whose name is the last part of ClusterMPTCPPolicy/edge.
func BlockOf(rule *v1alpha1.PlanRule, name string) BlockName {
	return BlockName{Policy: rule.Policy[strings.LastIndexByte(rule.Policy, '/')+1:], Name: name}
}

// enforcedFlags mark what rules of tenants must not undo: the effects that last, where
// a rule of the cluster asks for them.
func enforcedFlags(rule *v1alpha1.PlanRule, kind uint8) uint8 {
	lasts := kind == endpoint.ActionRateLimit || kind == endpoint.ActionSetBackup || kind == endpoint.ActionSuppressAddAddr || kind == endpoint.ActionReleaseAddAddr
	switch {
	case !lasts || rule.IsTenants():
		return 0
	case rule.Policy == v1alpha1.GuardrailsOwner && kind == endpoint.ActionRateLimit:
		return endpoint.FlagEnforced | endpoint.FlagMetered // at the node's NICs
	}
	return endpoint.FlagEnforced
}

// enforced are what an action makes its rule enforce.
func enforced(action Action) uint8 {
	if action.Flag&endpoint.FlagEnforced == 0 {
		return 0
	}
	return enforcedBy[action.Kind]
}

var enforcedBy = map[uint8]uint8{
	endpoint.ActionSetBackup: endpoint.EnforcesBackup, endpoint.ActionSuppressAddAddr: endpoint.EnforcesSuppression,
	endpoint.ActionReleaseAddAddr: endpoint.EnforcesRelease, endpoint.ActionRateLimit: endpoint.EnforcesRate,
}

func bit(set bool) uint8 {
	if set {
		return 1
	}
	return 0
}

// actionNeeds is what an action must know beside the headers of the packet and
// the record of its subflow.
func actionNeeds(action Action) (needs uint8) {
	switch action.Kind {
	case endpoint.ActionRateLimit, endpoint.ActionSetBackup, endpoint.ActionSuppressAddAddr, endpoint.ActionReleaseAddAddr, endpoint.ActionRecord, endpoint.ActionRunProgram:
		needs |= endpoint.NeedsOptions
	case endpoint.ActionReportConnection:
		needs |= endpoint.NeedsConnection
	}
	if action.Kind == endpoint.ActionRateLimit && action.Scope == scopes[v1alpha1.RateLimitPerConnection] {
		needs |= endpoint.NeedsConnection
	}
	return needs
}
