// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"braid.dev/braid/api/v1alpha1"
)

// What one node's plan can hold. An object of Kubernetes has 1.5 MiB at most, with
// the endpoints and what the agent says of them.
const (
	maxPrograms   = 64
	maxChainBytes = 512 << 10
	// Of that, what chains with the rules or rates of one namespace can take, and
	// those of all namespaces together.
	maxTenantBytes  = 128 << 10
	maxTenantsBytes = 384 << 10
)

// RulesChoice says whether the rules of a policy run for a pod, and why.
type RulesChoice struct {
	Policy v1alpha1.PolicyReference `json:"policy"`
	// Rules are their names, in their order.
	Rules   []string `json:"rules"`
	Applied bool     `json:"applied"`
	// Reason says why these rules run at this place of the chain, or why none of
	// them does.
	Reason string `json:"reason"`
}

// chain is what two policies' rules come to together.
type chain struct {
	plan     v1alpha1.PlanChain
	bytes    int // of its rules as JSON
	programs []v1alpha1.PlanProgram
	choices  []RulesChoice
	// shadowed are the rules of the namespaced policy that never run; none with Rules 0.
	shadowed RulesShadowed
	// excess says for a policy what its rules make too many.
	excess map[*compiledPolicy]string
}

// owners are the policies whose rules a chain has: the cluster's first. Either
// may be nil. In front of their rules stands the one that keeps a pod's rate, if
// there is one.
type owners struct {
	cluster, namespaced *compiledPolicy
	maxRate             int64
}

// ownersOf says whose rules a pod runs, given the policies that select it in
// order of precedence.
func ownersOf(matching []*compiledPolicy) owners {
	var o owners
	if len(matching) == 0 {
		return o
	}
	if winner := matching[0]; winner.namespaces == nil && len(winner.spec.Rules) > 0 {
		o.namespaced = winner
	}
	for _, p := range matching {
		if p.namespaces != nil && len(p.spec.Rules) > 0 {
			o.cluster = p
			break
		}
	}
	return o
}

// chain makes the chain of two policies and a rate, once.
func (c *compiler) chain(o owners) *chain {
	if made := c.chains[o]; made != nil {
		return made
	}
	made := &chain{excess: map[*compiledPolicy]string{}}
	c.chains[o] = made
	if o.maxRate > 0 {
		made.plan.Rules = []v1alpha1.PlanRule{maxRateRule(o.maxRate)}
	}
	if o.cluster != nil {
		made.add(o.cluster, "of the policies for the cluster that have rules and select the pod it has the highest precedence, and its rules run first")
	}
	if o.namespaced != nil {
		made.add(o.namespaced, "it decides for the pod")
	}
	if len(made.plan.Rules) > 0 {
		made.plan.Name, made.bytes = contentName(made.plan.Rules)
		made.programs = c.planPrograms(o.cluster, made.plan.Rules)
	}
	return made
}

// add puts a policy's rules behind those that are there, all or none of them.
func (ch *chain) add(p *compiledPolicy, reason string) {
	choice := RulesChoice{Policy: p.result.Policy, Reason: reason}
	for _, rule := range p.spec.Rules {
		choice.Rules = append(choice.Rules, rule.Name)
	}
	together := slices.Concat(ch.plan.Rules, p.rules)
	switch problems := p.result.RuleProblems; {
	case len(problems) > 0:
		choice.Reason = "none of them is applied: " + problems[0].String()
	case overLimit(together) != "":
		ch.excess[p] = fmt.Sprintf("together with %s the chain has %s", ch.others(), overLimit(together))
		choice.Reason = "none of them is applied: " + ch.excess[p]
	default:
		choice.Applied = true
		ch.shadow(p, &choice)
		ch.plan.Rules = together
	}
	ch.choices = append(ch.choices, choice)
}

// shadow notes which of a policy's rules never run behind those that are there. Those of
// its own before them are a problem of the policy's.
func (ch *chain) shadow(p *compiledPolicy, choice *RulesChoice) {
	for i := range p.rules {
		for j := range ch.plan.Rules {
			before := &ch.plan.Rules[j]
			if !ends(&before.Rule) || before.Match != nil && matchKey(before.Match) != matchKey(p.rules[i].Match) {
				continue
			}
			if ch.shadowed.Rules++; ch.shadowed.Rules == 1 {
				by := ch.choices[len(ch.choices)-1].Policy // a rule that keeps a rate ends nothing
				ch.shadowed = RulesShadowed{Rule: p.rules[i].Name, Rules: 1, By: by, ByRule: before.Name}
			}
			choice.Reason += fmt.Sprintf("; rule %s never runs: rule %s of %s before it drops or resets everything that it matches",
				p.rules[i].Name, before.Name, before.Policy)
			break
		}
	}
}

// others names what a chain has already.
func (ch *chain) others() string {
	var parts []string
	if ch.plan.Rules[0].Policy == v1alpha1.GuardrailsOwner {
		parts = append(parts, "the rule that keeps the pod's rate")
	}
	for _, choice := range ch.choices {
		if choice.Applied {
			parts = append(parts, "the rules of "+PolicyString(choice.Policy))
		}
	}
	return join(parts, " and ")
}

