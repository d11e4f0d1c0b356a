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
	maxBlocks     = 64
	maxChainBytes = 512 << 10
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
	plan    v1alpha1.PlanChain
	bytes   int // of its rules as JSON
	blocks  []v1alpha1.PlanBlock
	choices []RulesChoice
	// excess is what the second policy's rules are too many of.
	excess string
}

// owners are the policies whose rules a chain has: the cluster's first. Either
// may be nil.
type owners struct{ cluster, namespaced *compiledPolicy }

// ownersOf says whose rules a pod runs, given the policies that select it in
// order of precedence.
func ownersOf(matching []*compiledPolicy) owners {
	var o owners
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

// chain makes the chain of two policies, once.
func (c *compiler) chain(o owners) *chain {
	if made := c.chains[o]; made != nil {
		return made
	}
	made := &chain{}
	c.chains[o] = made
	if o.cluster != nil {
		made.add(o.cluster, "of the policies for the cluster that have rules and select the pod it has the highest precedence, and its rules run first")
	}
	if o.namespaced != nil {
		made.add(o.namespaced, "it decides for the pod")
	}
	if len(made.plan.Rules) > 0 {
		made.plan.Name, made.bytes = contentName(made.plan.Rules)
		made.blocks = c.planBlocks(o.cluster, made.plan.Rules)
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
		ch.excess = fmt.Sprintf("together with the rules of %s the chain has %s", PolicyString(ch.choices[0].Policy), overLimit(together))
		choice.Reason = "none of them is applied: " + ch.excess
	default:
		choice.Applied = true
		ch.plan.Rules = together
	}
	ch.choices = append(ch.choices, choice)
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

// planBlocks lists the blocks of a policy that rules refer to, by name.
func (c *compiler) planBlocks(p *compiledPolicy, rules []v1alpha1.PlanRule) []v1alpha1.PlanBlock {
	if p == nil {
		return nil
	}
	var blocks []v1alpha1.PlanBlock
	for i := range p.blocks {
		block := v1alpha1.PlanBlock{Block: *p.blocks[i].DeepCopy(), Policy: p.result.Policy.Name}
		if !refers(rules, RuleOwner(p.result.Policy), block.Name) {
			continue
		}
		block.Type = blockType(&block.Block)
		if block.ConfigMap != nil {
			block.Revision = c.blockObjects[objectOf(&block.Block)]
		}
		blocks = append(blocks, block)
	}
	slices.SortFunc(blocks, comparePlanBlocks)
	return blocks
}

// refers says whether rules of this owner name a block.
func refers(rules []v1alpha1.PlanRule, owner, block string) bool {
	return slices.ContainsFunc(rules, func(rule v1alpha1.PlanRule) bool {
		return rule.Policy == owner && slices.ContainsFunc(rule.Actions, func(a v1alpha1.Action) bool {
			return a.Custom != nil && a.Custom.Block == block ||
				a.Schedule != nil && a.Schedule.Strategy == block ||
				a.Congestion != nil && a.Congestion.Algorithm == block
		})
	})
}

func comparePlanBlocks(a, b v1alpha1.PlanBlock) int {
	return cmp.Or(strings.Compare(a.Policy, b.Policy), strings.Compare(a.Name, b.Name))
}

// useChain gives a pod the chain of the policies that select it, and notes with
// them what became of their rules.
func (c *compiler) useChain(n *node, d *Decision, matching []*compiledPolicy) {
	o := ownersOf(matching)
	if o == (owners{}) {
		return
	}
	ch := c.chain(o)
	d.Rules = ch.choices
	if ch.excess != "" {
		o.namespaced.result.RulesLeftOut = append(o.namespaced.result.RulesLeftOut, RulesLeftOut{Pod: d.Pod, Reason: ch.excess})
	}
	if ch.plan.Name == "" {
		return
	}
	if reason := n.addChain(ch); reason != "" {
		d.Rules = withoutRules(ch.choices, reason)
		for _, p := range []*compiledPolicy{o.cluster, o.namespaced} {
			if p != nil {
				p.result.RulesLeftOut = append(p.result.RulesLeftOut, RulesLeftOut{Pod: d.Pod, Reason: reason})
			}
		}
		return
	}
	d.Chain = ch.plan.Name
	if o.cluster != nil && o.cluster != matching[0] && len(o.cluster.result.RuleProblems) == 0 {
		o.cluster.result.RulesOnly = append(o.cluster.result.RulesOnly, d.Pod)
	}
}

func withoutRules(choices []RulesChoice, reason string) []RulesChoice {
	refused := slices.Clone(choices)
	for i := range refused {
		refused[i].Applied, refused[i].Reason = false, "none of them is applied: "+reason
	}
	return refused
}

// addChain puts a chain into the node's plan, or says why there is no room for
// it or its blocks.
func (n *node) addChain(ch *chain) (noRoom string) {
	if slices.ContainsFunc(n.chains, func(other *chain) bool { return other.plan.Name == ch.plan.Name }) {
		return ""
	}
	blocks := slices.Clone(n.blocks)
	for _, block := range ch.blocks {
		if i, found := slices.BinarySearchFunc(blocks, block, comparePlanBlocks); !found {
			blocks = slices.Insert(blocks, i, block)
		}
	}
	switch {
	case len(blocks) > maxBlocks:
		return fmt.Sprintf("node %s has more than %d blocks", n.name, maxBlocks)
	case n.chainBytes+ch.bytes > maxChainBytes:
		return fmt.Sprintf("the different rules of the pods of node %s take more than %d KiB", n.name, maxChainBytes>>10)
	}
	n.blocks, n.chains = blocks, append(n.chains, ch)
	n.chainBytes += ch.bytes
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
