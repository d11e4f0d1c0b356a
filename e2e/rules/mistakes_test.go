// SPDX-License-Identifier: Apache-2.0

package rules_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/e2e/shop"
	"braid.dev/braid/e2e/testlab"
)

// goodRules are rules of a tenant and of the cluster that can work.
const goodRules = `
apiVersion: braid.dev/v1alpha1
kind: ClusterMPTCPPolicy
metadata:
  name: watch
spec:
  priority: -1000
  namespaceSelector:
    matchLabels:
      kubernetes.io/metadata.name: shop
  podSelector: {}
  paths: {spread: None}
  subflows: {manager: None}
  rules:
  - name: watch
    actions: [{type: Record}]
---
` + tenantHead + `
  - name: good
    actions: [{type: Record}]
`

const tenantHead = `
apiVersion: braid.dev/v1alpha1
kind: MPTCPPolicy
metadata:
  namespace: shop
  name: spread
spec:
  podSelector: {}
  rules:`

// The API server refuses what it can see, names the place, and what was there
// before goes on.
func TestTheServerRefusesRulesThatContradictThemselves(t *testing.T) {
	c := use(t)
	c.CreatePaths(t)
	c.Apply(t, goodRules)
	c.waitForRules(t, "ClusterMPTCPPolicy/watch watch", "MPTCPPolicy/shop/spread good")
	for _, test := range []struct{ name, rule, at, message string }{
		{"drop and reset", "{name: bad, actions: [{type: Drop}, {type: Reset}]}", "spec.rules[1].actions", "Drop and Reset contradict each other"},
		{"hide and give back", "{name: bad, actions: [{type: SuppressAddAddr}, {type: ReleaseAddAddr}]}", "spec.rules[1].actions", "contradict each other"},
		{"an action behind drop", "{name: bad, actions: [{type: Drop}, {type: Record}]}", "spec.rules[1].actions", "must be the last action"},
		{"an empty match", "{name: bad, match: {}, actions: [{type: Record}]}", "spec.rules[1].match", "an empty match is not allowed"},
		{"a range that runs backwards", "{name: bad, match: {sent: {subflow: {from: 2M, to: 1M}}}, actions: [{type: Record}]}", "spec.rules[1].match.sent.subflow", "from must be below to"},
		{"a rate that is none", "{name: bad, actions: [{type: RateLimit, rateLimit: {rate: fast}}]}", "spec.rules[1].actions[0].rateLimit.rate", "bits per second"},
		{"a tenant's block", "{name: bad, actions: [{type: RunProgram, runProgram: {program: own}}]}", "spec", "belong to a ClusterMPTCPPolicy"},
	} {
		t.Run(test.name, func(t *testing.T) {
			out, err := c.TryApply(t, tenantHead+"\n  - {name: changed, actions: [{type: Record}]}\n  - "+test.rule)
			if err == nil || !strings.Contains(out, test.at+":") || !strings.Contains(out, test.message) {
				t.Errorf("kubectl apply: %v: %s", err, out)
			}
			c.expectRules(t, "ClusterMPTCPPolicy/watch watch", "MPTCPPolicy/shop/spread good")
		})
	}
}

