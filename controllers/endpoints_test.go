// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/api/v1alpha1"
)

func (k *cluster) vm(name, node string, addresses ...v1alpha1.EndpointAddress) *v1alpha1.MPTCPEndpoint {
	k.t.Helper()
	e := &v1alpha1.MPTCPEndpoint{ObjectMeta: metav1.ObjectMeta{Namespace: k.namespace, Name: name}}
	e.Spec = v1alpha1.MPTCPEndpointSpec{NodeName: node, Interface: v1alpha1.EndpointInterface{Name: "vnet0"}, Addresses: addresses}
	k.create(e)
	return e
}

func TestAVMIsInItsNodesPlanAndSaysWhatBecameOfIt(t *testing.T) {
	k := newCluster(t)
	k.startController(apiServer)
	k.node("node-a", nil)
	agent := k.agent("node-a", "blue")
	k.path("blue")
	vm := k.vm("vm", "node-a", "192.0.2.1")
	k.waitForCondition(vm, v1alpha1.ConditionAccepted, v1alpha1.ReasonAccepted)
	k.waitForCondition(vm, v1alpha1.ConditionProgrammed, v1alpha1.ReasonNotSelected)

	p := k.policy("spread", nil)
	plan := k.waitForPods("node-a", "vm")
	require.Equal(t, vm.UID, plan.Spec.Endpoints[0].UID)
	k.waitForCondition(vm, v1alpha1.ConditionProgrammed, v1alpha1.ReasonPending)
	agent.report(v1alpha1.EndpointProgrammed, "")
	k.waitForCondition(vm, v1alpha1.ConditionProgrammed, v1alpha1.ReasonProgrammed)
	require.Equal(t, "spread", vm.Status.Policy.Name)
	k.waitForCondition(p, v1alpha1.ConditionProgrammed, v1alpha1.ReasonProgrammed)

	change(k, p, func(p *v1alpha1.MPTCPPolicy) { p.Spec.Sockets.Upgrade = true })
	k.eventually(func() error { // the agent applies the new plan once it is there
		agent.report(v1alpha1.EndpointProgrammed, "")
		if err := k.Get(context.Background(), client.ObjectKeyFromObject(vm), vm); err != nil {
			return err
		}
		if c := meta.FindStatusCondition(vm.Status.Conditions, v1alpha1.ConditionProgrammed); c.Reason != v1alpha1.ReasonNotForGuests {
			return errors.New(c.Reason)
		}
		return nil
	})
	require.Equal(t, "spec.sockets", vm.Status.NotApplied[0].Setting)
	k.waitForCondition(p, v1alpha1.ConditionProgrammed, v1alpha1.ReasonNotForGuests)
	agent.report(v1alpha1.EndpointFailed, "the node's route leads elsewhere")
	k.waitForCondition(vm, v1alpha1.ConditionProgrammed, v1alpha1.ReasonEndpointFailed)
}

func TestAVMSaysWhetherItsGuestFollowsAnnouncements(t *testing.T) {
	k := newCluster(t)
	k.startController(apiServer)
	k.node("node-a", nil)
	agent := k.agent("node-a", "blue")
	k.path("blue")
	vm := k.vm("vm", "node-a", "192.0.2.1")
	k.policy("host", func(p *v1alpha1.MPTCPPolicy) { p.Spec.Subflows.Manager = v1alpha1.SubflowManagerHost })
	k.waitForPods("node-a", "vm")
	for _, c := range []struct {
		is     v1alpha1.GuestSubflows
		reason string
		status metav1.ConditionStatus
	}{
		{"", v1alpha1.ReasonNothingAnnounced, metav1.ConditionUnknown},
		{v1alpha1.GuestNotTaken, v1alpha1.ReasonGuestTakesNoAnnouncements, metav1.ConditionFalse},
		{v1alpha1.GuestJoined, v1alpha1.ReasonGuestJoins, metav1.ConditionTrue},
	} {
		agent.guestSubflows = c.is
		agent.report(v1alpha1.EndpointProgrammed, "")
		k.waitForCondition(vm, v1alpha1.ConditionGuestSubflows, c.reason)
		require.Equal(t, c.status, meta.FindStatusCondition(vm.Status.Conditions, v1alpha1.ConditionGuestSubflows).Status)
		k.waitForCondition(vm, v1alpha1.ConditionProgrammed, v1alpha1.ReasonProgrammed)
	}
}

