// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/api/v1alpha1"
)

// spread is a cluster with two nodes, their agents, a pod on each, a path and a
// policy for both pods.
type spread struct {
	*cluster
	agents map[string]*agent
	path   *v1alpha1.MPTCPPath
	policy *v1alpha1.MPTCPPolicy
}

func newSpread(t *testing.T) *spread {
	t.Helper()
	k := newCluster(t)
	s := &spread{cluster: k, agents: map[string]*agent{}}
	for i, node := range []string{"node-a", "node-b"} {
		k.node(node, nil)
		s.agents[node] = k.agent(node, "blue")
		k.pod(strings.Replace(node, "node", "pod", 1), node, fmt.Sprintf("10.0.%d.2", i), nil)
	}
	s.path = k.path("blue")
	s.policy = k.policy("spread", nil)
	k.startController(apiServer)
	k.waitForPods("node-a", "pod-a")
	k.waitForPods("node-b", "pod-b")
	return s
}

func (s *spread) report(state v1alpha1.EndpointState, message string) {
	for _, a := range s.agents {
		a.report(state, message)
	}
}

func (s *spread) waitForProgrammed(reason string, programmed int32) metav1.Condition {
	s.t.Helper()
	var found metav1.Condition
	s.eventually(func() error {
		if err := s.Get(context.Background(), client.ObjectKeyFromObject(s.policy), s.policy); err != nil {
			return err
		}
		c := meta.FindStatusCondition(s.policy.Status.Conditions, v1alpha1.ConditionProgrammed)
		if c == nil || c.Reason != reason || s.policy.Status.PodsProgrammed != programmed || s.policy.Status.PodsSelected != 2 {
			return fmt.Errorf("want reason %s and %d of 2 pods programmed, the status is %+v", reason, programmed, s.policy.Status)
		}
		found = *c
		return nil
	})
	return found
}

func TestPolicyIsPendingUntilEveryAgentHasProgrammedIt(t *testing.T) {
	s := newSpread(t)
	if c := s.waitForProgrammed(v1alpha1.ReasonPending, 0); c.Status != metav1.ConditionFalse {
		t.Errorf("pending is %s", c.Status)
	}
	s.agents["node-a"].report(v1alpha1.EndpointProgrammed, "")
	s.waitForProgrammed(v1alpha1.ReasonPending, 1)
	s.agents["node-b"].report(v1alpha1.EndpointPending, "the pod has no network namespace yet")
	s.eventually(func() error {
		if c := s.waitForProgrammed(v1alpha1.ReasonPending, 1); !strings.Contains(c.Message, "the pod has no network namespace yet") {
			return fmt.Errorf("the message does not say what the agent waits for: %s", c.Message)
		}
		return nil
	})
	s.agents["node-b"].report(v1alpha1.EndpointProgrammed, "")
	if c := s.waitForProgrammed(v1alpha1.ReasonProgrammed, 2); c.Status != metav1.ConditionTrue || c.ObservedGeneration != 1 {
		t.Errorf("unexpected condition: %+v", c)
	}
	s.waitForEvent(s.policy, "Normal", v1alpha1.ReasonProgrammed)
}

func TestReportOfAnOlderGenerationDoesNotCount(t *testing.T) {
	s := newSpread(t)
	s.report(v1alpha1.EndpointProgrammed, "")
	s.waitForProgrammed(v1alpha1.ReasonProgrammed, 2)
	old := s.waitForPods("node-a", "pod-a")

	change(s.cluster, s.policy, func(p *v1alpha1.MPTCPPolicy) { p.Spec.Subflows.Count = new(int32(4)) })
	s.waitForCondition(s.policy, v1alpha1.ConditionProgrammed, v1alpha1.ReasonPending)
	s.waitForProgrammed(v1alpha1.ReasonPending, 0)
	s.agents["node-b"].report(v1alpha1.EndpointProgrammed, "")
	s.agents["node-a"].reportFor(old, v1alpha1.EndpointProgrammed, "")
	s.waitForProgrammed(v1alpha1.ReasonPending, 1)
	s.agents["node-a"].report(v1alpha1.EndpointProgrammed, "")
	if c := s.waitForProgrammed(v1alpha1.ReasonProgrammed, 2); c.ObservedGeneration != 2 {
		t.Errorf("programmed in generation %d, want 2", c.ObservedGeneration)
	}
}

