// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"braid.dev/braid/api/v1alpha1"
)

// references are all policies of an input, by the names that rules give them.
func (in Input) references() map[string]v1alpha1.PolicyReference {
	references := map[string]v1alpha1.PolicyReference{}
	for _, p := range in.Policies {
		ref := v1alpha1.PolicyReference{Kind: KindPolicy, Namespace: p.Namespace, Name: p.Name}
		references[RuleOwner(ref)] = ref
	}
	for _, p := range in.ClusterPolicies {
		ref := v1alpha1.PolicyReference{Kind: KindClusterPolicy, Name: p.Name}
		references[RuleOwner(ref)] = ref
	}
	return references
}

func (in Input) rulesOf(ref v1alpha1.PolicyReference) []string {
	var rules []v1alpha1.Rule
	for _, p := range in.Policies {
		if ref.Kind == KindPolicy && p.Namespace == ref.Namespace && p.Name == ref.Name {
			rules = p.Spec.Rules
		}
	}
	for _, p := range in.ClusterPolicies {
		if ref.Kind == KindClusterPolicy && p.Name == ref.Name {
			rules = p.Spec.Rules
		}
	}
	var names []string
	for _, rule := range rules {
		names = append(names, rule.Name)
	}
	return names
}

// rulesByOwner lists the names of a chain's rules by policy, and the policies in
// the order of their first rules.
func rulesByOwner(chain v1alpha1.PlanChain) (names map[string][]string, order []string) {
	names = map[string][]string{}
	for _, rule := range chain.Rules {
		if names[rule.Policy] == nil {
			order = append(order, rule.Policy)
		}
		names[rule.Policy] = append(names[rule.Policy], rule.Name)
	}
	return names, order
}

func findChain(plan v1alpha1.MPTCPNodePlanSpec, name string) *v1alpha1.PlanChain {
	for i := range plan.Chains {
		if plan.Chains[i].Name == name {
			return &plan.Chains[i]
		}
	}
	return nil
}

func TestAChainHoldsTheWholeRulesOfPoliciesThatSelectThePod(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawInput(t)
		pods := map[types.UID]*corev1.Pod{}
		for i := range in.Pods {
			pods[in.Pods[i].UID] = &in.Pods[i]
		}
		references, result := in.references(), Compile(in)
		for _, plan := range result.Plans {
			for _, e := range plan.Endpoints {
				if e.Chain != "" {
					checkChain(t, in, references, plan, e, pods[e.UID])
				}
			}
		}
	})
}

func checkChain(t *rapid.T, in Input, references map[string]v1alpha1.PolicyReference, plan v1alpha1.MPTCPNodePlanSpec, e v1alpha1.PlanEndpoint, pod *corev1.Pod) {
	chain := findChain(plan, e.Chain)
	if chain == nil {
		t.Fatalf("endpoint %s has a chain that its plan does not", e.Name)
	}
	if len(chain.Rules) == 0 || len(chain.Rules) > v1alpha1.MaxRules {
		t.Fatalf("chain %s has %d rules", chain.Name, len(chain.Rules))
	}
	names, order := rulesByOwner(*chain)
	if rule := chain.Rules[0]; rule.Policy == v1alpha1.GuardrailsOwner {
		if e.Guard == nil || rule.Actions[0].RateLimit.Rate.Value() != e.Guard.MaxRate {
			t.Fatalf("the chain of %s keeps %v, and its guard is %+v", e.Name, rule.Actions[0].RateLimit.Rate, e.Guard)
		}
		order = order[1:]
		delete(names, v1alpha1.GuardrailsOwner)
	}
	if len(order) > 2 || len(order) == 2 && (references[order[0]].Kind != KindClusterPolicy || references[order[1]].Kind != KindPolicy) {
		t.Fatalf("the rules of chain %s come from %v", chain.Name, order)
	}
	for owner, rules := range names {
		ref := references[owner]
		if !in.selects(ref, pod) {
			t.Fatalf("rules of %s run for %s, which it does not select", owner, e.Name)
		}
		if ref.Kind == KindPolicy && (ref.Namespace != e.Policy.Namespace || ref.Name != e.Policy.Name) {
			t.Fatalf("rules of %s run for %s, for which %v decides", owner, e.Name, e.Policy)
		}
		if diff := cmp.Diff(in.rulesOf(ref), rules); diff != "" {
			t.Fatalf("the rules of %s are applied in part:\n%s", owner, diff)
		}
	}
}

func TestChainsAndProgramsOfAPlanAreThoseThatItRefersTo(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		contents := map[string]v1alpha1.PlanChain{}
		for node, plan := range Compile(drawInput(t)).Plans {
			for i, chain := range plan.Chains {
				if i > 0 && plan.Chains[i-1].Name >= chain.Name {
					t.Fatalf("the chains of node %s are not sorted or not different", node)
				}
				if !slices.ContainsFunc(plan.Endpoints, func(e v1alpha1.PlanEndpoint) bool { return e.Chain == chain.Name }) {
					t.Fatalf("no endpoint of node %s has chain %s", node, chain.Name)
				}
				if other, seen := contents[chain.Name]; seen && !cmp.Equal(other, chain) {
					t.Fatalf("two chains are named %s", chain.Name)
				}
				contents[chain.Name] = chain
			}
			checkPrograms(t, plan)
		}
		for name, chain := range contents {
			for other, content := range contents {
				if name != other && cmp.Equal(chain.Rules, content.Rules) {
					t.Fatalf("chains %s and %s are equal", name, other)
				}
			}
		}
	})
}

func checkPrograms(t *rapid.T, plan v1alpha1.MPTCPNodePlanSpec) {
	wanted := map[string]bool{}
	for _, chain := range plan.Chains {
		for _, rule := range chain.Rules {
			for _, a := range rule.Actions {
				if a.RunProgram != nil {
					wanted[rule.Policy+"/"+a.RunProgram.Program] = true
				}
			}
		}
	}
	for _, b := range plan.Programs {
		if key := KindClusterPolicy + "/" + b.Policy + "/" + b.Name; !wanted[key] {
			t.Fatalf("no chain refers to program %s, or it is there twice", key)
		} else {
			delete(wanted, key)
		}
	}
	if len(wanted) > 0 {
		t.Fatalf("chains refer to programs that the plan lacks: %v", wanted)
	}
}

func TestEveryPolicyWithRulesSaysWhatBecameOfThem(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		result := Compile(drawInput(t))
		applied := map[string]bool{}
		for _, d := range result.Decisions {
			for _, r := range d.Rules {
				applied[RuleOwner(r.Policy)] = applied[RuleOwner(r.Policy)] || r.Applied
				if r.Reason == "" || len(r.Rules) == 0 {
					t.Fatalf("the decision for %s does not explain the rules of %v", d.Pod, r.Policy)
				}
			}
			if runs := slices.ContainsFunc(d.Rules, func(r RulesChoice) bool { return r.Applied }); runs && d.Chain == "" || !runs && d.Chain != "" && d.Guard == nil {
				t.Fatalf("pod %s has chain %q and these rules: %v", d.Pod, d.Chain, d.Rules)
			}
		}
		for _, p := range result.Policies {
			if len(p.RuleProblems) > 0 && applied[RuleOwner(p.Policy)] {
				t.Fatalf("rules of %v are applied in spite of %v", p.Policy, p.RuleProblems)
			}
		}
	})
}
