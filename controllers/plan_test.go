// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/api/v1alpha1"
)

func TestEveryNodeHasAPlanThatFollowsItsInput(t *testing.T) {
	k := newCluster(t)
	k.startController(apiServer)
	k.node("node-a", nil)
	nodeB := k.node("node-b", nil)
	k.path("blue")
	k.path("green")
	client1 := k.pod("client", "node-a", "10.0.1.2", nil)
	k.pod("server", "node-b", "10.0.2.2", nil)
	k.waitForPods("node-a")
	if plan := k.waitForPods("node-b"); len(plan.Spec.Paths) != 0 {
		t.Errorf("no policy selects a pod, and the plan has paths: %v", plan.Spec.Paths)
	}

	p := k.policy("spread", nil)
	plan := k.waitForPods("node-a", "client")
	k.waitForPods("node-b", "server")
	if len(plan.Spec.Paths) != 2 || plan.Spec.Endpoints[0].Subflows.Count != 2 || plan.Spec.Endpoints[0].Addresses[0] != "10.0.1.2" {
		t.Errorf("unexpected plan: %+v", plan.Spec)
	}

	k.setPodStatus(client1, corev1.PodSucceeded, "10.0.1.2")
	if plan := k.waitForPods("node-a"); len(plan.Spec.Paths) != 2 {
		t.Errorf("a node without selected pods needs its paths to answer the others: %v", plan.Spec.Paths)
	}
	k.delete(nodeB)
	k.waitUntilGone(&v1alpha1.MPTCPNodePlan{ObjectMeta: metav1.ObjectMeta{Name: "node-b"}})
	k.delete(p)
	k.waitForPods("node-a")
}

func TestPodIsSelectedWhenItsLabelsComeToMatch(t *testing.T) {
	k := newCluster(t)
	k.startController(apiServer)
	k.node("node-a", nil)
	pod := k.pod("pod", "node-a", "10.0.1.2", nil)
	k.policy("labelled", func(p *v1alpha1.MPTCPPolicy) {
		p.Spec.PodSelector.MatchLabels = map[string]string{"spread": "yes"}
	})
	k.waitForPods("node-a")
	change(k, pod, func(p *corev1.Pod) { p.Labels = map[string]string{"spread": "yes"} })
	k.waitForPods("node-a", "pod")
	change(k, pod, func(p *corev1.Pod) { p.Labels = nil })
	k.waitForPods("node-a")
}

func TestClusterPolicyFollowsTheLabelsOfNamespaces(t *testing.T) {
	k := newCluster(t)
	k.startController(apiServer)
	k.node("node-a", nil)
	k.pod("pod", "node-a", "10.0.1.2", nil)
	p := &v1alpha1.ClusterMPTCPPolicy{ObjectMeta: metav1.ObjectMeta{Name: "team"}}
	p.Spec.NamespaceSelector.MatchLabels = map[string]string{"team": k.namespace}
	k.create(p)
	k.waitForCondition(p, v1alpha1.ConditionProgrammed, v1alpha1.ReasonNoPodsSelected)
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: k.namespace}}
	change(k, ns, func(ns *corev1.Namespace) { ns.Labels["team"] = k.namespace })
	k.waitForPods("node-a", "pod")
}

func TestPathFollowsTheLabelsOfNodes(t *testing.T) {
	k := newCluster(t)
	k.startController(apiServer)
	node := k.node("node-a", nil)
	k.pod("pod", "node-a", "10.0.1.2", nil)
	path := k.path("blue")
	change(k, path, func(p *v1alpha1.MPTCPPath) {
		p.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"rack": "one"}}
	})
	k.policy("all", nil)
	k.waitForCondition(path, v1alpha1.ConditionReady, v1alpha1.ReasonNoNodes)
	change(k, node, func(n *corev1.Node) { n.Labels = map[string]string{"rack": "one"} })
	k.eventually(func() error {
		plan, err := k.plan("node-a")
		if err == nil && (plan == nil || len(plan.Spec.Paths) != 1 || len(plan.Spec.Endpoints[0].Paths) != 1) {
			return errStillThere
		}
		return err
	})
}

