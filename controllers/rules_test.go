// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"braid.dev/braid/api/v1alpha1"
)

func (k *cluster) configMap(content string) *corev1.ConfigMap {
	k.t.Helper()
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: k.system, Name: "programs"}}
	m.BinaryData = map[string][]byte{"mark.o": []byte(content)}
	k.create(m)
	return m
}

// waitForProgram waits until a node's plan has one program, of another revision than
// this, and returns its own.
func (k *cluster) waitForProgram(node, other string) string {
	k.t.Helper()
	revision := ""
	k.eventually(func() error {
		plan, err := k.plan(node)
		if err != nil || plan == nil || len(plan.Spec.Programs) != 1 || plan.Spec.Programs[0].Revision == other {
			return fmt.Errorf("the plan %+v has no program of another revision than %q: %w", plan, other, err)
		}
		revision = plan.Spec.Programs[0].Revision
		return nil
	})
	return revision
}

// newRules is a cluster with one pod, for which a policy of its namespace
// decides, and a cluster's policy whose rule runs a program.
func newRules(t *testing.T) (k *cluster, own *v1alpha1.MPTCPPolicy, ground *v1alpha1.ClusterMPTCPPolicy) {
	t.Helper()
	k = newCluster(t)
	k.node("node-a", nil)
	k.path("blue")
	k.pod("pod", "node-a", "10.0.0.2", nil)
	own = k.policy("own", func(p *v1alpha1.MPTCPPolicy) {
		p.Spec.Rules = []v1alpha1.Rule{{Name: "record", Actions: []v1alpha1.Action{{Type: v1alpha1.ActionRecord}}}}
	})
	ground = &v1alpha1.ClusterMPTCPPolicy{ObjectMeta: metav1.ObjectMeta{Name: "ground"}}
	ground.Spec.Priority = -1
	ground.Spec.NamespaceSelector.MatchLabels = map[string]string{"kubernetes.io/metadata.name": k.namespace}
	ground.Spec.Programs = []v1alpha1.Program{{Name: "mark", ConfigMap: &v1alpha1.ProgramConfigMap{Name: "programs", Key: "mark.o"}}}
	ground.Spec.Rules = []v1alpha1.Rule{{Name: "mark", Actions: []v1alpha1.Action{{Type: v1alpha1.ActionRunProgram, RunProgram: &v1alpha1.RunProgram{Program: "mark"}}}}}
	k.create(ground)
	return k, own, ground
}

func TestRulesWaitForTheirProgramAndFollowItsContent(t *testing.T) {
	k, own, ground := newRules(t)
	a := k.agent("node-a", "blue")
	k.startController(apiServer)

	c := k.waitForCondition(ground, v1alpha1.ConditionRulesAccepted, v1alpha1.ReasonProgramNotFound)
	if c.Status != metav1.ConditionFalse {
		t.Errorf("unexpected condition: %+v", c)
	}
	k.waitForEvent(ground, "Warning", v1alpha1.ReasonProgramNotFound)
	k.waitForCondition(own, v1alpha1.ConditionRulesAccepted, v1alpha1.ReasonAccepted)
	if plan := k.waitForPods("node-a", "pod"); len(plan.Spec.Chains) != 1 || len(plan.Spec.Chains[0].Rules) != 1 {
		t.Errorf("the chains are %+v, want one with the rule of the pod's own policy", plan.Spec.Chains)
	}

	programs := k.configMap("first")
	k.waitForCondition(ground, v1alpha1.ConditionRulesAccepted, v1alpha1.ReasonAccepted)
	first := k.waitForProgram("node-a", "")
	a.report(v1alpha1.EndpointProgrammed, "")
	k.waitForCondition(ground, v1alpha1.ConditionProgrammed, v1alpha1.ReasonProgrammed)
	k.waitForCondition(own, v1alpha1.ConditionProgrammed, v1alpha1.ReasonProgrammed)

	change(k, programs, func(m *corev1.ConfigMap) { m.BinaryData["mark.o"] = []byte("second") })
	k.waitForProgram("node-a", first)
	k.waitForCondition(ground, v1alpha1.ConditionProgrammed, v1alpha1.ReasonPending)
	k.waitForCondition(own, v1alpha1.ConditionProgrammed, v1alpha1.ReasonPending)
	a.report(v1alpha1.EndpointProgrammed, "")
	k.waitForCondition(ground, v1alpha1.ConditionProgrammed, v1alpha1.ReasonProgrammed)
}

