// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"braid.dev/braid/api/v1alpha1"
)

const (
	fleetNodes = 30
	fleetPods  = 10 // of each node
)

// fleet is a cluster of some nodes with pods of an app each: policies of apps
// select pods of some nodes.
type fleet struct {
	*cluster
	pods map[string]*corev1.Pod
}

func newFleet(t *testing.T) *fleet {
	t.Helper()
	f := &fleet{cluster: newCluster(t), pods: map[string]*corev1.Pod{}}
	f.path("blue")
	f.path("green")
	f.policy("all", nil)
	f.policy("third", func(p *v1alpha1.MPTCPPolicy) {
		p.Spec.Priority = 5
		p.Spec.PodSelector.MatchLabels = map[string]string{"third": "yes"}
	})
	for i := range fleetNodes {
		f.node(fleetNode(i), nil)
		for j := range fleetPods {
			labels := map[string]string{"app": fmt.Sprint("app-", j)}
			if i%3 == 0 && j == 0 {
				labels["third"] = "yes"
			}
			name := fmt.Sprintf("pod-%02d-%02d", i, j)
			f.pods[name] = f.pod(name, fleetNode(i), fmt.Sprintf("10.1.%d.%d", i, j+1), labels)
		}
	}
	f.startController(apiServer)
	f.waitForPlans(func(plan *v1alpha1.MPTCPNodePlan) bool { return len(plan.Spec.Endpoints) == fleetPods })
	return f
}

func fleetNode(i int) string { return fmt.Sprintf("node-%02d", i) }

// waitForPlans waits until every node has a plan that is as wanted.
func (f *fleet) waitForPlans(wanted func(*v1alpha1.MPTCPNodePlan) bool) {
	f.t.Helper()
	f.eventually(func() error {
		var plans v1alpha1.MPTCPNodePlanList
		if err := f.List(context.Background(), &plans); err != nil {
			return err
		}
		if len(plans.Items) != fleetNodes {
			return fmt.Errorf("there are %d plans, want %d", len(plans.Items), fleetNodes)
		}
		for i := range plans.Items {
			if !wanted(&plans.Items[i]) {
				return fmt.Errorf("the plan of node %s is not as wanted", plans.Items[i].Name)
			}
		}
		return nil
	})
}

// generations counts the writes of each node's plan.
func (f *fleet) generations() map[string]int64 {
	f.t.Helper()
	var plans v1alpha1.MPTCPNodePlanList
	if err := f.List(context.Background(), &plans); err != nil {
		f.t.Fatal(err)
	}
	found := map[string]int64{}
	for i := range plans.Items {
		found[plans.Items[i].Name] = plans.Items[i].Generation
	}
	return found
}

// written lists the nodes whose plans were written since then, each as often as
// that was.
func (f *fleet) written(since map[string]int64) []string {
	f.t.Helper()
	var nodes []string
	for node, generation := range f.generations() {
		nodes = append(nodes, slices.Repeat([]string{node}, int(generation-since[node]))...)
	}
	slices.Sort(nodes)
	return nodes
}

// ripple changes the last pod of node-11 and waits for its plan: what was to be
// written before that has been written then.
func (f *fleet) ripple(path string) {
	f.t.Helper()
	f.hint(f.pods["pod-11-09"], path)
}

// hint makes a pod prefer a path, and waits until its plan says so.
func (f *fleet) hint(pod *corev1.Pod, path string) {
	f.t.Helper()
	change(f.cluster, pod, func(p *corev1.Pod) { p.Annotations = map[string]string{v1alpha1.AnnotationPreferredPaths: path} })
	f.eventually(func() error {
		plan, err := f.plan(pod.Spec.NodeName)
		if err != nil {
			return err
		}
		for i := range plan.Spec.Endpoints {
			if e := &plan.Spec.Endpoints[i]; e.UID == pod.UID && slices.Equal(e.Preferred, []v1alpha1.PathName{v1alpha1.PathName(path)}) {
				return nil
			}
		}
		return errNotYet
	})
}

func TestAPodsChangeWritesItsNodesPlanAndNoOther(t *testing.T) {
	f := newFleet(t)
	before := f.generations()
	f.hint(f.pods["pod-07-03"], "green")
	f.ripple("green")
	if got, want := f.written(before), []string{"node-07", "node-11"}; !slices.Equal(got, want) {
		t.Errorf("after one change of a pod on each of %v plans were written of %v", want, got)
	}

	before = f.generations()
	f.delete(f.pods["pod-05-00"])
	f.waitForPods("node-05", "pod-05-01", "pod-05-02", "pod-05-03", "pod-05-04", "pod-05-05", "pod-05-06", "pod-05-07", "pod-05-08", "pod-05-09")
	f.ripple("blue")
	if got, want := f.written(before), []string{"node-05", "node-11"}; !slices.Equal(got, want) {
		t.Errorf("after a pod was deleted and one changed, plans were written of %v, want %v", got, want)
	}
}

func TestAPolicysChangeWritesThePlansOfItsPodsAndNoOther(t *testing.T) {
	f := newFleet(t)
	before := f.generations()
	third := &v1alpha1.MPTCPPolicy{}
	third.Namespace, third.Name = f.namespace, "third"
	change(f.cluster, third, func(p *v1alpha1.MPTCPPolicy) { p.Spec.Subflows.Count = new(int32(5)) })
	f.waitForPlans(func(plan *v1alpha1.MPTCPNodePlan) bool {
		return !slices.ContainsFunc(plan.Spec.Endpoints, func(e v1alpha1.PlanEndpoint) bool {
			return e.Policy.Name == "third" && e.Policy.Generation != third.Generation
		})
	})
	f.ripple("green")
	want := []string{"node-11"}
	for i := 0; i < fleetNodes; i += 3 {
		want = append(want, fleetNode(i))
	}
	slices.Sort(want)
	if got := f.written(before); !slices.Equal(got, want) {
		t.Errorf("plans were written of %v, want %v", got, want)
	}
}

func TestANewNodeGetsAPlanAndOthersStayAsTheyAre(t *testing.T) {
	f := newFleet(t)
	before := f.generations()
	f.node("node-new", nil)
	f.pod("pod-new", "node-new", "10.1.99.1", nil)
	f.waitForPods("node-new", "pod-new")
	after := f.generations()
	delete(after, "node-new")
	if !maps.Equal(before, after) {
		t.Errorf("generations of plans: %v, then %v", before, after)
	}
}
