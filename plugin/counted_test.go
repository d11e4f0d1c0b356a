// SPDX-License-Identifier: Apache-2.0

package plugin_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/plugin"
)

// addCounted adds a node with a plan of these endpoints, whose results its agent counts.
func (s *scene) addCounted(node string, endpoints []v1alpha1.PlanEndpoint, change func(*v1alpha1.EndpointStatus)) *v1alpha1.MPTCPNodePlan {
	s.t.Helper()
	s.addNode(node)
	plan := &v1alpha1.MPTCPNodePlan{}
	plan.Name, plan.Spec.Endpoints = node, endpoints
	s.create(plan, func() {
		plan.Status.ObservedGeneration = plan.Generation
		for i := range endpoints {
			result := v1alpha1.EndpointStatus{
				UID: endpoints[i].UID, Namespace: endpoints[i].Namespace, Name: endpoints[i].Name, PolicyGeneration: 1, State: v1alpha1.EndpointProgrammed,
				Spreading: &v1alpha1.SpreadingStatus{State: v1alpha1.SpreadingSpread, Reason: v1alpha1.ReasonSpread},
			}
			change(&result)
			plan.Status.Endpoints = append(plan.Status.Endpoints, result)
		}
		plan.Status.Summary = v1alpha1.Summarize(endpoints, plan.Status.Endpoints)
	})
	return plan
}

// endpointsNamed are endpoints of a plan.
func endpointsNamed(names ...string) (endpoints []v1alpha1.PlanEndpoint) {
	for _, name := range names {
		endpoints = append(endpoints, v1alpha1.PlanEndpoint{
			UID: types.UID("uid-of-" + name), Namespace: "shop", Name: name, Addresses: []string{"10.0.0.1"},
			Policy:   v1alpha1.PolicyReference{Kind: "MPTCPPolicy", Namespace: "shop", Name: "spread", Generation: 1},
			Subflows: v1alpha1.PlanSubflows{Manager: v1alpha1.SubflowManagerKernel, Count: 2},
		})
	}
	return endpoints
}

func asItIs(*v1alpha1.EndpointStatus) {}

// forgetCounts takes the counts away, as an agent does that does not know them.
func (s *scene) forgetCounts() {
	s.t.Helper()
	var plans v1alpha1.MPTCPNodePlanList
	require.NoError(s.t, s.client.List(s.t.Context(), &plans))
	for i := range plans.Items {
		plans.Items[i].Status.Summary = nil
		require.NoError(s.t, s.client.Status().Update(s.t.Context(), &plans.Items[i]))
	}
}

func TestStatusTellsFromCountsWhatItTellsFromPlans(t *testing.T) {
	s := newScene(t)
	s.addBraid(time.Hour, "fine", "failing", "behind", "plain-a", "plain-b", "plain-c", "machines", "waiting")
	s.addCounted("fine", endpointsNamed("a", "b"), asItIs)
	s.addCounted("failing", endpointsNamed("well", "ill"), func(result *v1alpha1.EndpointStatus) {
		if result.Name == "ill" {
			result.State, result.Message = v1alpha1.EndpointFailed, "net.mptcp.enabled is 0"
		}
	})
	s.addCounted("silent", endpointsNamed("unheard"), asItIs)
	for _, node := range []string{"plain-a", "plain-b", "plain-c"} {
		var names []string
		for i := range 7 {
			names = append(names, fmt.Sprintf("%s-%d", node, i))
		}
		s.addCounted(node, endpointsNamed(names...), func(result *v1alpha1.EndpointStatus) { result.Spreading.Reason = v1alpha1.ReasonPlainTCP })
	}
	machines := endpointsNamed("guest", "holder")
	machines[0].Guest = &v1alpha1.PlanGuest{Interface: v1alpha1.EndpointInterface{Name: "tap0"}}
	machines[1].VirtualMachine = &v1alpha1.PlanVirtualMachine{Held: true}
	s.addCounted("machines", machines, func(result *v1alpha1.EndpointStatus) { result.GuestSubflows = v1alpha1.GuestNotTaken })
	s.addCounted("waiting", endpointsNamed("chained"), func(result *v1alpha1.EndpointStatus) { result.Chain = "earlier" })
	behind := s.addCounted("behind", endpointsNamed("before"), asItIs)
	behind.Spec.Endpoints = endpointsNamed("before", "after")
	require.NoError(t, s.client.Update(t.Context(), behind))

	counted, err := s.run("status")
	require.ErrorIs(t, err, plugin.ErrNotFine)
	for _, say := range []string{
		"pod shop/ill on failing: Failed\n    net.mptcp.enabled is 0", "pod shop/unheard on silent: AgentNotReporting", "pod shop/after on behind: Pending",
		"pod shop/chained on waiting: Pending", "pod shop/holder on machines: GuestTakesNoAnnouncements", "plain TCP in 21 (shop/plain-a-0, ", "shop/plain-b-2 and 11 more)",
	} {
		require.Contains(t, counted, say)
	}
	require.Regexp(t, `pods +25 of 29 fine\nVMs +1 of 1 fine\npods that hold VMs +1 of 1 fine`, counted)
	json, err := s.run("status", "--output=json")
	require.ErrorIs(t, err, plugin.ErrNotFine)
	s.forgetCounts()
	read, err := s.run("status")
	require.ErrorIs(t, err, plugin.ErrNotFine)
	require.Equal(t, read, counted)
	again, err := s.run("status", "--output=json")
	require.ErrorIs(t, err, plugin.ErrNotFine)
	require.JSONEq(t, again, json)
}