func TestChangedPathMakesThePolicyPendingAgain(t *testing.T) {
	s := newSpread(t)
	s.report(v1alpha1.EndpointProgrammed, "")
	s.waitForProgrammed(v1alpha1.ReasonProgrammed, 2)
	change(s.cluster, s.path, func(p *v1alpha1.MPTCPPath) { p.Spec.Interfaces = []v1alpha1.InterfacePattern{"other"} })
	s.waitForProgrammed(v1alpha1.ReasonPending, 0)
	s.report(v1alpha1.EndpointProgrammed, "")
	s.waitForProgrammed(v1alpha1.ReasonProgrammed, 2)
}

func TestOtherPodsOfANodeDoNotMakeAPolicyPending(t *testing.T) {
	s := newSpread(t)
	change(s.cluster, s.policy, func(p *v1alpha1.MPTCPPolicy) {
		p.Spec.PodSelector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "other", Operator: metav1.LabelSelectorOpDoesNotExist}}
	})
	s.waitForCondition(s.policy, v1alpha1.ConditionProgrammed, v1alpha1.ReasonPending)
	s.report(v1alpha1.EndpointProgrammed, "")
	s.waitForProgrammed(v1alpha1.ReasonProgrammed, 2)
	s.cluster.policy("other", func(p *v1alpha1.MPTCPPolicy) { p.Spec.PodSelector.MatchLabels = map[string]string{"other": "yes"} })
	before := versions(s.cluster, []client.Object{s.policy})
	s.pod("other", "node-a", "10.0.0.9", map[string]string{"other": "yes"})
	s.waitForPods("node-a", "other", "pod-a")
	other := &v1alpha1.MPTCPPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "other"}}
	s.eventually(func() error {
		if c := s.waitForCondition(other, v1alpha1.ConditionProgrammed, v1alpha1.ReasonPending); !strings.Contains(c.Message, "has not applied the plan yet") {
			return fmt.Errorf("the new pod waits for something else: %s", c.Message)
		}
		return nil
	})
	if after := versions(s.cluster, []client.Object{s.policy}); !slices.Equal(before, after) {
		t.Errorf("the status was written: %+v", s.policy.Status)
	}
}

func TestFailedEndpointsAreListedByNode(t *testing.T) {
	s := newSpread(t)
	s.agents["node-a"].report(v1alpha1.EndpointProgrammed, "")
	s.agents["node-b"].report(v1alpha1.EndpointFailed, "the kernel refused the program: E2BIG")
	c := s.waitForProgrammed(v1alpha1.ReasonEndpointFailed, 1)
	if c.Status != metav1.ConditionFalse || !strings.Contains(c.Message, "E2BIG") {
		t.Errorf("unexpected condition: %+v", c)
	}
	want := []v1alpha1.NodeFailure{{
		Node: "node-b", Reason: v1alpha1.ReasonEndpointFailed, Pods: 1,
		Message: s.namespace + "/pod-b: the kernel refused the program: E2BIG",
	}}
	if !slices.Equal(s.policy.Status.FailingNodes, want) {
		t.Errorf("failing nodes are %+v, want %+v", s.policy.Status.FailingNodes, want)
	}
	s.waitForEvent(s.policy, "Warning", v1alpha1.ReasonEndpointFailed)
	s.agents["node-b"].report(v1alpha1.EndpointProgrammed, "")
	s.waitForProgrammed(v1alpha1.ReasonProgrammed, 2)
	if len(s.policy.Status.FailingNodes) != 0 {
		t.Errorf("nodes still fail: %+v", s.policy.Status.FailingNodes)
	}
}