// planRules are a policy's rules for plans, with the defaults filled in that
// objects lack which did not pass the API server.
func planRules(p *compiledPolicy) []v1alpha1.PlanRule {
	owner := RuleOwner(p.result.Policy)
	rules := make([]v1alpha1.PlanRule, 0, len(p.spec.Rules))
	for i := range p.spec.Rules {
		rule := v1alpha1.PlanRule{Rule: *p.spec.Rules[i].DeepCopy(), Policy: owner}
		for j := range rule.Actions {
			if limit := rule.Actions[j].RateLimit; limit != nil {
				limit.Per = rateScope(limit)
				limit.Mechanism = firstGiven(limit.Mechanism, v1alpha1.RateLimitAuto)
			}
		}
		rules = append(rules, rule)
	}
	return rules
}

// RuleOwner names a policy as PlanRule.Policy and RuleStatus.Policy do:
// MPTCPPolicy/NAMESPACE/NAME or ClusterMPTCPPolicy/NAME.
func RuleOwner(p v1alpha1.PolicyReference) string {
	if p.Namespace == "" {
		return p.Kind + "/" + p.Name
	}
	return p.Kind + "/" + p.Namespace + "/" + p.Name
}

// contentName is a name made from the content of rules, and the content's size.
func contentName(rules []v1alpha1.PlanRule) (name string, size int) {
	text, err := json.Marshal(rules)
	if err != nil {
		panic(fmt.Sprintf("rules cannot be written as JSON: %v", err)) // their types all can
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8]), len(text)
}

// planPrograms lists the programs of a policy that rules refer to, by name.
func (c *compiler) planPrograms(p *compiledPolicy, rules []v1alpha1.PlanRule) []v1alpha1.PlanProgram {
	if p == nil {
		return nil
	}
	var programs []v1alpha1.PlanProgram
	for i := range p.programs {
		program := v1alpha1.PlanProgram{Program: *p.programs[i].DeepCopy(), Policy: p.result.Policy.Name}
		if !refers(rules, RuleOwner(p.result.Policy), program.Name) {
			continue
		}
		program.Type = programType(&program.Program)
		if program.ConfigMap != nil {
			program.Revision = c.programObjects[objectOf(&program.Program)]
		}
		programs = append(programs, program)
	}
	slices.SortFunc(programs, comparePlanPrograms)
	return programs
}

// refers says whether rules of this owner name a program.
func refers(rules []v1alpha1.PlanRule, owner, program string) bool {
	return slices.ContainsFunc(rules, func(rule v1alpha1.PlanRule) bool {
		return rule.Policy == owner && (slices.ContainsFunc(rule.Match.Programs(), func(asked v1alpha1.ProgramSelector) bool {
			return asked.Name == program
		}) || slices.ContainsFunc(rule.Actions, func(a v1alpha1.Action) bool { return calls(&a, program) }))
	})
}

func calls(a *v1alpha1.Action, program string) bool {
	return a.RunProgram != nil && a.RunProgram.Program == program ||
		a.Schedule != nil && a.Schedule.Strategy == program ||
		a.Congestion != nil && a.Congestion.Algorithm == program
}

func comparePlanPrograms(a, b v1alpha1.PlanProgram) int {
	return cmp.Or(strings.Compare(a.Policy, b.Policy), strings.Compare(a.Name, b.Name))
}

// useChain gives a pod the chain of the policies that select it and of its rate,
// and notes with them what became of their rules.
func (c *compiler) useChain(n *node, d *Decision, matching []*compiledPolicy) {
	o := ownersOf(matching)
	ch, leftOut := c.place(n, d, o)
	d.Rules = withoutRules(c.chain(o).choices, leftOut)
	for p, reason := range c.chain(o).excess {
		leftOut[p] = reason
	}
	for _, p := range []*compiledPolicy{o.cluster, o.namespaced} {
		if reason := leftOut[p]; p != nil && reason != "" {
			share := n.share(p)
			share.rulesLeftOut = append(share.rulesLeftOut, RulesLeftOut{Pod: d.Pod, Reason: reason})
		}
	}
	if ch == nil || ch.plan.Name == "" {
		return
	}
	d.Chain = ch.plan.Name
	if shadowed := ch.shadowed; shadowed.Rules > 0 {
		shadowed.Pod = d.Pod
		share := n.share(o.namespaced)
		share.rulesShadowed = append(share.rulesShadowed, shadowed)
	}
	if o.cluster != nil && o.cluster != matching[0] && len(o.cluster.result.RuleProblems) == 0 && leftOut[o.cluster] == "" {
		share := n.share(o.cluster)
		share.rulesOnly = append(share.rulesOnly, d.Pod)
	}
}