// What only the cluster shows is in the condition. None of the policy's rules is
// applied then, and those of the other policy are.
func TestRulesThatCannotWorkAreNotAppliedByHalf(t *testing.T) {
	c := use(t)
	c.CreatePaths(t)
	c.Apply(t, goodRules)
	c.waitForRules(t, "ClusterMPTCPPolicy/watch watch", "MPTCPPolicy/shop/spread good")
	for _, test := range []struct{ name, rules, reason, rule, field string }{
		{
			"opposites", `
  - {name: good, actions: [{type: Record}]}
  - {name: spare, match: {paths: [red]}, actions: [{type: SetBackup, setBackup: {backup: true}}]}
  - {name: no-spare, match: {paths: [red]}, actions: [{type: SetBackup, setBackup: {backup: false}}]}`,
			v1alpha1.ReasonContradictingRules, "no-spare", "spec.rules[2]",
		},
		{
			"a rule behind one that drops the same", `
  - {name: refuse, match: {packetTypes: [MPJoin]}, actions: [{type: Drop}]}
  - {name: late, match: {packetTypes: [MPJoin]}, actions: [{type: Record}]}`,
			v1alpha1.ReasonContradictingRules, "late", "spec.rules[1]",
		},
		{
			"a path that is not there", `
  - {name: good, actions: [{type: Record}]}
  - {name: lost, match: {paths: [blue, violet]}, actions: [{type: Record}]}`,
			v1alpha1.ReasonPathNotFound, "lost", "spec.rules[1].match.paths[1]",
		},
		{
			"a match that never holds", `
  - {name: good, actions: [{type: Record}]}
  - {name: never, match: {direction: FromEndpoint, all: [{direction: ToEndpoint}]}, actions: [{type: Record}]}`,
			v1alpha1.ReasonImpossibleMatch, "never", "spec.rules[1].match",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			c.Apply(t, tenantHead+test.rules)
			condition := c.waitForRefusedRules(t)
			t.Logf("%s: %s", condition.Reason, condition.Message)
			if condition.Reason != test.reason || !strings.Contains(condition.Message, "rule "+test.rule+": "+test.field) {
				t.Errorf("the condition RulesAccepted is %+v", condition)
			}
			c.waitForRules(t, "ClusterMPTCPPolicy/watch watch")
			c.Apply(t, goodRules)
			c.waitForRules(t, "ClusterMPTCPPolicy/watch watch", "MPTCPPolicy/shop/spread good")
		})
	}
}

// A policy of the cluster names a program that is nowhere.
func TestAProgramThatIsNowhereIsNamed(t *testing.T) {
	c := use(t)
	c.CreatePaths(t)
	c.Apply(t, goodRules)
	c.Apply(t, stamped)
	c.WaitFor(t, "the policy says which object is missing", 10*time.Second, func(context.Context) error {
		policy := c.PolicyOf(t, "", "stamped").(*v1alpha1.ClusterMPTCPPolicy)
		condition := meta.FindStatusCondition(policy.Status.Conditions, v1alpha1.ConditionRulesAccepted)
		if condition == nil || condition.Reason != v1alpha1.ReasonProgramNotFound ||
			!strings.Contains(condition.Message, "e2e-programs") || !strings.Contains(condition.Message, "large.o") {
			return fmt.Errorf("the condition RulesAccepted is %+v", condition)
		}
		return nil
	})
	c.waitForRules(t)
}

// waitForRefusedRules waits until the controller refuses the rules of the tenant's
// policy as it is now, and until that is carried out.
func (c *cluster) waitForRefusedRules(t *testing.T) (condition metav1.Condition) {
	t.Helper()
	c.WaitFor(t, "the rules are refused", 10*time.Second, func(context.Context) error {
		policy := c.PolicyOf(t, "shop", "spread").(*v1alpha1.MPTCPPolicy)
		found := meta.FindStatusCondition(policy.Status.Conditions, v1alpha1.ConditionRulesAccepted)
		if found == nil || found.Status != metav1.ConditionFalse || found.ObservedGeneration != policy.Generation {
			return fmt.Errorf("the condition RulesAccepted is %+v", found)
		}
		if testlab.IsTrue(policy.Status.Conditions, v1alpha1.ConditionProgrammed, policy.Generation) {
			t.Errorf("a policy whose rules are refused is programmed: %+v", policy.Status)
		}
		condition = *found
		return nil
	})
	return condition
}

// waitForRules waits until both pods have these rules.
func (c *cluster) waitForRules(t *testing.T, names ...string) {
	t.Helper()
	c.WaitFor(t, "the pods have their rules", 10*time.Second, func(context.Context) error {
		return c.haveRules(t, names)
	})
}

func (c *cluster) expectRules(t *testing.T, names ...string) {
	t.Helper()
	if err := c.haveRules(t, names); err != nil {
		t.Error(err)
	}
}

func (c *cluster) haveRules(t *testing.T, names []string) error {
	t.Helper()
	for _, pod := range []string{"client", "server"} {
		if found := shop.NamesOf(c.RulesOf(t, pod)); !slices.Equal(found, names) {
			return fmt.Errorf("the rules of %s are %q instead of %q", pod, found, names)
		}
	}
	return nil
}
