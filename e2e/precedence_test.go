// SPDX-License-Identifier: Apache-2.0

package e2e_test

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
	"braid.dev/braid/internal/agentapi"
	"braid.dev/braid/internal/lab/traffic"
)

// groundRules are an admin's: they refuse joins and leave the rest to the tenants.
const groundRules = `
apiVersion: braid.dev/v1alpha1
kind: ClusterMPTCPPolicy
metadata:
  name: ground-rules
spec:
  priority: -1000
  namespaceSelector:
    matchLabels:
      kubernetes.io/metadata.name: shop
  podSelector: {}
  paths:
    spread: None
  subflows:
    manager: None
  rules:
  - name: refuse-joins
    match:
      direction: ToEndpoint
      packetTypes: [MPJoin]
    actions:
    - type: ACTION
`

// tenantRules see what the admin's leave, and report it.
const tenantRules = `
apiVersion: braid.dev/v1alpha1
kind: MPTCPPolicy
metadata:
  namespace: shop
  name: spread
spec:
  priority: 10
  podSelector: {}
  rules:
  - name: see-joins
    match:
      direction: ToEndpoint
      packetTypes: [MPJoin]
    actions:
    - type: Record
  - name: report
    actions:
    - type: ReportConnection
    - type: ReportSubflow
`

// chainOfBoth are the rules of a pod of the shop under both policies.
var chainOfBoth = []string{
	"ClusterMPTCPPolicy/ground-rules refuse-joins",
	"MPTCPPolicy/shop/spread see-joins",
	"MPTCPPolicy/shop/spread report",
}

// The admin's rules come before those of the tenant, whose policy decides the
// rest. Refused joins leave the connection as it is, with one subflow.
func TestRulesOfTheClusterRefuseSubflowsBeforeThoseOfATenantSeeThem(t *testing.T) {
	for _, action := range []v1alpha1.ActionType{v1alpha1.ActionDrop, v1alpha1.ActionReset} {
		t.Run("by "+string(action), func(t *testing.T) {
			c := use(t)
			c.CreatePaths(t)
			c.Apply(t, tenantRules)
			c.Apply(t, strings.ReplaceAll(groundRules, "ACTION", string(action)))
			c.waitBothProgrammed(t)
			c.expectRefusal(t)
		})
	}
}

// waitBothProgrammed waits until the rules of both policies are in force.
func (c *cluster) waitBothProgrammed(t *testing.T) {
	t.Helper()
	tenant := c.PolicyOf(t, "shop", "spread").(*v1alpha1.MPTCPPolicy)
	c.WaitProgrammed(t, tenant, 2)
	c.WaitFor(t, "the cluster's policy is programmed", 30*time.Second, func(ctx context.Context) error {
		ground := c.PolicyOf(t, "", "ground-rules").(*v1alpha1.ClusterMPTCPPolicy)
		if !testlab.IsTrue(ground.Status.Conditions, v1alpha1.ConditionProgrammed, ground.Generation) || ground.Status.PodsProgrammed != 2 {
			return fmt.Errorf("its status is %+v", ground.Status)
		}
		return nil
	})
	for _, pod := range []string{"client", "server"} {
		if names := shop.NamesOf(c.RulesOf(t, pod)); !slices.Equal(names, chainOfBoth) {
			t.Errorf("the rules of %s are %q instead of %q", pod, names, chainOfBoth)
		}
	}
}