// place finds the chain of a pod and puts it into the node's plan. For whose rules
// there is no room, it says why. The rule that keeps the pod's rate gives way to
// the others, because the limit at the uplinks holds without it, and a tenant's
// rules give way to the cluster's.
func (c *compiler) place(n *node, d *Decision, o owners) (ch *chain, leftOut map[*compiledPolicy]string) {
	leftOut = map[*compiledPolicy]string{}
	full, tenant := c.chain(o), ""
	if o.namespaced != nil {
		tenant = d.Pod.Namespace
	}
	if d.Guard != nil && d.Guard.MaxRate > 0 {
		if ch, d.GuardReason = c.limitedChain(n, d, o, full); d.GuardReason == "" {
			return ch, leftOut
		}
	}
	reason := n.addChain(full, tenant)
	if reason == "" {
		return full, leftOut
	}
	leftOut[o.namespaced] = reason
	if o.cluster != nil && o.namespaced != nil {
		ch = c.chain(owners{cluster: o.cluster})
		if reason = n.addChain(ch, ""); reason == "" {
			return ch, leftOut
		}
	}
	leftOut[o.cluster] = reason
	return nil, leftOut
}

// limitedChain is a pod's chain with the rule that keeps its rate, or says why it
// cannot have that.
func (c *compiler) limitedChain(n *node, d *Decision, o owners, without *chain) (ch *chain, noRoom string) {
	if reason := n.addRate(d.Pod.Namespace, d.Guard.MaxRate); reason != "" {
		return nil, reason
	}
	o.maxRate = d.Guard.MaxRate
	if ch = c.chain(o); len(ch.excess) > len(without.excess) {
		return nil, "the pod's chain has no room for one more rule"
	}
	return ch, n.addChain(ch, d.Pod.Namespace)
}

// maxRates is how many different rates of the pods of one namespace get chains on
// one node: each is a chain of its own, and annotations are the tenants'.
const maxRates = 16

// addRate makes room for a rate among those of its namespace, or says why there
// is none.
func (n *node) addRate(namespace string, rate int64) (noRoom string) {
	rates := n.rates[namespace]
	switch {
	case rate > maxRate:
		return "rules go up to 10T"
	case slices.Contains(rates, rate):
		return ""
	case len(rates) == maxRates:
		return fmt.Sprintf("the pods of namespace %s have more than %d different rates on node %s", namespace, maxRates, n.name)
	}
	n.rates[namespace] = append(rates, rate)
	return ""
}

// withoutRules are the choices where some policies' rules find no room.
func withoutRules(choices []RulesChoice, leftOut map[*compiledPolicy]string) []RulesChoice {
	refused := slices.Clone(choices)
	for p, reason := range leftOut {
		for i := range refused {
			if p != nil && refused[i].Policy == p.result.Policy {
				refused[i].Applied, refused[i].Reason = false, "none of them is applied: "+reason
			}
		}
	}
	return refused
}

// addChain puts a chain into the node's plan, or says why there is no room for
// it or its programs. Of a tenant, the namespace that is given, and of all of them
// together there is less room, so that none takes it from others or the cluster.
func (n *node) addChain(ch *chain, tenant string) (noRoom string) {
	if ch.plan.Name == "" || slices.ContainsFunc(n.chains, func(other *chain) bool { return other.plan.Name == ch.plan.Name }) {
		return ""
	}
	programs := slices.Clone(n.programs)
	for _, program := range ch.programs {
		if i, found := slices.BinarySearchFunc(programs, program, comparePlanPrograms); !found {
			programs = slices.Insert(programs, i, program)
		}
	}
	switch {
	case len(programs) > maxPrograms:
		return fmt.Sprintf("node %s has more than %d programs", n.name, maxPrograms)
	case n.chainBytes+ch.bytes > maxChainBytes:
		return fmt.Sprintf("the different rules of the pods of node %s take more than %d KiB", n.name, maxChainBytes>>10)
	case tenant != "" && n.tenantBytes[tenant]+ch.bytes > maxTenantBytes:
		return fmt.Sprintf("the different rules of the pods of namespace %s take more than %d KiB on node %s", tenant, maxTenantBytes>>10, n.name)
	case tenant != "" && n.tenantsBytes+ch.bytes > maxTenantsBytes:
		return fmt.Sprintf("the different rules of the pods of all namespaces take more than %d KiB on node %s", maxTenantsBytes>>10, n.name)
	}
	n.programs, n.chains = programs, append(n.chains, ch)
	n.chainBytes += ch.bytes
	if tenant != "" {
		n.tenantBytes[tenant] += ch.bytes
		n.tenantsBytes += ch.bytes
	}
	return ""
}

// planChains lists the chains of the node's endpoints by name, each once.
func (n *node) planChains() []v1alpha1.PlanChain {
	var chains []v1alpha1.PlanChain
	for _, ch := range n.chains {
		chains = append(chains, ch.plan)
	}
	slices.SortFunc(chains, func(a, b v1alpha1.PlanChain) int { return strings.Compare(a.Name, b.Name) })
	return chains
}
