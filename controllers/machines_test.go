// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"braid.dev/braid/api/v1alpha1"
)

// A pod of KubeVirt's is never programmed for settings that its guest's sockets have not; the
// condition says so, and what helps. The pod's owner has the last word.
func TestAPodThatHoldsAVMIsProgrammedForWhatItsNodeDoesAlone(t *testing.T) {
	k := newCluster(t)
	k.startController(apiServer)
	k.node("node-a", nil)
	agent := k.agent("node-a", "blue")
	k.path("blue")
	pod := k.pod("virt-launcher-db", "node-a", "10.0.0.2", map[string]string{v1alpha1.LabelKubeVirt: v1alpha1.LabelKubeVirtLauncher, "app": "db"})
	p := k.policy("spread", func(p *v1alpha1.MPTCPPolicy) { p.Spec.Subflows.Manager = v1alpha1.SubflowManagerAgent })
	programmed := func(reason string) string {
		t.Helper()
		agent.report(v1alpha1.EndpointProgrammed, "")
		return k.waitForCondition(p, v1alpha1.ConditionProgrammed, reason).Message
	}

	plan := k.waitForPods("node-a", "virt-launcher-db")
	require.True(t, plan.Spec.Endpoints[0].HoldsVirtualMachine())
	require.Equal(t, v1alpha1.SubflowManagerNone, plan.Spec.Endpoints[0].Subflows.Manager)
	message := programmed(v1alpha1.ReasonNotForGuests)
	require.Contains(t, message, "spec.subflows does not hold for a VM")
	require.Contains(t, message, "or choose manager: Host")

	change(k, p, func(p *v1alpha1.MPTCPPolicy) { p.Spec.Subflows.Manager = v1alpha1.SubflowManagerHost })
	k.waitForManager("node-a", v1alpha1.SubflowManagerHost)
	programmed(v1alpha1.ReasonProgrammed)

	change(k, p, func(p *v1alpha1.MPTCPPolicy) { p.Spec.Subflows.Manager = v1alpha1.SubflowManagerAgent })
	k.waitForManager("node-a", v1alpha1.SubflowManagerNone)
	change(k, pod, func(pod *corev1.Pod) { pod.Annotations = map[string]string{v1alpha1.AnnotationVirtualMachine: "false"} })
	plan = k.waitForManager("node-a", v1alpha1.SubflowManagerAgent)
	require.Equal(t, &v1alpha1.PlanVirtualMachine{Held: false}, plan.Spec.Endpoints[0].VirtualMachine)
	programmed(v1alpha1.ReasonProgrammed)
}

// waitForManager waits until the only endpoint of a node's plan has this one.
func (k *cluster) waitForManager(node string, manager v1alpha1.SubflowManager) (plan *v1alpha1.MPTCPNodePlan) {
	k.t.Helper()
	k.eventually(func() (err error) {
		if plan, err = k.plan(node); err != nil {
			return err
		}
		if got := plan.Spec.Endpoints[0].Subflows.Manager; got != manager {
			return fmt.Errorf("the plan says manager %s, want %s", got, manager)
		}
		return nil
	})
	return plan
}
