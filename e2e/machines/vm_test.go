// SPDX-License-Identifier: Apache-2.0

package machines_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/e2e/shop"
	"braid.dev/braid/e2e/testlab"
	"braid.dev/braid/hack/lab"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

// guestAddresses are further ones of the VM: from each its kernel opens a subflow.
var guestAddresses = []string{"10.244.1.200", "10.244.1.201"}

// A VM that is no pod is selected by its labels, steered and guarded. Here it is a network
// namespace behind a veth in the place of a tap; what it speaks, and when it opens subflows,
// is set in it as in a guest.
func TestAVMIsSelectedSteeredAndGuardedAsPodsAre(t *testing.T) {
	c := use(t)
	vm := c.addGuest(t)
	before := mptcpSettings(t, vm)
	policy := testlab.NewPolicy("tenant", "client", "server")
	c.CreatePaths(t)
	c.Create(t, policy)
	c.WaitProgrammed(t, policy, 2)
	guest := endpointOf(vm, "vm", slices.Concat([]string{vm.IPv4, vm.IPv6}, guestAddresses)...)
	c.Create(t, guest)
	c.WaitProgrammed(t, policy, 3)
	c.expectEndpoint(t, guest, v1alpha1.ReasonAccepted, v1alpha1.ReasonProgrammed)
	require.Equal(t, vm.HostInterface, guest.Status.HostInterface)
	require.Equal(t, "spread", guest.Status.Policy.Name)

	t.Run("its subflows are on all NICs", c.expectVMSpread)
	require.Equal(t, before, mptcpSettings(t, vm), "the guest's settings are not as the guest made them")

	t.Run("what sockets would need is told, and never as programmed", func(t *testing.T) {
		c.Update(t, policy, func() { policy.Spec.Sockets.Upgrade = true })
		c.expectEndpoint(t, guest, v1alpha1.ReasonAccepted, v1alpha1.ReasonNotForGuests)
		require.Equal(t, "spec.sockets", guest.Status.NotApplied[0].Setting)
		c.Update(t, policy, func() { policy.Spec.Sockets.Upgrade = false })
		c.WaitProgrammed(t, policy, 3)
	})
	t.Run("an address belongs to one", func(t *testing.T) { c.expectOneOwner(t, vm, guest, policy) })
	t.Run("within guardrails", func(t *testing.T) {
		c.guardVM(t)
		r := c.Run(t, testlab.NewTransfer("vm", "tenant-server", 4, traffic.Up, 3*time.Second))
		testlab.ExpectCeilings(t, "the VM", r.Shares(testlab.Warmup, r.Duration))
		c.expectSpoofsDropped(t, vm)
	})
}

// expectVMSpread: each NIC carries its part of one connection of the VM's.
func (c *cluster) expectVMSpread(t *testing.T) {
	r := c.Run(t, testlab.NewTransfer("vm", "tenant-server", 4, traffic.Up, testlab.SpreadTime))
	wire := r.Steady()
	t.Logf("%d subflows, %v", r.Result.Subflows, wire)
	for _, path := range paths {
		if share := wire[path] / wire.Of(paths); share < 0.15 {
			t.Errorf("%s carries %.0f %% of it", path, 100*share)
		}
	}
}

// guardVM keeps the tenant's pods, and its VM, within guardrails.
func (c *cluster) guardVM(t *testing.T) {
	t.Helper()
	c.Apply(t, testlab.TenantGuardrails)
	guardrail := &v1alpha1.MPTCPGuardrail{ObjectMeta: metav1.ObjectMeta{Name: "tenants"}}
	c.WaitFor(t, "the guardrails hold for pods and VM", 30*time.Second, func(ctx context.Context) error {
		if err := c.Get(ctx, guardrail); err != nil {
			return err
		}
		if guardrail.Status.PodsProgrammed != 3 {
			return fmt.Errorf("%+v", guardrail.Status)
		}
		return nil
	})
}

// addGuest adds a machine that is no pod to the first node, until the test ends. It opens a
// subflow from each of its further addresses.
func (c *cluster) addGuest(t *testing.T) *network.Pod {
	t.Helper()
	node := c.Network.Nodes[0]
	vm, err := node.AddPod("vm")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, vm.Remove()) })
	testlab.RunIn(t, vm, "ip", "mptcp", "limits", "set", "subflows", "8", "add_addr_accepted", "0")
	for _, address := range guestAddresses {
		require.NoError(t, node.AddRoute(network.Route{Destination: address + "/32", Interface: vm.HostInterface, Source: node.Address(0, 4)}))
		testlab.RunIn(t, vm, "ip", "address", "add", address+"/32", "dev", "eth0")
		testlab.RunIn(t, vm, "ip", "mptcp", "endpoint", "add", address, "dev", "eth0", "subflow")
	}
	return vm
}

