// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"braid.dev/braid/api/v1alpha1"
)

// RuleProblem is a reason why the rules of a policy cannot work. None of them
// is then applied, because half a chain may do what nobody wants.
type RuleProblem struct {
	// Rule is its name; empty when it is about all of them.
	Rule string `json:"rule,omitempty"`
	// Field is its place in the policy, such as spec.rules[2].match.paths[0].
	Field string `json:"field"`
	// Reason is one of those for the condition RulesAccepted.
	Reason string `json:"reason"`
	// Message says what is wrong and what is allowed.
	Message string `json:"message"`
}

// String names rule and field.
func (p RuleProblem) String() string {
	if p.Rule == "" {
		return p.Field + ": " + p.Message
	}
	return fmt.Sprintf("rule %s: %s: %s", p.Rule, p.Field, p.Message)
}

// ProgramObject names an object that programs are loaded from: a key in the
// binaryData of a ConfigMap in Braid's namespace.
type ProgramObject struct{ ConfigMap, Key string }

// ruleCheck looks for what is wrong with the rules of one policy.
type ruleCheck struct {
	policy   *compiledPolicy
	paths    []*path
	objects  map[ProgramObject]string // nil when they are not known
	problems []RuleProblem
	rule     string // the one that is looked at
}

var (
	rulesField    = field.NewPath("spec", "rules")
	programsField = field.NewPath("spec", "programs")
)

// checkRules finds the problems of a policy's rules and, when there are none,
// readies them for plans.
func (c *compiler) checkRules(p *compiledPolicy) {
	p.result.Rules = len(p.spec.Rules)
	check := &ruleCheck{policy: p, paths: c.paths, objects: c.programObjects}
	for i := range p.spec.Rules {
		check.one(&p.spec.Rules[i], rulesField.Index(i))
	}
	check.pairs()
	check.rule = "" // What follows is about all of them.
	p.rules = planRules(p)
	if excess := overLimit(p.rules); excess != "" {
		check.add(rulesField, v1alpha1.ReasonTooManyRules, "the policy has %s", excess)
	}
	p.result.RuleProblems = check.problems
}

func (k *ruleCheck) add(at *field.Path, reason, format string, args ...any) {
	k.problems = append(k.problems, RuleProblem{Rule: k.rule, Field: at.String(), Reason: reason, Message: fmt.Sprintf(format, args...)})
}

// one looks at a rule alone.
func (k *ruleCheck) one(rule *v1alpha1.Rule, at *field.Path) {
	k.rule = rule.Name
	var match *condition
	if rule.Match != nil {
		match = new(matchCondition(rule.Match, at.Child("match")))
		match.visit(k.selectors)
		if where, message := match.impossibility(); message != "" {
			k.add(where, v1alpha1.ReasonImpossibleMatch, "%s: the match can never hold", message)
		}
	}
	for i := range rule.Actions {
		k.action(&rule.Actions[i], match, at.Child("actions").Index(i))
	}
}

// selectors looks at one set of selectors.
func (k *ruleCheck) selectors(c *condition) {
	for i, name := range c.Paths {
		if findPath(k.paths, name) == nil {
			k.add(c.at.Child("paths").Index(i), v1alpha1.ReasonPathNotFound, "no MPTCPPath is named %s", name)
		}
	}
	if s := c.Sequence; s != nil {
		k.byteRange(s.Data, c.at.Child("sequence", "data"))
		k.byteRange(s.Subflow, c.at.Child("sequence", "subflow"))
	}
	if s := c.Sent; s != nil {
		k.byteRange(s.Subflow, c.at.Child("sent", "subflow"))
		k.byteRange(s.Connection, c.at.Child("sent", "connection"))
	}
	if p := c.Program; p != nil {
		k.program(p.Name, v1alpha1.ProgramAction, c.at.Child("program", "name"))
	}
}

// byteRange repeats what the API server checks, for policies that it has not seen.
func (k *ruleCheck) byteRange(r *v1alpha1.ByteRange, at *field.Path) {
	if r == nil {
		return
	}
	var from resource.Quantity
	if r.From != nil {
		from = *r.From
	}
	if from.Sign() < 0 || r.To != nil && from.Cmp(*r.To) >= 0 {
		k.add(at, v1alpha1.ReasonInvalidRule, "from must not be negative and must be below to")
	}
}