func TestAVMSaysWhatItsGuestAgentDid(t *testing.T) {
	k := newCluster(t)
	k.startController(apiServer)
	k.node("node-a", nil)
	agent := k.agent("node-a", "blue")
	k.path("blue")
	vm := k.vm("vm", "node-a", "192.0.2.1")
	vm.Spec.GuestAgentSocket = "vm/org.qemu.guest_agent.0"
	require.NoError(t, k.Update(t.Context(), vm))
	k.create(&v1alpha1.ClusterMPTCPPolicy{ObjectMeta: metav1.ObjectMeta{Name: "vms"}, Spec: v1alpha1.ClusterMPTCPPolicySpec{
		NamespaceSelector: metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpExists}}},
		PolicyRules: v1alpha1.PolicyRules{
			Subflows: v1alpha1.SubflowRules{Manager: v1alpha1.SubflowManagerHost}, Sockets: v1alpha1.SocketRules{GuestAgent: true},
		},
	}})
	k.waitForPods("node-a", "vm")
	for _, c := range []struct {
		is     *v1alpha1.GuestAgentStatus
		reason string
		status metav1.ConditionStatus
	}{
		{nil, v1alpha1.ReasonGuestAgentNotAsked, metav1.ConditionUnknown},
		{&v1alpha1.GuestAgentStatus{State: v1alpha1.GuestAgentUnreachable, Message: "no answer"}, v1alpha1.ReasonGuestAgentUnreachable, metav1.ConditionFalse},
		{&v1alpha1.GuestAgentStatus{State: v1alpha1.GuestAgentRefused, Message: "no ip"}, v1alpha1.ReasonGuestAgentRefused, metav1.ConditionFalse},
		{&v1alpha1.GuestAgentStatus{State: v1alpha1.GuestAgentLimitsSet}, v1alpha1.ReasonGuestLimitsSet, metav1.ConditionTrue},
	} {
		agent.guestAgent = c.is
		agent.report(v1alpha1.EndpointProgrammed, "")
		k.waitForCondition(vm, v1alpha1.ConditionGuestAgent, c.reason)
		require.Equal(t, c.status, meta.FindStatusCondition(vm.Status.Conditions, v1alpha1.ConditionGuestAgent).Status)
	}
}

func TestAnAddressOfAPodIsNoVMs(t *testing.T) {
	k := newCluster(t)
	k.startController(apiServer)
	k.node("node-a", nil)
	k.node("node-b", nil)
	k.policy("spread", nil)
	vm := k.vm("vm", "node-a", "10.0.2.2")
	k.waitForPods("node-a", "vm")
	// The pod comes later, on another node, and has it all the same.
	pod := k.pod("pod", "node-b", "10.0.2.2", nil)
	k.waitForPods("node-a")
	k.waitForPods("node-b", "pod")
	k.waitForCondition(vm, v1alpha1.ConditionAccepted, v1alpha1.ReasonDuplicate)
	k.waitForCondition(vm, v1alpha1.ConditionProgrammed, v1alpha1.ReasonDuplicate)
	k.delete(pod)
	k.waitForPods("node-a", "vm")
	k.waitForCondition(vm, v1alpha1.ConditionAccepted, v1alpha1.ReasonAccepted)
}

func TestOfTwoVMsWithOneAddressNeitherGetsIt(t *testing.T) {
	k := newCluster(t)
	k.startController(apiServer)
	k.node("node-a", nil)
	k.policy("spread", nil)
	first := k.vm("first", "node-a", "192.0.2.1")
	k.waitForPods("node-a", "first")
	second := k.vm("second", "nowhere", "192.0.2.1")
	k.waitForPods("node-a")
	k.waitForCondition(first, v1alpha1.ConditionAccepted, v1alpha1.ReasonDuplicate)
	k.waitForCondition(second, v1alpha1.ConditionAccepted, v1alpha1.ReasonNodeNotFound)
	k.delete(second)
	k.waitForPods("node-a", "first")
}
