// SPDX-License-Identifier: Apache-2.0

package machines_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/e2e/testlab"
	"braid.dev/braid/hack/lab"
)

// waysToAGuestAgent are those by which a node reaches the agent of a machine: what boots it, and how
// a node is told of it.
var waysToAGuestAgent = map[string]struct {
	libvirt bool
	tell    func(*cluster, *testing.T, *lab.Machine) agentOfGuest
}{
	"at QEMU's own socket":            {false, (*cluster).describeMachine},
	"by the libvirt that runs it":     {true, (*cluster).describeMachine},
	"by the libvirt of the pod it is": {true, (*cluster).registerLauncher},
}

// agentOfGuest is what a node says of a machine.
type agentOfGuest struct {
	// notApplied is what it says of the settings that do not hold.
	notApplied func(context.Context) ([]v1alpha1.NotAppliedSetting, error)
	// limitsSet waits until the limits are set, and joins until it says this of its subflows.
	limitsSet func(*testing.T)
	joins     func(*testing.T, v1alpha1.GuestSubflows)
}

// A virtual machine with Debian's kernel, QEMU's guest agent and nothing set in it follows no
// announcement. By its agent the node raises its limits once an admin lets the tenant's policy
// ask for that, and puts them back when the policy asks for it no more.
func TestAGuestFollowsItsNodeOnceItsAgentHasRaisedItsLimits(t *testing.T) {
	for name, way := range waysToAGuestAgent {
		t.Run(name, func(t *testing.T) {
			c := use(t)
			require.NoError(t, lab.FetchMachines(t.Context(), machineSuite))
			m, err := c.Boot(t.Context(), lab.MachineSpec{Name: "vm", Node: 1, Suite: machineSuite, MemoryMiB: 192, GuestAgent: true, Libvirt: way.libvirt})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, c.RemoveMachine(m)) })
			policy := testlab.NewPolicy("tenant", "vm")
			policy.Spec.Subflows.Manager = v1alpha1.SubflowManagerHost
			c.CreatePaths(t)
			c.Create(t, policy)
			c.expectRaisedAndPutBack(t, m, policy, way.tell(c, t, m))
		})
	}
}

func (c *cluster) expectRaisedAndPutBack(t *testing.T, m *lab.Machine, policy *v1alpha1.MPTCPPolicy, guest agentOfGuest) {
	t.Helper()
	c.WaitProgrammed(t, policy, 1)
	subflows := func() int { return c.orderTransfer(t, m, testlab.SpreadTime)(t).Subflows }
	subflows() // an emulated processor translates what it has not run yet
	require.Equal(t, 1, subflows(), "with the limits of its kernel")
	guest.joins(t, v1alpha1.GuestNotTaken)

	c.Update(t, policy, func() { policy.Spec.Sockets.GuestAgent = true })
	c.WaitFor(t, "no guardrail allows it", 20*time.Second, func(ctx context.Context) error {
		settings, err := guest.notApplied(ctx)
		if err == nil && (len(settings) != 1 || settings[0].Setting != "spec.sockets.guestAgent") {
			err = fmt.Errorf("%+v", settings)
		}
		return err
	})
	c.Create(t, allowGuestAgents(policy.Namespace))
	guest.limitsSet(t)
	c.WaitProgrammed(t, policy, 1)
	leaving := c.Record(m.Node)
	require.Equal(t, len(paths), subflows(), "once its agent has raised its limits")
	leaving.Stop()
	require.NoError(t, leaving.Err)
	now := time.Now()
	expectAllNICs(t, "its node", leaving.Rates(now.Add(-2*time.Second), now))
	guest.joins(t, v1alpha1.GuestJoined)

	c.Update(t, policy, func() { policy.Spec.Sockets.GuestAgent = false })
	c.expectPutBack(t, m, subflows)
}

// The node to which a machine moved did not raise its limits, and puts them back all the same.
func TestAGuestThatMovedHasItsLimitsPutBackByItsNewNode(t *testing.T) {
	c := use(t)
	require.NoError(t, lab.FetchMachines(t.Context(), machineSuite))
	m, err := c.Boot(t.Context(), lab.MachineSpec{Name: "vm", Node: 1, Suite: machineSuite, MemoryMiB: 192, GuestAgent: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.RemoveMachine(m)) })
	policy, guest := testlab.NewPolicy("tenant", "vm"), endpointOf(m.Pod, "vm", m.IPv4)
	policy.Spec.Subflows.Manager, policy.Spec.Sockets.GuestAgent = v1alpha1.SubflowManagerHost, true
	guest.Labels["app"], guest.Spec.GuestAgentSocket = "vm", m.AgentSocket()
	c.CreatePaths(t)
	c.Create(t, policy, guest, allowGuestAgents(policy.Namespace))
	c.expectOfGuest(t, guest, v1alpha1.ConditionGuestAgent, v1alpha1.ReasonGuestLimitsSet)
	_, err = c.Migrate(t.Context(), m, c.Network.Nodes[2], func() error {
		c.Update(t, guest, func() {
			guest.Spec.NodeName, guest.Spec.Interface.Name, guest.Spec.GuestAgentSocket = m.Node.NodeName(), m.HostInterface, m.AgentSocket()
		})
		return nil
	})
	require.NoError(t, err)
	c.waitForRecords(t, m, 1)
	c.WaitFor(t, "its new node has programmed it", 10*time.Second, func(ctx context.Context) error {
		return c.PodProgrammed(ctx, m.Node.NodeName(), "tenant", "vm")
	})
	c.WaitProgrammed(t, policy, 1)
	subflows := func() int { return c.orderTransfer(t, m, testlab.SpreadTime)(t).Subflows }
	subflows() // an emulated processor translates what it has not run yet
	require.Equal(t, len(paths), subflows(), "at its new node")
	c.Update(t, policy, func() { policy.Spec.Sockets.GuestAgent = false })
	c.expectPutBack(t, m, subflows)
}