// Kinds of packets for which some actions can do nothing.
var (
	// lastPackets are those after which nothing more comes on their subflow.
	lastPackets = []v1alpha1.PacketType{v1alpha1.PacketReset, v1alpha1.PacketFastClose}
	// announcingNothing are those that never carry an announcement of an address.
	announcingNothing = []v1alpha1.PacketType{
		v1alpha1.PacketSYN, v1alpha1.PacketMPCapable, v1alpha1.PacketMPJoin, v1alpha1.PacketAddAddrEcho, v1alpha1.PacketReset, v1alpha1.PacketFastClose,
	}
)

func (k *ruleCheck) action(a *v1alpha1.Action, match *condition, at *field.Path) {
	if missing := missingParameter(a); missing != "" {
		k.add(at.Child(missing), v1alpha1.ReasonInvalidRule, "type %s needs it", a.Type)
		return
	}
	if isAsked(a) && !actionRules[a.Type].asked {
		k.add(at.Child("at"), v1alpha1.ReasonInvalidRule, "peers can be asked for %s, and not for %s", strings.Join(asked(), ", "), a.Type)
		return
	}
	if check := actionRules[a.Type].check; check != nil {
		check(k, a, at)
	}
	if match == nil {
		return
	}
	if why := unsuitable(a, match); why != "" {
		k.add(at, v1alpha1.ReasonImpossibleMatch, "%s cannot do anything for the packets that the rule matches: %s", a.Type, why)
	}
	if dishonours := actionRules[a.Type].dishonours; dishonours != nil {
		if why := dishonours(a, match); why != "" {
			k.add(at, v1alpha1.ReasonImpossibleMatch, "%s cannot honour the rule's match: %s", a.Type, why)
		}
	}
}

// onlyTypes says whether the packets must be of one of these types.
func (c *condition) onlyTypes(types []v1alpha1.PacketType) bool {
	return slices.ContainsFunc(c.together(), func(part *condition) bool {
		return len(part.PacketTypes) > 0 && !slices.ContainsFunc(part.PacketTypes, func(t v1alpha1.PacketType) bool { return !slices.Contains(types, t) })
	})
}

// onlyDirection says whether the packets must have this direction.
func (c *condition) onlyDirection(d v1alpha1.Direction) bool {
	return slices.ContainsFunc(c.together(), func(part *condition) bool { return part.Direction == d })
}

// The rates that can be asked for, in bits a second.
const (
	minRate = 8_000
	maxRate = 10_000_000_000_000
)

func (k *ruleCheck) rate(rate *resource.Quantity, at *field.Path) {
	if rate.CmpInt64(minRate) < 0 || rate.CmpInt64(maxRate) > 0 {
		k.add(at, v1alpha1.ReasonInvalidRule, "must be a rate in bits per second from 8k to 10T")
	}
}

// program looks for a program that an action names, and for its object.
func (k *ruleCheck) program(name string, want v1alpha1.ProgramType, at *field.Path) {
	if k.policy.result.Policy.Kind != KindClusterPolicy {
		k.add(at, v1alpha1.ReasonProgramNotFound, "programs belong to a %s, and this is an %s", KindClusterPolicy, KindPolicy)
		return
	}
	program := k.policy.program(name)
	switch {
	case program == nil:
		k.add(at, v1alpha1.ReasonProgramNotFound, "none of spec.programs is named %s", name)
	case programType(program) != want:
		k.add(at, v1alpha1.ReasonProgramNotFound, "the program %s has type %s, and this needs type %s", name, programType(program), want)
	case program.ConfigMap != nil && k.objects != nil:
		if _, exists := k.objects[objectOf(program)]; !exists {
			k.add(programsField.Key(name).Child("configMap"), v1alpha1.ReasonProgramNotFound,
				"Braid's namespace has no ConfigMap %s with %s in its binaryData", program.ConfigMap.Name, program.ConfigMap.Key)
		}
	}
}