// mptcpSettings are those that a guest made, and that nobody else may change.
func mptcpSettings(t *testing.T, vm *network.Pod) (all []string) {
	t.Helper()
	for _, command := range [][]string{
		{"ip", "mptcp", "endpoint", "show"}, {"ip", "mptcp", "limits", "show"}, {"sysctl", "-a", "-r", "^net.mptcp", "--ignore"},
	} {
		out, err := vm.Run(command[0], command[1:]...)
		require.NoError(t, err)
		all = append(all, out)
	}
	return all
}

func endpointOf(vm *network.Pod, name string, addresses ...string) *v1alpha1.MPTCPEndpoint {
	e := &v1alpha1.MPTCPEndpoint{
		ObjectMeta: metav1.ObjectMeta{Namespace: "tenant", Name: name, Labels: map[string]string{"app": "client"}},
		Spec:       v1alpha1.MPTCPEndpointSpec{NodeName: vm.Node.NodeName(), Interface: v1alpha1.EndpointInterface{Name: vm.HostInterface}},
	}
	for _, address := range addresses {
		e.Spec.Addresses = append(e.Spec.Addresses, v1alpha1.EndpointAddress(address))
	}
	return e
}

// expectEndpoint waits until a VM's status gives these reasons.
func (c *cluster) expectEndpoint(t *testing.T, e *v1alpha1.MPTCPEndpoint, accepted, programmed string) {
	t.Helper()
	c.WaitFor(t, "the status of "+e.Name+" is as it should be", 10*time.Second, func(ctx context.Context) error {
		if err := c.Get(ctx, e); err != nil {
			return err
		}
		for kind, reason := range map[string]string{v1alpha1.ConditionAccepted: accepted, v1alpha1.ConditionProgrammed: programmed} {
			is := meta.FindStatusCondition(e.Status.Conditions, kind)
			if is == nil || is.Reason != reason || (is.Status == metav1.ConditionTrue) != (reason == kind) {
				return fmt.Errorf("%s should be %s: %+v", kind, reason, e.Status.Conditions)
			}
		}
		return nil
	})
}

// expectOneOwner: a pod's address stays the pod's, and of two VMs with one address neither
// has it.
func (c *cluster) expectOneOwner(t *testing.T, vm *network.Pod, guest *v1alpha1.MPTCPEndpoint, policy *v1alpha1.MPTCPPolicy) {
	thief := endpointOf(vm, "thief", c.Network.Pod(stranger.Name).IPv4)
	c.Create(t, thief)
	c.expectEndpoint(t, thief, v1alpha1.ReasonDuplicate, v1alpha1.ReasonDuplicate)
	c.WaitProgrammed(t, policy, 3)
	require.NoError(t, c.Client.Delete(t.Context(), thief))

	twin := endpointOf(vm, "twin", vm.IPv4)
	c.Create(t, twin)
	c.expectEndpoint(t, twin, v1alpha1.ReasonDuplicate, v1alpha1.ReasonDuplicate)
	c.expectEndpoint(t, guest, v1alpha1.ReasonDuplicate, v1alpha1.ReasonProgrammed)
	require.NoError(t, c.Client.Delete(t.Context(), twin))
	c.expectEndpoint(t, guest, v1alpha1.ReasonAccepted, v1alpha1.ReasonProgrammed)
	c.WaitProgrammed(t, policy, 3)
}

// expectSpoofsDropped: what the VM sends with another's address does not leave its node.
func (c *cluster) expectSpoofsDropped(t *testing.T, vm *network.Pod) {
	const count = 200
	to := c.Network.Pod("tenant-server")
	send := func(from string) uint64 {
		before := testlab.Received(t, to)
		one := testlab.Forgery{From: testlab.AddrPort(from, 4000), To: testlab.AddrPort(to.IPv4, lab.TrafficPort), Flags: testlab.SYN, Options: testlab.Capable}
		testlab.Forge(t, vm, slices.Repeat([]testlab.Forgery{one}, count)...)
		time.Sleep(100 * time.Millisecond)
		return testlab.Received(t, to) - before
	}
	send(vm.IPv4) // until the neighbours are known
	if arrived := send(vm.IPv4); arrived < count {
		t.Errorf("of %d packets with its own address %d arrived", count, arrived)
	}
	if arrived := send(c.Network.Pod(stranger.Name).IPv4); arrived > count/10 {
		t.Errorf("of %d packets with another's address %d arrived", count, arrived)
	}
}

