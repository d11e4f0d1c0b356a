// SPDX-License-Identifier: Apache-2.0

package chains

import (
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"braid.dev/braid/agent/programs"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/bpf/endpoint"
)

// actionForm is how an action of the API stands in a chain.
type actionForm struct {
	kind uint8 // of enum action_kind
	// needs is what it must know beside the headers of the packet and the record of
	// its subflow (enum needs).
	needs uint8
	// enforces is the bit of an effect that lasts, and that rules of tenants must not
	// undo where a rule of the cluster asks for it (enum rule_enforces); 0 for others.
	enforces uint8
	// compile fills in what the parameters say; nil where there are none.
	compile func(*compiler, *actionContext) error
}

// actionContext is an action of a rule, its place, and what it becomes.
type actionContext struct {
	*v1alpha1.Action
	rule   *v1alpha1.PlanRule
	number int
	at     *field.Path
	into   *Action
}

// actionForms has all actions of the API.
var actionForms = map[v1alpha1.ActionType]actionForm{
	v1alpha1.ActionRateLimit: {
		kind: endpoint.ActionRateLimit, needs: endpoint.NeedsOptions, enforces: endpoint.EnforcesRate, compile: (*compiler).rateLimit,
	},
	v1alpha1.ActionSetBackup: {
		kind: endpoint.ActionSetBackup, needs: endpoint.NeedsOptions, enforces: endpoint.EnforcesBackup, compile: (*compiler).setBackup,
	},
	v1alpha1.ActionSuppressAddAddr: {
		kind: endpoint.ActionSuppressAddAddr, needs: endpoint.NeedsOptions, enforces: endpoint.EnforcesSuppression, compile: (*compiler).suppressAddAddr,
	},
	v1alpha1.ActionReleaseAddAddr: {
		kind: endpoint.ActionReleaseAddAddr, needs: endpoint.NeedsOptions, enforces: endpoint.EnforcesRelease,
	},
	v1alpha1.ActionReportConnection: {kind: endpoint.ActionReportConnection, needs: endpoint.NeedsConnection},
	v1alpha1.ActionReportSubflow:    {kind: endpoint.ActionReportSubflow},
	v1alpha1.ActionRecord:           {kind: endpoint.ActionRecord, needs: endpoint.NeedsOptions},
	v1alpha1.ActionDrop:             {kind: endpoint.ActionDrop},
	v1alpha1.ActionReset:            {kind: endpoint.ActionReset},
	// These two govern the pod's sockets: the packet programs tell those which rules hold.
	// So does what is asked of peers (at: Peer).
	v1alpha1.ActionSchedule:   {kind: endpoint.ActionStack},
	v1alpha1.ActionCongestion: {kind: endpoint.ActionStack},
	v1alpha1.ActionRunProgram: {kind: endpoint.ActionRunProgram, needs: endpoint.NeedsOptions, compile: (*compiler).runProgram},
}

// action translates one action of the rule, and says what its rule needs and enforces
// because of it.
func (c *compiler) action(rule *v1alpha1.PlanRule, i int, compiled *Rule) (action Action, err error) {
	at := field.NewPath("actions").Index(i)
	form, known := actionForms[rule.Actions[i].Type]
	if !known {
		return action, field.NotSupported(at.Child("type"), rule.Actions[i].Type, slices.Sorted(maps.Keys(actionForms)))
	}
	if rule.Actions[i].At == v1alpha1.ActionAtPeer {
		form = actionForm{kind: endpoint.ActionStack}
	}
	action.Kind = form.kind
	compiled.Needs |= form.needs
	if form.compile != nil {
		if err := form.compile(c, &actionContext{&rule.Actions[i], rule, i, at, &action}); err != nil {
			return action, err
		}
	}
	if action.Scope == endpoint.ScopeConnection {
		compiled.Needs |= endpoint.NeedsConnection
	}
	if form.enforces != 0 && !rule.IsTenants() {
		action.Flag |= endpoint.FlagEnforced
		compiled.Enforces |= form.enforces
	}
	return action, nil
}

// The values of enum mechanism and enum scope.
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

func (c *compiler) rateLimit(a *actionContext) error {
	wanted, at := a.RateLimit, a.at.Child("rateLimit")
	if wanted == nil {
		return field.Required(at, "give a rate")
	}
	bits := wanted.Rate.Value()
	if bits < 8 || wanted.Rate.CmpInt64(bits) != 0 {
		return field.Invalid(at.Child("rate"), wanted.Rate.String(), "must be a whole number of bits a second, 8 at least")
	}
	var known bool
	if a.into.Mechanism, known = mechanisms[wanted.Mechanism]; !known {
		return field.Invalid(at.Child("mechanism"), wanted.Mechanism, "is not known to this agent")
	}
	if a.into.Scope, known = scopes[wanted.Per]; !known {
		return field.Invalid(at.Child("per"), wanted.Per, "is not known to this agent")
	}
	a.into.Limit, a.into.Rate = c.limit(a.rule, a.number), uint64(bits)/8
	if a.rule.Policy == v1alpha1.GuardrailsOwner {
		a.into.Flag = endpoint.FlagMetered // at the node's NICs
	}
	return nil
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

func (*compiler) setBackup(a *actionContext) error {
	if a.SetBackup == nil || a.SetBackup.Backup == nil {
		return field.Required(a.at.Child("setBackup", "backup"), "say whether the subflows become backups")
	}
	a.into.Flag = bit(*a.SetBackup.Backup)
	return nil
}

func (*compiler) suppressAddAddr(a *actionContext) error {
	a.into.Flag = bit(a.SuppressAddAddr != nil && a.SuppressAddAddr.Answer)
	return nil
}

func bit(set bool) uint8 {
	if set {
		return 1
	}
	return 0
}

func (c *compiler) runProgram(a *actionContext) (err error) {
	if a.RunProgram == nil {
		return field.Required(a.at.Child("runProgram"), "name a program")
	}
	a.into.Value = a.RunProgram.Value
	a.into.Limit, err = c.call(a.rule, a.RunProgram.Program, a.at.Child("runProgram"), "program")
	return err
}

// call is the slot of a program of the rule's policy, which a field at a place names.
func (c *compiler) call(rule *v1alpha1.PlanRule, program string, at *field.Path, name string) (slot uint32, err error) {
	called := ProgramOf(rule, program)
	slot, loaded := c.surroundings.Programs[called]
	if !loaded {
		return 0, field.Invalid(at.Child(name), program, c.whyNot(called))
	}
	if c.programs++; c.programs > programs.MaxCalls {
		return 0, field.TooMany(at, c.programs, programs.MaxCalls)
	}
	return slot, nil
}

func (c *compiler) whyNot(name ProgramName) string {
	if reason := c.surroundings.Refused[name]; reason != nil {
		return "is not loaded on this node: " + reason.Error()
	}
	return "is not loaded on this node"
}

// ProgramOf is the program that a rule refers to by this name: one of its own policy,
// whose name is the last part of ClusterMPTCPPolicy/edge.
func ProgramOf(rule *v1alpha1.PlanRule, name string) ProgramName {
	return ProgramName{Policy: rule.Policy[strings.LastIndexByte(rule.Policy, '/')+1:], Name: name}
}