func TestOnlyPlansThatChangeAreWritten(t *testing.T) {
	k := newCluster(t)
	k.startController(apiServer)
	k.node("node-a", nil)
	k.node("node-b", nil)
	k.path("blue")
	k.pod("first", "node-a", "10.0.1.2", nil)
	k.pod("other", "node-b", "10.0.2.2", nil)
	k.policy("all", nil)
	k.waitForPods("node-a", "first")
	before := k.waitForPods("node-b", "other")
	k.pod("second", "node-a", "10.0.1.3", nil)
	k.waitForPods("node-a", "first", "second")
	if after := k.waitForPods("node-b", "other"); after.ResourceVersion != before.ResourceVersion {
		t.Errorf("the plan of a node on which nothing changed was written: %s, then %s", before.ResourceVersion, after.ResourceVersion)
	}
}

func TestPlanThatSomebodyChangesOrDeletesIsMadeAnew(t *testing.T) {
	k := newCluster(t)
	k.startController(apiServer)
	k.node("node-a", nil)
	k.path("blue")
	k.pod("pod", "node-a", "10.0.1.2", nil)
	k.policy("all", nil)
	plan := k.waitForPods("node-a", "pod")
	change(k, plan, func(p *v1alpha1.MPTCPNodePlan) {
		p.Spec.Endpoints[0].Name = "intruder"
		p.Spec.Paths = nil
	})
	if plan = k.waitForPods("node-a", "pod"); len(plan.Spec.Paths) != 1 {
		t.Errorf("paths are missing: %+v", plan.Spec)
	}
	k.delete(plan)
	k.waitForPods("node-a", "pod")
}

func TestPriorityDecidesBetweenPolicies(t *testing.T) {
	k := newCluster(t)
	k.startController(apiServer)
	k.node("node-a", nil)
	k.path("blue")
	k.pod("pod", "node-a", "10.0.1.2", nil)
	low := k.policy("low", nil)
	k.waitForPods("node-a", "pod")
	k.waitForCondition(low, v1alpha1.ConditionEffective, v1alpha1.ReasonEffective)

	high := &v1alpha1.ClusterMPTCPPolicy{ObjectMeta: metav1.ObjectMeta{Name: "high"}}
	high.Spec.NamespaceSelector.MatchLabels = map[string]string{"kubernetes.io/metadata.name": k.namespace}
	high.Spec.Priority = 5
	k.create(high)
	k.waitForCondition(low, v1alpha1.ConditionEffective, v1alpha1.ReasonOverridden)
	if c := k.waitForCondition(low, v1alpha1.ConditionProgrammed, v1alpha1.ReasonOverridden); c.Status != metav1.ConditionFalse {
		t.Errorf("an overridden policy is programmed: %+v", c)
	}
	if low.Status.PodsSelected != 1 || low.Status.PodsProgrammed != 0 {
		t.Errorf("the overridden policy counts %d selected and %d programmed pods, want 1 and 0", low.Status.PodsSelected, low.Status.PodsProgrammed)
	}
	k.waitForCondition(high, v1alpha1.ConditionEffective, v1alpha1.ReasonEffective)
	if plan := k.waitForPods("node-a", "pod"); plan.Spec.Endpoints[0].Policy.Name != "high" {
		t.Errorf("the plan follows %+v", plan.Spec.Endpoints[0].Policy)
	}

	k.delete(high)
	k.waitForCondition(low, v1alpha1.ConditionEffective, v1alpha1.ReasonEffective)
	k.eventually(func() error {
		plan, err := k.plan("node-a")
		if err == nil && plan.Spec.Endpoints[0].Policy.Name != "low" {
			return errStillThere
		}
		return err
	})
}