func TestAgentThatStopsReportingShows(t *testing.T) {
	s := newSpread(t)
	s.report(v1alpha1.EndpointProgrammed, "")
	s.waitForProgrammed(v1alpha1.ReasonProgrammed, 2)
	node := &v1alpha1.MPTCPNode{ObjectMeta: metav1.ObjectMeta{Name: "node-b"}}
	s.waitForCondition(node, v1alpha1.ConditionReady, v1alpha1.ReasonReady)
	s.waitForCondition(s.path, v1alpha1.ConditionReady, v1alpha1.ReasonReady)

	s.agents["node-b"].renew(time.Second) // and never again
	s.waitForProgrammed(v1alpha1.ReasonAgentNotReporting, 1)
	if got := s.policy.Status.FailingNodes; len(got) != 1 || got[0].Node != "node-b" || got[0].Reason != v1alpha1.ReasonAgentNotReporting {
		t.Errorf("failing nodes are %+v", got)
	}
	c := s.waitForCondition(node, v1alpha1.ConditionReady, v1alpha1.ReasonAgentNotReporting)
	if c.Status != metav1.ConditionFalse || node.Status.KernelRelease == "" || len(node.Status.Paths) != 1 {
		t.Errorf("the condition should be False and what the agent wrote should stay: %+v", node.Status)
	}
	s.waitForCondition(s.path, v1alpha1.ConditionReady, v1alpha1.ReasonAgentNotReporting)
	if s.path.Status.Nodes != 2 || s.path.Status.NodesUp != 1 {
		t.Errorf("the path counts %d nodes and %d up, want 2 and 1", s.path.Status.Nodes, s.path.Status.NodesUp)
	}
	s.waitForEvent(node, "Warning", v1alpha1.ReasonAgentNotReporting)
	s.waitForEvent(s.policy, "Warning", v1alpha1.ReasonAgentNotReporting)

	s.agents["node-b"].renew(time.Hour)
	s.waitForProgrammed(v1alpha1.ReasonProgrammed, 2)
	s.waitForCondition(node, v1alpha1.ConditionReady, v1alpha1.ReasonReady)
	s.waitForCondition(s.path, v1alpha1.ConditionReady, v1alpha1.ReasonReady)
}

func TestPathThatDoesNotExistIsToldAndCuredWhenItAppears(t *testing.T) {
	k := newCluster(t)
	k.startController(apiServer)
	k.node("node-a", nil)
	k.path("blue")
	k.pod("pod", "node-a", "10.0.1.2", nil)
	p := k.policy("colours", func(p *v1alpha1.MPTCPPolicy) { p.Spec.Paths.Allowed = []v1alpha1.PathName{"blue", "purple"} })
	c := k.waitForCondition(p, v1alpha1.ConditionAccepted, v1alpha1.ReasonPathNotFound)
	if c.Status != metav1.ConditionFalse || !strings.Contains(c.Message, "purple") || !strings.Contains(c.Message, "there are blue") {
		t.Errorf("the condition should name the missing path and those that exist: %+v", c)
	}
	k.waitForEvent(p, "Warning", v1alpha1.ReasonPathNotFound)
	if plan := k.waitForPods("node-a", "pod"); len(plan.Spec.Endpoints[0].Paths) != 1 {
		t.Errorf("the policy should work with the path that exists: %+v", plan.Spec.Endpoints[0])
	}
	k.path("purple")
	if c := k.waitForCondition(p, v1alpha1.ConditionAccepted, v1alpha1.ReasonAccepted); c.Status != metav1.ConditionTrue {
		t.Errorf("accepted is %s", c.Status)
	}
	k.waitForEvent(p, "Normal", v1alpha1.ReasonAccepted)
}

func TestPathTellsHowManyNodesHaveItsNIC(t *testing.T) {
	s := newSpread(t)
	ready := func(reason string, nodes, up int32) {
		t.Helper()
		s.waitForCondition(s.path, v1alpha1.ConditionReady, reason)
		s.eventually(func() error {
			err := s.Get(context.Background(), client.ObjectKeyFromObject(s.path), s.path)
			if err == nil && (s.path.Status.Nodes != nodes || s.path.Status.NodesUp != up) {
				return fmt.Errorf("%d nodes, %d up, want %d and %d", s.path.Status.Nodes, s.path.Status.NodesUp, nodes, up)
			}
			return err
		})
	}
	ready(v1alpha1.ReasonReady, 2, 2)
	s.agents["node-b"].publish(v1alpha1.LinkDown, "blue")
	ready(v1alpha1.ReasonInterfaceDown, 2, 1)
	s.waitForEvent(s.path, "Warning", v1alpha1.ReasonInterfaceDown)
	s.agents["node-b"].publish(v1alpha1.LinkUp)
	ready(v1alpha1.ReasonPending, 1, 1)
	s.agents["node-b"].publish(v1alpha1.LinkUp, "blue")
	ready(v1alpha1.ReasonReady, 2, 2)
	s.waitForEvent(s.path, "Normal", v1alpha1.ReasonReady)
	s.delete(s.policy)
	if c := s.waitForCondition(s.path, v1alpha1.ConditionReady, v1alpha1.ReasonNoPodsSelected); c.Status != metav1.ConditionUnknown {
		t.Errorf("without any policy the path is %s, want Unknown", c.Status)
	}
}