func (c *cluster) expectRefusal(t *testing.T) {
	t.Helper()
	r := c.Begin(t, testlab.NewTransfer("client", "server", 4, traffic.Up, 9*time.Second))
	r.SleepUntil(2300 * time.Millisecond)
	if count := r.Carrying(t); count != 1 {
		t.Errorf("with the rule %d subflows carry payload: %+v", count, r.Subflows(t))
	}
	c.expectTold(t)
	if err := c.Client.Delete(t.Context(), c.PolicyOf(t, "", "ground-rules")); err != nil {
		t.Fatal(err)
	}
	took := c.WaitFor(t, "all subflows are there", 6*time.Second, func(context.Context) error {
		if count := r.Carrying(t); count != len(paths) {
			return fmt.Errorf("%d subflows carry payload: %+v", count, r.Subflows(t))
		}
		return nil
	})
	t.Logf("the connection had all subflows %v after the rule was deleted", took)
	r.Finish(t)
	limited := r.Shares(testlab.Warmup, 2300*time.Millisecond)
	t.Logf("with the rule %v, of which %.1f Mbit/s were delivered", limited, r.Result.MbitBetween(testlab.Warmup, 2300*time.Millisecond))
	if !slices.Equal(limited.Used(), paths[:1]) || limited[paths[1]]+limited[paths[2]] > linkMbit/10 {
		t.Errorf("with the rule the paths carry %v", limited)
	}
	if stop := r.LongestStop(testlab.Warmup, r.Duration); stop > shop.Noticeable {
		t.Errorf("nothing arrived for %v", stop)
	}
	if seen := c.RuleNamed(t, "server", "see-joins"); seen.Hits == 0 {
		t.Errorf("without the admin's rule the tenant's does not see joins: %+v", seen)
	}
}

// expectTold: the debug commands tell the refusal.
func (c *cluster) expectTold(t *testing.T) {
	t.Helper()
	refused, seen := c.RuleNamed(t, "server", "refuse-joins"), c.RuleNamed(t, "server", "see-joins")
	t.Logf("%d of %d joins were refused", refused.Acted, refused.Hits)
	if refused.Hits == 0 || refused.Acted != refused.Hits || seen.Hits != 0 {
		t.Errorf("the rules did %+v and %+v", refused, seen)
	}
	tokens := map[agentapi.Token]bool{}
	for _, pod := range []string{"client", "server"} {
		carrying := 0
		for _, subflow := range c.SubflowsOf(t, pod) {
			if !subflow.Ended && max(subflow.Sent.Bytes, subflow.Received.Bytes) > 0 {
				carrying++
				tokens[subflow.Token] = true
			}
		}
		if carrying != 1 {
			t.Errorf("the subflows of %s are told to be %+v", pod, c.SubflowsOf(t, pod))
		}
		c.expectOneReport(t, pod, tokens)
	}
	if len(tokens) != 1 || tokens[0] {
		t.Errorf("both ends tell the tokens %v", tokens)
	}
}

// expectOneReport: one connection and one subflow were reported.
func (c *cluster) expectOneReport(t *testing.T, pod string, tokens map[agentapi.Token]bool) {
	t.Helper()
	count := map[agentapi.EventType]int{}
	for _, event := range c.EventsOf(t, pod) {
		if tokens[event.Token] {
			count[event.Type]++
		}
	}
	if count[agentapi.EventConnection] != 1 || count[agentapi.EventSubflow] < 1 {
		t.Errorf("of %s are reported %v: %+v", pod, count, c.EventsOf(t, pod))
	}
}

// A policy of the cluster that wins decides alone: its rules run, and the tenant's
// do not.
func TestRulesOfATenantDoNotRunUnderAPolicyThatWins(t *testing.T) {
	c := use(t)
	c.CreatePaths(t)
	c.Apply(t, tenantRules)
	ground := strings.ReplaceAll(groundRules, "ACTION", "Record")
	c.Apply(t, ground)
	c.waitBothProgrammed(t)
	c.Apply(t, strings.ReplaceAll(ground, "priority: -1000", "priority: 100"))
	c.WaitFor(t, "the cluster's rules run alone", 30*time.Second, func(context.Context) error {
		for _, pod := range []string{"client", "server"} {
			if names := shop.NamesOf(c.RulesOf(t, pod)); !slices.Equal(names, chainOfBoth[:1]) {
				return fmt.Errorf("the rules of %s are %q", pod, names)
			}
		}
		return nil
	})
	c.WaitFor(t, "the tenant is told", 30*time.Second, func(context.Context) error {
		tenant := c.PolicyOf(t, "shop", "spread").(*v1alpha1.MPTCPPolicy)
		effective := meta.FindStatusCondition(tenant.Status.Conditions, v1alpha1.ConditionEffective)
		if effective == nil || effective.Status != metav1.ConditionFalse || !strings.Contains(effective.Message, "ground-rules") {
			return fmt.Errorf("the condition Effective is %+v", effective)
		}
		return nil
	})
}