// A plan of which the counts say that all is fine is not read, however much else is in it. That
// holds for the plan that was counted, and while its agent lives.
func TestCountsAreBelievedOfTheirOwnPlanAlone(t *testing.T) {
	s := newScene(t)
	s.addBraid(time.Hour, "node1")
	plan := s.addCounted("node1", endpointsNamed("web"), func(result *v1alpha1.EndpointStatus) {
		result.State, result.Message = v1alpha1.EndpointFailed, "it is broken"
	})
	plan.Status.Summary = &v1alpha1.PlanSummary{Pods: 1}
	require.NoError(t, s.client.Status().Update(t.Context(), plan))
	out, err := s.run("status")
	require.NoError(t, err, out)
	require.Contains(t, out, "1 of 1 fine")

	lease := &coordinationv1.Lease{ObjectMeta: inSystem(v1alpha1.AgentLeasePrefix + "node1")}
	require.NoError(t, s.client.Delete(t.Context(), lease))
	s.statusSays("pod shop/web on node1: AgentNotReporting")
	s.addLease(lease.Name, time.Hour)
	_, err = s.run("status")
	require.NoError(t, err)

	plan.Spec.Endpoints[0].UpgradeSockets = true
	require.NoError(t, s.client.Update(t.Context(), plan))
	s.statusSays("pod shop/web on node1: Failed", "it is broken")
}

// Where much is wrong, all plans are read at once.
func TestManyPlansWithSomethingToTellAreAllTold(t *testing.T) {
	s := newScene(t)
	var nodes []string
	for i := range 70 {
		nodes = append(nodes, fmt.Sprintf("node%d", i))
	}
	s.addBraid(time.Hour, nodes...)
	for _, node := range nodes {
		s.addCounted(node, endpointsNamed("on-"+node), func(result *v1alpha1.EndpointStatus) { result.State = v1alpha1.EndpointFailed })
	}
	out, err := s.run("status")
	if !errors.Is(err, plugin.ErrNotFine) {
		t.Fatal(err)
	}
	require.Regexp(t, `pods +0 of 70 fine`, out)
	require.Contains(t, out, "pod shop/on-node69 on node69: Failed")
}

// topNamesPeersElsewhere: those of nodes that are not asked have names too.
func topNamesPeersElsewhere(s *scene) {
	t := s.t
	ask := func(arguments ...string) string {
		out, err := s.run(append([]string{"top", "--once", "--every=10ms"}, arguments...)...)
		require.NoError(t, err)
		return out
	}
	var plans v1alpha1.MPTCPNodePlanList
	require.NoError(t, s.client.List(t.Context(), &plans))
	for i := range plans.Items {
		plan := &plans.Items[i]
		before := plan.Status
		plan.Status.ObservedGeneration, plan.Status.Summary = plan.Generation, &v1alpha1.PlanSummary{Pods: 1}
		require.NoError(t, s.client.Status().Update(t.Context(), plan))
		defer func() {
			require.NoError(t, s.client.Get(t.Context(), client.ObjectKeyFromObject(plan), plan))
			plan.Status = before
			require.NoError(t, s.client.Status().Update(t.Context(), plan))
		}()
	}
	require.Contains(t, ask("--nodes=1"), "1 more nodes were not asked")
	defer s.setNames("node2", "")
	for names, peer := range map[string]string{
		"": "shop/server:5001", // of a controller that names nobody, so the plan is read
		fmt.Sprintf("%d shop/named=10.0.2.1", plans.Items[1].Generation):     "shop/named:5001",
		fmt.Sprintf("%d shop/earlier=10.0.2.1", plans.Items[1].Generation-1): "shop/server:5001",
		fmt.Sprintf("%d shop/other=10.0.2.9", plans.Items[1].Generation):     "10.0.2.1:5001",
	} {
		s.setNames("node2", names)
		require.Contains(t, ask("--node=node1"), " "+peer+" ", names)
	}
	s.setNames("node2", "")

	s.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}, nil)
	for i, name := range []string{"client", "server"} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}}
		pod.Spec = corev1.PodSpec{NodeName: fmt.Sprintf("node%d", i+1), Containers: []corev1.Container{{Name: "c", Image: "c"}}}
		s.create(pod, func() {
			pod.Status.Phase, pod.Status.PodIP = corev1.PodRunning, fmt.Sprintf("10.0.%d.1", i+1)
			pod.Status.PodIPs = []corev1.PodIP{{IP: pod.Status.PodIP}}
		})
		defer func() { require.NoError(t, s.client.Delete(t.Context(), pod, client.GracePeriodSeconds(0))) }()
	}
	for _, arguments := range [][]string{{"--nodes=1"}, {"--node=node1"}, {"client", "--namespace=shop"}, {"--namespace=shop", "--nodes=1"}} {
		require.Contains(t, ask(arguments...), "shop/server:5001", arguments)
	}
}

// setNames has the plan of a node name its endpoints so.
func (s *scene) setNames(node, names string) {
	s.t.Helper()
	plan := &v1alpha1.MPTCPNodePlan{}
	require.NoError(s.t, s.client.Get(s.t.Context(), client.ObjectKey{Name: node}, plan))
	plan.Annotations = map[string]string{v1alpha1.AnnotationNames: names}
	require.NoError(s.t, s.client.Update(s.t.Context(), plan))
}