func TestAPathThatIsDeadByProbesIsNotReady(t *testing.T) {
	s := newSpread(t)
	s.cluster.path("green")
	probed := func(unreachable ...string) {
		node := &v1alpha1.MPTCPNode{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}}
		node.Status.Paths = []v1alpha1.NodePath{
			{Name: "blue", Interface: "eth-blue", State: v1alpha1.LinkUp, PeersProbed: 1, PeersAlive: int32(1 - len(unreachable)), Unreachable: unreachable},
			{Name: "green", Interface: "eth-green", State: v1alpha1.LinkUp, PeersProbed: 1, PeersAlive: 1},
		}
		s.agents["node-a"].apply(node, "MPTCPNode")
	}
	s.agents["node-b"].publish(v1alpha1.LinkUp, "blue", "green")
	probed()
	s.waitForCondition(s.path, v1alpha1.ConditionReady, v1alpha1.ReasonReady)
	probed("node-b")
	c := s.waitForCondition(s.path, v1alpha1.ConditionReady, v1alpha1.ReasonPeersUnreachable)
	if c.Status != metav1.ConditionFalse || !strings.Contains(c.Message, "node-a to node-b") {
		t.Errorf("unexpected condition: %+v", c)
	}
	s.waitForEvent(s.path, "Warning", v1alpha1.ReasonPeersUnreachable)
	probed()
	s.waitForCondition(s.path, v1alpha1.ConditionReady, v1alpha1.ReasonReady)
}

func TestWhatANodeToldIsRemovedWithTheNodeAndItsAgent(t *testing.T) {
	s := newSpread(t)
	node := &v1alpha1.MPTCPNode{ObjectMeta: metav1.ObjectMeta{Name: "node-b"}}
	s.waitForCondition(node, v1alpha1.ConditionReady, v1alpha1.ReasonReady)
	kubeNode := s.node("node-c", nil)
	s.agent("node-c", "blue")
	s.delete(kubeNode)
	s.waitUntilGone(&v1alpha1.MPTCPNodePlan{ObjectMeta: metav1.ObjectMeta{Name: "node-c"}})
	reporting := &v1alpha1.MPTCPNode{ObjectMeta: metav1.ObjectMeta{Name: "node-c"}}
	s.waitForCondition(reporting, v1alpha1.ConditionReady, v1alpha1.ReasonReady)
	(&agent{k: s.cluster, node: "node-c"}).renew(time.Second)
	s.waitUntilGone(reporting)
	s.waitForCondition(node, v1alpha1.ConditionReady, v1alpha1.ReasonReady)
}

func TestStatusIsWrittenOnceForEachChange(t *testing.T) {
	s := newSpread(t)
	s.report(v1alpha1.EndpointProgrammed, "")
	s.waitForProgrammed(v1alpha1.ReasonProgrammed, 2)
	s.waitForCondition(s.path, v1alpha1.ConditionReady, v1alpha1.ReasonReady)
	objects := []client.Object{s.policy, s.path, s.waitForPods("node-a", "pod-a"), &v1alpha1.MPTCPNode{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}}}
	before := versions(s.cluster, objects)
	for range 3 { // renewals are no news
		s.agents["node-a"].renew(time.Hour)
		time.Sleep(300 * time.Millisecond)
	}
	if after := versions(s.cluster, objects); !slices.Equal(before, after) {
		t.Errorf("something was written although nothing changed: versions %v, then %v", before, after)
	}
}