// With manager: Host nothing but the limits of its own kernel is set in the VM, which has one
// address and opens no subflow by itself. The pod at the other end is selected by nobody.
func TestTheHostMakesTheFurtherSubflowsOfAVM(t *testing.T) {
	c := use(t)
	vm, err := c.Network.Nodes[0].AddGuest("vm")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, vm.Remove()) })
	policy := testlab.NewPolicy("tenant", "vm")
	policy.Spec.Subflows.Manager = v1alpha1.SubflowManagerHost
	c.CreatePaths(t)
	guest := endpointOf(vm, "vm", vm.IPv4, vm.IPv6)
	guest.Labels["app"] = "vm"
	c.Create(t, policy, guest)
	c.WaitProgrammed(t, policy, 1)
	c.expectEndpoint(t, guest, v1alpha1.ReasonAccepted, v1alpha1.ReasonProgrammed)
	c.expectGuestSubflows(t, guest, v1alpha1.ReasonNothingAnnounced)

	first := c.Run(t, testlab.NewTransfer("vm", "tenant-server", 4, traffic.Up, testlab.SpreadTime))
	require.Equal(t, 1, first.Result.Subflows, "Linux follows no announcement by default")
	c.expectGuestSubflows(t, guest, v1alpha1.ReasonGuestTakesNoAnnouncements)

	testlab.RunIn(t, vm, "ip", "mptcp", "limits", "set", "subflows", "8", "add_addr_accepted", "8")
	for _, version := range []int{4, 6} {
		t.Run(fmt.Sprintf("IPv%d", version), func(t *testing.T) {
			r := c.Run(t, testlab.NewTransfer("vm", "tenant-server", version, traffic.Up, testlab.SpreadTime))
			require.Equal(t, len(paths), r.Result.Subflows)
			wire := r.Steady()
			t.Logf("%v", wire)
			for _, path := range paths {
				if share := wire[path] / wire.Of(paths); share < 0.15 {
					t.Errorf("%s carries %.0f %% of it", path, 100*share)
				}
			}
		})
	}
	c.expectGuestSubflows(t, guest, v1alpha1.ReasonGuestJoins)
	t.Run("its acknowledgements keep senders within the window", func(t *testing.T) { c.expectDuplicatesChanged(t, vm) })
	t.Run("of paths over one link the other one takes over", func(t *testing.T) { c.expectOtherToTakeOver(t, policy) })

	t.Run("not for a pod, which says so", func(t *testing.T) {
		c.Update(t, policy, func() { policy.Spec.PodSelector.MatchExpressions[0].Values = []string{"vm", "client"} })
		c.WaitFor(t, "the policy says that it does not hold for the pod", 10*time.Second, func(ctx context.Context) error {
			if err := c.Get(ctx, policy); err != nil {
				return err
			}
			is := meta.FindStatusCondition(policy.Status.Conditions, v1alpha1.ConditionProgrammed)
			if is == nil || is.Reason != v1alpha1.ReasonEndpointFailed || !strings.Contains(is.Message, "choose manager: Kernel or Agent") {
				return fmt.Errorf("%+v", policy.Status)
			}
			return nil
		})
	})
}

// expectDuplicatesChanged has segments be lost that the VM receives.
func (c *cluster) expectDuplicatesChanged(t *testing.T, vm *network.Pod) {
	t.Helper()
	goesOn, err := vm.Lose("sport", "5001", "numgen", "random", "mod", "25", "0")
	require.NoError(t, err)
	defer func() { require.NoError(t, goesOn()) }()
	before := c.duplicatesChanged(t, vm.Node)
	r := c.Run(t, testlab.NewTransfer("vm", "tenant-server", 4, traffic.Down, testlab.SpreadTime))
	require.Equal(t, len(paths), r.Result.Subflows)
	require.Greater(t, c.duplicatesChanged(t, vm.Node), before)
}

// duplicatesChanged counts the acknowledgements of a node's VM that were changed.
func (c *cluster) duplicatesChanged(t *testing.T, node *network.Node) float64 {
	t.Helper()
	return c.AgentMetric(t, node, `braid_duplicate_acknowledgements_changed_total{direction="sent"}`)
}