// expectPutBack waits until a machine has its own limits again, and its node knows of none. To
// be asked, it must not be removed before.
func (c *cluster) expectPutBack(t *testing.T, m *lab.Machine, subflows func() int) {
	t.Helper()
	c.WaitFor(t, "its limits are put back", 30*time.Second, func(context.Context) error {
		if count := subflows(); count != 1 {
			return fmt.Errorf("a connection has %d subflows", count)
		}
		return nil
	})
	c.waitForRecords(t, m, 0)
}

// waitForRecords waits until a machine's node has records of the limits of so many guests.
func (c *cluster) waitForRecords(t *testing.T, m *lab.Machine, count int) {
	t.Helper()
	records := filepath.Join(c.StatePath(m.Node.NodeName()), "guest-agents", "*.json")
	c.WaitFor(t, fmt.Sprintf("its node has %d records of guests' limits", count), time.Minute, func(context.Context) error {
		found, err := filepath.Glob(records)
		if err == nil && len(found) != count {
			err = fmt.Errorf("%s has %d", records, len(found))
		}
		return err
	})
}

// allowGuestAgents lets the policies of a namespace ask for guest agents.
func allowGuestAgents(namespace string) *v1alpha1.MPTCPGuardrail {
	return &v1alpha1.MPTCPGuardrail{ObjectMeta: metav1.ObjectMeta{Name: "agents"}, Spec: v1alpha1.MPTCPGuardrailSpec{
		NamespaceSelector: metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": namespace}},
		Guardrails:        v1alpha1.Guardrails{GuestAgent: v1alpha1.GuestAgentAllow},
	}}
}

// describeMachine tells of a machine by an MPTCPEndpoint.
func (c *cluster) describeMachine(t *testing.T, m *lab.Machine) agentOfGuest {
	t.Helper()
	guest := endpointOf(m.Pod, "vm", m.IPv4)
	guest.Labels["app"], guest.Spec.GuestAgentSocket = "vm", m.AgentSocket()
	if m.HasLibvirt() {
		guest.Spec.GuestAgentDomain = m.PodName
	}
	c.Create(t, guest)
	reasons := map[v1alpha1.GuestSubflows]string{v1alpha1.GuestNotTaken: v1alpha1.ReasonGuestTakesNoAnnouncements, v1alpha1.GuestJoined: v1alpha1.ReasonGuestJoins}
	return agentOfGuest{
		notApplied: func(ctx context.Context) ([]v1alpha1.NotAppliedSetting, error) {
			err := c.Get(ctx, guest)
			return guest.Status.NotApplied, err
		},
		limitsSet: func(t *testing.T) {
			t.Helper()
			c.expectOfGuest(t, guest, v1alpha1.ConditionGuestAgent, v1alpha1.ReasonGuestLimitsSet)
		},
		joins: func(t *testing.T, is v1alpha1.GuestSubflows) {
			t.Helper()
			c.expectGuestSubflows(t, guest, reasons[is])
		},
	}
}

// registerLauncher tells of a machine by the pod in which it runs, as KubeVirt does. The socket
// of its libvirt is where kubelet has the pod's volume.
func (c *cluster) registerLauncher(t *testing.T, m *lab.Machine) agentOfGuest {
	t.Helper()
	labels := map[string]string{"app": "vm", v1alpha1.LabelKubeVirt: v1alpha1.LabelKubeVirtLauncher}
	require.NoError(t, c.RegisterPod(t.Context(), lab.Pod{Namespace: "tenant", Name: m.PodName, Node: 1, Labels: labels}))
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant", Name: m.PodName}}
	t.Cleanup(func() {
		require.NoError(t, c.Client.Delete(context.WithoutCancel(t.Context()), pod, client.GracePeriodSeconds(0)))
	})
	require.NoError(t, c.Get(t.Context(), pod))
	volume := filepath.Join(c.PodsDirectory(), string(pod.UID), "volumes", "kubernetes.io~empty-dir", "libvirt-runtime")
	require.NoError(t, os.MkdirAll(volume, 0o700))
	require.NoError(t, os.Link(filepath.Join(c.GuestAgents(), m.AgentSocket()), filepath.Join(volume, "virtqemud-sock")))
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(c.PodsDirectory())) })
	return agentOfGuest{
		notApplied: func(ctx context.Context) ([]v1alpha1.NotAppliedSetting, error) {
			plan := &v1alpha1.MPTCPNodePlan{ObjectMeta: metav1.ObjectMeta{Name: m.Node.NodeName()}}
			if err := c.Get(ctx, plan); err != nil {
				return nil, err
			}
			for i := range plan.Spec.Endpoints {
				if plan.Spec.Endpoints[i].UID == pod.UID {
					return plan.Spec.Endpoints[i].NotApplied(), nil
				}
			}
			return nil, errors.New("the plan lacks the pod")
		},
		limitsSet: func(t *testing.T) {
			t.Helper()
			c.expectInPlan(t, m.PodName, "its limits are set", func(of *v1alpha1.EndpointStatus) bool {
				return of.GuestAgent != nil && of.GuestAgent.State == v1alpha1.GuestAgentLimitsSet
			})
		},
		joins: func(t *testing.T, is v1alpha1.GuestSubflows) {
			t.Helper()
			c.expectGuestInPlan(t, m.PodName, is)
		},
	}
}