func objectOf(b *v1alpha1.Program) ProgramObject {
	return ProgramObject{ConfigMap: b.ConfigMap.Name, Key: b.ConfigMap.Key}
}

// program is the policy's program of a name, nil if there is none.
func (r *compiledPolicy) program(name string) *v1alpha1.Program {
	for i := range r.programs {
		if r.programs[i].Name == name {
			return &r.programs[i]
		}
	}
	return nil
}

// programType is a program's type; objects that did not pass the API server lack
// its default.
func programType(b *v1alpha1.Program) v1alpha1.ProgramType {
	return firstGiven(b.Type, v1alpha1.ProgramAction)
}

// pairs looks for rules that cannot work beside another one: those that match
// the same packets, and those behind a rule that lets nothing through.
func (k *ruleCheck) pairs() {
	rules := k.policy.spec.Rules
	matches := make([]string, len(rules))
	for i := range rules {
		matches[i] = matchKey(rules[i].Match)
		k.rule = rules[i].Name
		for j := range i {
			// What programs answer may differ between packets that are alike.
			switch same := matches[i] == matches[j] && len(rules[i].Match.Programs()) == 0; {
			case ends(&rules[j]) && (same || rules[j].Match == nil):
				k.add(rulesField.Index(i), v1alpha1.ReasonContradictingRules, "it never runs: rule %s before it drops or resets everything that it matches", rules[j].Name)
			case same:
				k.contradictions(&rules[i], &rules[j], rulesField.Index(i))
			}
		}
		k.contradictions(&rules[i], &rules[i], rulesField.Index(i))
	}
}

// matchKey is equal for equal matches.
func matchKey(m *v1alpha1.Match) string {
	text, err := json.Marshal(m)
	if err != nil {
		panic(fmt.Sprintf("a match cannot be written as JSON: %v", err)) // its types all can
	}
	return string(text)
}

// certain are the actions that a rule carries out for every packet that it
// matches: a program may leave those behind it out.
func certain(rule *v1alpha1.Rule) []v1alpha1.Action {
	last := slices.IndexFunc(rule.Actions, func(a v1alpha1.Action) bool { return actionRules[a.Type].uncertain })
	if last < 0 {
		return rule.Actions
	}
	return rule.Actions[:last]
}

// ends says whether nothing runs after a rule.
func ends(rule *v1alpha1.Rule) bool {
	return slices.ContainsFunc(certain(rule), func(a v1alpha1.Action) bool { return actionRules[a.Type].ends })
}

// contradictions compares the actions of a rule with those of one before it
// that matches the same packets, or with its own.
func (k *ruleCheck) contradictions(rule, before *v1alpha1.Rule, at *field.Path) {
	own, others := certain(rule), certain(before)
	for i := range own {
		for j := range others {
			if rule == before && j >= i {
				break
			}
			if why := contradiction(&own[i], &others[j]); why != "" {
				k.add(at.Child("actions").Index(i), v1alpha1.ReasonContradictingRules,
					"it contradicts %s of rule %s, which matches the same packets: %s", others[j].Type, before.Name, why)
			}
		}
	}
}

func rateScope(r *v1alpha1.RateLimit) v1alpha1.RateLimitScope {
	return firstGiven(r.Per, v1alpha1.RateLimitPerSubflow)
}

// overLimit says what a chain has too much of; empty when it fits.
func overLimit(rules []v1alpha1.PlanRule) string {
	selectors, actions := 0, 0
	for i := range rules {
		actions += len(rules[i].Actions) + len(rules[i].Match.Programs())
		if m := rules[i].Match; m != nil {
			c := matchCondition(m, nil)
			c.visit(func(part *condition) { selectors += part.size() })
		}
	}
	var excess []string
	for _, part := range []struct {
		have, limit int
		what        string
	}{
		{len(rules), v1alpha1.MaxRules, "rules"},
		{actions, v1alpha1.MaxActions, "actions"},
		{selectors, v1alpha1.MaxSelectors, "selectors"},
	} {
		if part.have > part.limit {
			excess = append(excess, fmt.Sprintf("%d %s, and a chain can have %d", part.have, part.what, part.limit))
		}
	}
	return strings.Join(excess, "; ")
}