// expectOtherToTakeOver has the NIC of a bottleneck group's first path fail at the VM's node.
func (c *cluster) expectOtherToTakeOver(t *testing.T, policy *v1alpha1.MPTCPPolicy) {
	on, group := &shop.Cluster{Cluster: c.Cluster}, shop.Group{First: "blue", Second: "green", From: "vm", To: "tenant-server"}
	on.ShareBottleneck(t, policy, group, "vm")
	for i, f := range []shop.Failure{shop.LosesCarrier("blue", stranger.Name), shop.LosesAll("blue", stranger.Name)} {
		direction := []traffic.Direction{traffic.Up, traffic.Down}[i]
		t.Run(f.String(), func(t *testing.T) { on.ExpectOtherToTakeOver(t, group, f, direction) })
	}
}

func (c *cluster) expectGuestSubflows(t *testing.T, e *v1alpha1.MPTCPEndpoint, reason string) {
	t.Helper()
	c.expectOfGuest(t, e, v1alpha1.ConditionGuestSubflows, reason)
}

func (c *cluster) expectOfGuest(t *testing.T, e *v1alpha1.MPTCPEndpoint, condition, reason string) {
	t.Helper()
	c.WaitFor(t, "the guest is told of: "+reason, 30*time.Second, func(ctx context.Context) error {
		if err := c.Get(ctx, e); err != nil {
			return err
		}
		if is := meta.FindStatusCondition(e.Status.Conditions, condition); is == nil || is.Reason != reason {
			return fmt.Errorf("%+v", e.Status.Conditions)
		}
		return nil
	})
}

// A VM moves to another node while it sends, as by live migration: its host's interface, and the
// routes to its addresses, are there then. Its connections go on, also when the node that it left
// is shut down; those that begin later are spread from there.
func TestAVMsConnectionsGoOnWhenItMovesToAnotherNode(t *testing.T) {
	c := use(t)
	vm := c.addGuest(t)
	policy := testlab.NewPolicy("tenant", "client", "server")
	c.CreatePaths(t)
	guest := endpointOf(vm, "vm", slices.Concat([]string{vm.IPv4, vm.IPv6}, guestAddresses)...)
	c.Create(t, policy, guest)
	c.WaitProgrammed(t, policy, 3)
	const lasts = 12 * time.Second
	listener, err := vm.Listen(t.Context(), "tcp", fmt.Sprintf(":%d", lab.TrafficPort))
	require.NoError(t, err)
	go func() { _ = traffic.Serve(t.Context(), listener) }() // what fails shows at the clients
	transfers := []*testlab.Running{
		c.Begin(t, testlab.NewTransfer("vm", "tenant-server", 4, traffic.Up, lasts)),
		c.Begin(t, testlab.NewTransfer("tenant-server", "vm", 4, traffic.Up, lasts)),
		c.Begin(t, testlab.NewTransfer("tenant-server", "vm", 6, traffic.Down, lasts)),
	}
	for _, r := range transfers {
		c.WaitFor(t, r.String()+" has its subflows", 10*time.Second, func(context.Context) error {
			if count := len(r.Subflows(t)); count != len(paths) {
				return fmt.Errorf("it has %d", count)
			}
			return nil
		})
	}
	source, target := vm.Node, c.Network.Nodes[2]
	var hosts []string
	for _, address := range guestAddresses {
		hosts = append(hosts, address+"/32")
	}
	require.NoError(t, vm.MoveTo(target, hosts...))
	c.Update(t, guest, func() {
		guest.Spec.NodeName, guest.Spec.Interface.Name = target.NodeName(), vm.HostInterface
	})
	moved := time.Since(transfers[0].Began)
	leaving := c.Record(target)
	time.Sleep(2 * time.Second)
	for _, path := range paths {
		require.NoError(t, c.Network.SetNIC(source, path, false))
		t.Cleanup(func() { require.NoError(t, c.Network.SetNIC(source, path, true)) })
	}
	for _, r := range transfers {
		r.Finish(t)
		stop := r.LongestStop(moved, lasts)
		t.Logf("%s of %s: it stood still for %v at most", r, r.From, stop)
		if stop > testlab.LongestStop {
			t.Errorf("%s: it stood still for %v", r, stop)
		}
	}
	leaving.Stop()
	require.NoError(t, leaving.Err)
	end := transfers[0].Began.Add(lasts)
	for sends, shares := range map[string]testlab.Rates{
		"is sent to the VM at": transfers[1].Shares(lasts-time.Second, lasts),
		"the VM sends from":    leaving.Rates(end.Add(-time.Second), end),
	} {
		t.Logf("what %s its new node: %v", sends, shares)
		if used := shares.Used(); !slices.Equal(used, paths) {
			t.Errorf("what %s its new node uses %v", sends, used)
		}
	}
	c.WaitProgrammed(t, policy, 3)
	c.expectVMSpread(t)
}