func TestARuleThatAnAgentCannotCarryOutShowsInItsPolicy(t *testing.T) {
	k, own, ground := newRules(t)
	a := k.agent("node-a", "blue")
	k.configMap("object")
	k.startController(apiServer)
	k.waitForProgram("node-a", "")
	plan, err := k.plan("node-a")
	if err != nil {
		t.Fatal(err)
	}
	answer := &v1alpha1.MPTCPNodePlan{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}}
	answer.Status.ObservedGeneration = plan.Generation
	e := plan.Spec.Endpoints[0]
	answer.Status.Endpoints = []v1alpha1.EndpointStatus{{
		UID: e.UID, Namespace: e.Namespace, Name: e.Name, PolicyGeneration: e.Policy.Generation, Chain: e.Chain, State: v1alpha1.EndpointProgrammed,
		Rules: []v1alpha1.RuleStatus{{Policy: "ClusterMPTCPPolicy/ground", Name: "mark", Failed: true, Message: "the verifier refuses the program"}},
	}}
	a.apply(answer, "MPTCPNodePlan")
	k.waitForCondition(own, v1alpha1.ConditionProgrammed, v1alpha1.ReasonProgrammed)
	if c := k.waitForCondition(ground, v1alpha1.ConditionProgrammed, v1alpha1.ReasonRuleFailed); c.Message != "0 of 1 pods are programmed, 1 nodes fail; node node-a: "+k.namespace+"/pod: rule mark: the verifier refuses the program" {
		t.Errorf("unexpected message: %s", c.Message)
	}
	if got := ground.Status.FailingNodes; len(got) != 1 || got[0].Reason != v1alpha1.ReasonRuleFailed {
		t.Errorf("failing nodes: %+v", got)
	}
}

func TestChangingRulesChangesTheChainAndNothingElse(t *testing.T) {
	k, own, _ := newRules(t)
	k.configMap("object")
	k.startController(apiServer)
	k.waitForProgram("node-a", "")
	before := k.waitForPods("node-a", "pod").Spec.Endpoints[0]
	change(k, own, func(p *v1alpha1.MPTCPPolicy) { p.Spec.Rules[0].Name = "other" })
	k.eventually(func() error {
		plan, err := k.plan("node-a")
		if err != nil || len(plan.Spec.Chains) != 1 || plan.Spec.Endpoints[0].Chain == before.Chain {
			return fmt.Errorf("the chain has not changed: %+v, %w", plan, err)
		}
		return nil
	})
	change(k, own, func(p *v1alpha1.MPTCPPolicy) { p.Spec.Rules[0].Name = "record" })
	k.eventually(func() error {
		plan, err := k.plan("node-a")
		if err != nil || plan.Spec.Endpoints[0].Chain != before.Chain {
			return fmt.Errorf("the chain has not its former name: %+v, %w", plan, err)
		}
		return nil
	})
	if err := k.Delete(context.Background(), own); err != nil {
		t.Fatal(err)
	}
	k.eventually(func() error {
		plan, err := k.plan("node-a")
		if err != nil || plan.Spec.Endpoints[0].Policy.Name != "ground" || len(plan.Spec.Chains[0].Rules) != 1 {
			return fmt.Errorf("the cluster's policy does not decide: %+v, %w", plan, err)
		}
		return nil
	})
}