func TestOfTwoControllersOneWorksAndTheOtherTakesOver(t *testing.T) {
	k := newCluster(t)
	firstConfig, first := watched(apiServer)
	secondConfig, second := watched(apiServer)
	k.node("node-a", nil)
	stopFirst := k.startController(firstConfig, k.elect)
	k.waitForPods("node-a")
	k.startController(secondConfig, k.elect)

	k.pod("pod", "node-a", "10.0.1.2", nil)
	p := k.policy("all", nil)
	k.waitForPods("node-a", "pod")
	k.waitForCondition(p, v1alpha1.ConditionProgrammed, v1alpha1.ReasonAgentNotReporting)
	if first.writes.Load() == 0 || second.writes.Load() != 0 {
		t.Errorf("the leader wrote %d times and the other %d times, want some and none", first.writes.Load(), second.writes.Load())
	}

	stopFirst()
	k.pod("later", "node-a", "10.0.1.3", nil)
	k.waitForPods("node-a", "later", "pod")
	k.eventually(func() error { // a request counts when its answer is there
		if second.writes.Load() == 0 {
			return errors.New("the plan changed, but not by the second controller")
		}
		return nil
	})
}

func TestRestartedControllerWritesNothingWhereNothingChanged(t *testing.T) {
	k := newCluster(t)
	k.node("node-a", nil)
	path := k.path("blue")
	k.pod("pod", "node-a", "10.0.1.2", nil)
	p := k.policy("all", nil)
	a := k.agent("node-a", "blue")
	stop := k.startController(apiServer)
	k.waitForPods("node-a", "pod")
	a.report(v1alpha1.EndpointProgrammed, "")
	k.waitForCondition(p, v1alpha1.ConditionProgrammed, v1alpha1.ReasonProgrammed)
	k.waitForCondition(path, v1alpha1.ConditionReady, v1alpha1.ReasonReady)
	node := &v1alpha1.MPTCPNode{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}}
	k.waitForCondition(node, v1alpha1.ConditionReady, v1alpha1.ReasonReady)
	stop()

	plan := k.waitForPods("node-a", "pod")
	objects := []client.Object{plan, p, path, node}
	before := versions(k, objects)
	k.startController(apiServer)
	// A new pod shows that the new controller has done its first work.
	k.node("node-b", nil)
	k.waitForPods("node-b")
	time.Sleep(time.Second)
	after := versions(k, objects)
	for i := range objects {
		// The new node has no agent, which the path's condition tells.
		if _, isPath := objects[i].(*v1alpha1.MPTCPPath); !isPath && before[i] != after[i] {
			t.Errorf("%T was written", objects[i])
		}
	}
}

func versions(k *cluster, objects []client.Object) []string {
	var found []string
	for _, o := range objects {
		if err := k.Get(context.Background(), client.ObjectKeyFromObject(o), o); err != nil {
			k.t.Fatal(err)
		}
		found = append(found, o.GetResourceVersion())
	}
	return found
}

// An agent's report comes between the read and the write of a plan all the time.
func TestAPlanIsWrittenWhateverItsAgentHasReportedMeanwhile(t *testing.T) {
	k := newCluster(t)
	read := &v1alpha1.MPTCPNodePlan{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}}
	k.create(read)
	t.Cleanup(func() { k.delete(&v1alpha1.MPTCPNodePlan{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}}) })
	a := &agent{k: k, node: "node-a"}
	a.reportFor(read, v1alpha1.EndpointProgrammed, "")
	r := &planReconciler{client: k.Client, teller: newHintTeller(k.Client)}
	want := v1alpha1.MPTCPNodePlanSpec{Paths: []v1alpha1.PlanPath{{Name: "blue", Interfaces: []v1alpha1.InterfacePattern{"eth1"}}}}
	if err := r.update(t.Context(), read, want); err != nil {
		t.Fatal(err)
	}
	plan, err := k.plan("node-a")
	if err != nil {
		t.Fatal(err)
	}
	if !sameSpec(plan.Spec, want) || plan.Generation != read.Generation+1 || plan.Status.ObservedGeneration != read.Generation {
		t.Errorf("the plan is %+v", plan)
	}
}

