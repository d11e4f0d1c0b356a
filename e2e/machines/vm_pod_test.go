// SPDX-License-Identifier: Apache-2.0

package machines_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/e2e/testlab"
	"braid.dev/braid/hack/lab"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

// addLauncher adds a pod as KubeVirt makes them, whose guest is behind a masquerade.
func (c *cluster) addLauncher(t *testing.T, name string, labels map[string]string) *network.Pod {
	t.Helper()
	vm, err := c.Network.Nodes[0].AddGuestBy(network.BindingMasquerade, name)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.RemovePod(context.Background(), "tenant", vm)) })
	require.NoError(t, c.RegisterPod(t.Context(), lab.Pod{Namespace: "tenant", Name: name, Node: 1, Labels: labels}))
	return vm
}

// The pod holds a VM by KubeVirt's label alone. Nothing is set in the pod, and what its policy
// asks of its sockets is told as not applied, never as programmed.
func TestAPodThatHoldsAVMGetsItsSubflowsFromTheHost(t *testing.T) {
	c := use(t)
	vm := c.addLauncher(t, "vm", map[string]string{"app": "vm", v1alpha1.LabelKubeVirt: v1alpha1.LabelKubeVirtLauncher})
	before := mptcpSettings(t, &network.Pod{Namespace: vm.Forwarder})
	policy := testlab.NewPolicy("tenant", "vm")
	policy.Spec.Subflows.Manager = v1alpha1.SubflowManagerAgent
	c.CreatePaths(t)
	c.Create(t, policy)
	c.expectPolicy(t, policy, v1alpha1.ReasonNotForGuests, "choose manager: Host")

	c.Update(t, policy, func() { policy.Spec.Subflows.Manager = v1alpha1.SubflowManagerHost })
	c.WaitProgrammed(t, policy, 1)
	first := c.Run(t, testlab.NewTransfer("vm", "tenant-server", 4, traffic.Up, testlab.SpreadTime))
	require.Equal(t, 1, first.Result.Subflows, "Linux follows no announcement by default")
	c.expectGuestInPlan(t, "vm", v1alpha1.GuestNotTaken)

	testlab.RunIn(t, vm, "ip", "mptcp", "limits", "set", "subflows", "8", "add_addr_accepted", "8")
	t.Run("its subflows are on all NICs", c.expectVMSpread)
	c.expectGuestInPlan(t, "vm", v1alpha1.GuestJoined)
	require.Equal(t, before, mptcpSettings(t, &network.Pod{Namespace: vm.Forwarder}), "something is set in the pod")

	t.Run("within guardrails", func(t *testing.T) {
		c.guardVM(t)
		r := c.Run(t, testlab.NewTransfer("vm", "tenant-server", 4, traffic.Up, 3*time.Second))
		testlab.ExpectCeilings(t, "the VM", r.Shares(testlab.Warmup, r.Duration))
	})
	t.Run("its owner has the last word", func(t *testing.T) {
		c.sayOfVM(t, "vm", "false")
		c.expectPolicy(t, policy, v1alpha1.ReasonEndpointFailed, "nothing says that this pod holds one")
	})
}

// Nothing tells that this pod holds a VM, but a tap that is in use.
func TestAPodInWhichAVMSeemsToRunIsNotProgrammedInSilence(t *testing.T) {
	c := use(t)
	vm := c.addLauncher(t, "vm", map[string]string{"app": "vm"})
	tap := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: "tap0"}, Mode: netlink.TUNTAP_MODE_TAP, Queues: 1}
	require.NoError(t, vm.Forwarder.Do(func() error { return netlink.LinkAdd(tap) }))
	t.Cleanup(func() { tap.Fds[0].Close() })
	require.NoError(t, vm.Forwarder.SetUp("tap0"))
	policy := testlab.NewPolicy("tenant", "vm")
	c.CreatePaths(t)
	c.Create(t, policy)
	c.expectPolicy(t, policy, v1alpha1.ReasonEndpointFailed, `annotate the pod braid.dev/virtual-machine: "true"`)
	for _, says := range []string{"true", "false"} {
		c.sayOfVM(t, "vm", says)
		c.WaitProgrammed(t, policy, 1)
	}
}

// sayOfVM says whether a pod of the tenant's holds a VM.
func (c *cluster) sayOfVM(t *testing.T, pod, value string) {
	t.Helper()
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, v1alpha1.AnnotationVirtualMachine, value)
	object := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant", Name: pod}}
	require.NoError(t, c.Client.Patch(t.Context(), object, client.RawPatch("application/merge-patch+json", []byte(patch))))
}

// expectPolicy waits until a policy is not programmed for this reason, and says so.
func (c *cluster) expectPolicy(t *testing.T, policy *v1alpha1.MPTCPPolicy, reason, says string) {
	t.Helper()
	c.WaitFor(t, "the policy says: "+says, 10*time.Second, func(ctx context.Context) error {
		if err := c.Get(ctx, policy); err != nil {
			return err
		}
		is := meta.FindStatusCondition(policy.Status.Conditions, v1alpha1.ConditionProgrammed)
		if is == nil || is.Status != metav1.ConditionFalse || is.Reason != reason || !strings.Contains(is.Message, says) {
			return fmt.Errorf("%+v", policy.Status)
		}
		return nil
	})
}

// expectGuestInPlan waits until the first node says this of a pod's guest.
func (c *cluster) expectGuestInPlan(t *testing.T, pod string, want v1alpha1.GuestSubflows) {
	t.Helper()
	c.expectInPlan(t, pod, "the guest is told of: "+string(want), func(of *v1alpha1.EndpointStatus) bool { return of.GuestSubflows == want })
}

// expectInPlan waits until what the first node says of a pod is so.
func (c *cluster) expectInPlan(t *testing.T, pod, what string, is func(*v1alpha1.EndpointStatus) bool) {
	t.Helper()
	plan := &v1alpha1.MPTCPNodePlan{ObjectMeta: metav1.ObjectMeta{Name: c.Network.Nodes[0].NodeName()}}
	c.WaitFor(t, what, 20*time.Second, func(ctx context.Context) error {
		if err := c.Get(ctx, plan); err != nil {
			return err
		}
		for i := range plan.Status.Endpoints {
			if of := &plan.Status.Endpoints[i]; of.Name == pod && is(of) {
				return nil
			}
		}
		return fmt.Errorf("%+v", plan.Status.Endpoints)
	})
}
