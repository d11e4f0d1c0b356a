// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/e2e/testlab"
	"braid.dev/braid/hack/lab"
)

// A virtual machine with Debian's kernel, QEMU's guest agent and nothing set in it follows no
// announcement. By its agent the node raises its limits once an admin lets the tenant's policy
// ask for that, and puts them back when the policy asks for it no more.
func TestAGuestFollowsItsNodeOnceItsAgentHasRaisedItsLimits(t *testing.T) {
	c := use(t)
	require.NoError(t, lab.FetchMachines(t.Context(), machineSuite))
	m, err := c.Boot(t.Context(), lab.MachineSpec{Name: "vm", Node: 1, Suite: machineSuite, MemoryMiB: 192, GuestAgent: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.RemoveMachine(m)) })
	guest := endpointOf(m.Pod, "vm", m.IPv4)
	guest.Labels["app"], guest.Spec.GuestAgentSocket = "vm", m.AgentSocket()
	policy := testlab.NewPolicy("tenant", "vm")
	policy.Spec.Subflows.Manager = v1alpha1.SubflowManagerHost
	c.CreatePaths(t)
	c.Create(t, policy, guest)
	c.WaitProgrammed(t, policy, 1)

	subflows := func() int { return c.orderTransfer(t, m, spreadTime)(t).Subflows }
	subflows() // an emulated processor translates what it has not run yet
	require.Equal(t, 1, subflows(), "with the limits of its kernel")
	c.expectGuestSubflows(t, guest, v1alpha1.ReasonGuestTakesNoAnnouncements)

	c.Update(t, policy, func() { policy.Spec.Sockets.GuestAgent = true })
	c.WaitFor(t, "no guardrail allows it", 20*time.Second, func(ctx context.Context) error {
		if err := c.Get(ctx, guest); err != nil || len(guest.Status.NotApplied) != 1 {
			return fmt.Errorf("%+v: %w", guest.Status, err)
		}
		return nil
	})
	require.Equal(t, "spec.sockets.guestAgent", guest.Status.NotApplied[0].Setting)
	c.Create(t, &v1alpha1.MPTCPGuardrail{ObjectMeta: metav1.ObjectMeta{Name: "agents"}, Spec: v1alpha1.MPTCPGuardrailSpec{
		NamespaceSelector: metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": guest.Namespace}},
		Guardrails:        v1alpha1.Guardrails{GuestAgent: v1alpha1.GuestAgentAllow},
	}})
	c.expectOfGuest(t, guest, v1alpha1.ConditionGuestAgent, v1alpha1.ReasonGuestLimitsSet)
	c.WaitProgrammed(t, policy, 1)
	leaving := c.record(m.Node)
	require.Equal(t, len(paths), subflows(), "once its agent has raised its limits")
	leaving.stop()
	require.NoError(t, leaving.err)
	now := time.Now()
	expectAllNICs(t, "its node", leaving.rates(now.Add(-2*time.Second), now))
	c.expectGuestSubflows(t, guest, v1alpha1.ReasonGuestJoins)

	c.Update(t, policy, func() { policy.Spec.Sockets.GuestAgent = false })
	c.WaitFor(t, "its limits are put back", 30*time.Second, func(context.Context) error {
		if count := subflows(); count != 1 {
			return fmt.Errorf("a connection has %d subflows", count)
		}
		return nil
	})
}