func TestAClusterPolicysDestinationsOutsideAndThePathsGatewaysAreInPlans(t *testing.T) {
	k := newCluster(t)
	k.startController(apiServer)
	k.node("node-a", nil)
	k.pod("pod", "node-a", "10.0.1.2", nil)
	k.path("green")
	blue := k.path("blue")
	change(k, blue, func(p *v1alpha1.MPTCPPath) { p.Spec.Gateway = "10.1.1.254" })
	p := &v1alpha1.ClusterMPTCPPolicy{ObjectMeta: metav1.ObjectMeta{Name: "outside"}}
	p.Spec.NamespaceSelector.MatchLabels = map[string]string{"kubernetes.io/metadata.name": k.namespace}
	p.Spec.Paths.Outside = []v1alpha1.OutsideDestination{{CIDR: "2001:db8:9::/48"}, {CIDR: "198.51.100.0/24"}}
	k.create(p)
	expect := func(outside []v1alpha1.CIDR, gateway string) {
		t.Helper()
		k.eventually(func() error {
			plan, err := k.plan("node-a")
			if err != nil || plan == nil {
				return fmt.Errorf("there is no plan (%w)", err)
			}
			if len(plan.Spec.Endpoints) != 1 || !slices.Equal(plan.Spec.Endpoints[0].Outside, outside) || len(plan.Spec.Paths) != 2 || plan.Spec.Paths[0].Gateway != gateway {
				return fmt.Errorf("unexpected plan: %+v", plan.Spec)
			}
			return nil
		})
	}
	expect([]v1alpha1.CIDR{"198.51.100.0/24", "2001:db8:9::/48"}, "10.1.1.254")
	change(k, p, func(p *v1alpha1.ClusterMPTCPPolicy) { p.Spec.Paths.Outside = p.Spec.Paths.Outside[1:] })
	change(k, blue, func(p *v1alpha1.MPTCPPath) { p.Spec.Gateway = "" })
	expect([]v1alpha1.CIDR{"198.51.100.0/24"}, "")
}

// Whoever wants names alone asks for the plans' metadata.
func TestPlansNameTheirEndpoints(t *testing.T) {
	k := newCluster(t)
	k.node("node-a", nil)
	k.policy("all", nil)
	k.pod("web-0", "node-a", "10.0.1.2", nil)
	expect := func(pods ...string) *v1alpha1.MPTCPNodePlan {
		t.Helper()
		plan := k.waitForPods("node-a", pods...)
		k.eventually(func() (err error) {
			if plan, err = k.plan("node-a"); err != nil || plan == nil {
				return fmt.Errorf("there is no plan (%w)", err)
			}
			names, believed := v1alpha1.NamesIn(plan.Annotations[v1alpha1.AnnotationNames], plan.Generation)
			if !believed || len(names) != len(pods) || names[netip.MustParseAddr("10.0.1.2")] != k.namespace+"/web-0" {
				return fmt.Errorf("the plan of generation %d has %q", plan.Generation, plan.Annotations)
			}
			return nil
		})
		return plan
	}
	stop := k.startController(apiServer)
	expect("web-0")
	k.pod("web-1", "node-a", "10.0.1.3", nil)
	plan := expect("web-0", "web-1")
	// Somebody else changes the names, and annotates the plan.
	change(k, plan, func(p *v1alpha1.MPTCPNodePlan) {
		p.Annotations[v1alpha1.AnnotationNames] = fmt.Sprintf("%d shop/other=10.0.1.2", p.Generation)
		p.Annotations["example.com/note"] = "mine"
	})
	if plan = expect("web-0", "web-1"); plan.Annotations["example.com/note"] != "mine" {
		t.Errorf("the annotations are %v", plan.Annotations)
	}
	stop()
	// It is as controllers left it that named nobody.
	change(k, plan, func(p *v1alpha1.MPTCPNodePlan) { p.Annotations = nil })
	before := plan.Generation
	k.startController(apiServer)
	if plan = expect("web-0", "web-1"); plan.Generation != before {
		t.Errorf("the plan has generation %d, and had %d", plan.Generation, before)
	}
}
