// SPDX-License-Identifier: Apache-2.0

package newpods_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/e2e/testlab"
	"braid.dev/braid/hack/lab"
	"braid.dev/braid/internal/lab/network"
)

// newPodMbit is what a pod of the tenant may send; pods try ten times as much.
const newPodMbit = 2

const newPodGuardrails = testlab.GuardrailsOfTenant + `
  maxPodRate: 2M
  newPods: Guard
`

// A pod sends as fast as it can, with its own and with others' addresses, from the moment
// in which it has an interface, whether or not anybody can tell its node of it.
func TestANewPodIsGuardedFromItsFirstPacket(t *testing.T) {
	c := use(t)
	c.CreatePaths(t)
	c.Apply(t, newPodGuardrails)
	c.WaitFor(t, "the guardrails are in force", 10*time.Second, c.TenantGuarded)
	node := c.Network.Nodes[0]
	c.WaitFor(t, "the node guards new pods", 10*time.Second, func(ctx context.Context) error { return c.guardsNewPods(ctx, node, 2_000_000) })

	t.Run("while the API server tells of it", func(t *testing.T) {
		pod := c.addToNode(t, "new-1")
		registered := make(chan error, 1)
		go func() {
			registered <- c.RegisterPod(context.Background(), lab.Pod{Namespace: "tenant", Name: "new-1", Node: 1, Labels: map[string]string{"app": "client"}})
		}()
		c.expectFirstSecond(t, pod)
		if err := <-registered; err != nil {
			t.Fatal(err)
		}
		c.WaitFor(t, "it is guarded as the plan says", 10*time.Second, func(ctx context.Context) error { return c.programmed(ctx, node, "new-1") })
		c.expectFirstSecond(t, pod)
		c.expectOnlyOwn(t, c.addToNode(t, "new-2"))
	})
	// It stays, because nobody shall get the address of a pod that the plan exempts.
	exempt, err := c.AddPod(t.Context(), lab.Pod{Namespace: "shop", Name: "exempt", Node: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.removeFrom(t, "shop", exempt) })
	t.Run("pods that nobody guards are as fast as ever", func(t *testing.T) {
		c.expectFast(t, c.Network.Pod("client"))
		c.expectFast(t, exempt)
	})
	c.WaitSaved(t, node)
	c.StopServer(t)
	t.Run("without the API server", func(t *testing.T) {
		c.expectFirstSecond(t, c.addToNode(t, "new-3"))
		c.expectOnlyOwn(t, c.addToNode(t, "new-4"))
	})
	t.Run("by an agent that started without it", func(t *testing.T) {
		before := c.addToNode(t, "new-5")
		c.waitChecked(t, before)
		c.Kill(t, node)
		c.expectFirstSecond(t, before)
		c.RestartCold(t, node)
		c.expectFirstSecond(t, before)
		c.expectFirstSecond(t, c.addToNode(t, "new-6"))
		c.expectOnlyOwn(t, c.addToNode(t, "new-7"))
		c.expectFast(t, c.Network.Pod("client"))
		c.expectFast(t, exempt)
	})
	c.StartServer(t)
	c.Apply(t, strings.Replace(newPodGuardrails, "2M", "3M", 1))
	c.WaitFor(t, "all agents are told of a change", time.Minute, func(ctx context.Context) error {
		c.KeepController(t)
		for _, node := range c.Network.Nodes {
			if err := c.guardsNewPods(ctx, node, 3_000_000); err != nil {
				return err
			}
		}
		return nil
	})
}

// addToNode adds a pod that the API server does not know.
func (c *cluster) addToNode(t *testing.T, name string) *network.Pod {
	t.Helper()
	pod, err := c.Network.Nodes[0].AddPod(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.removeFrom(t, "tenant", pod) })
	return pod
}

func (c *cluster) removeFrom(t *testing.T, namespace string, pod *network.Pod) {
	t.Helper()
	if c.Reachable() != nil {
		if err := pod.Remove(); err != nil {
			t.Error(err)
		}
		return
	}
	if err := c.RemovePod(context.Background(), namespace, pod); err != nil {
		t.Error(err)
	}
}

// expectFirstSecond: what arrives of a second of a pod's flood is what it may send, with
// what passes at once, and before the agent has seen the interface.
func (c *cluster) expectFirstSecond(t *testing.T, pod *network.Pod) {
	t.Helper()
	const most = 1.4 * newPodMbit * 1e6 / 8 // or a few hundredths of a second of the flood more
	arrived := c.flood(t, pod, time.Second)
	t.Logf("%s: %.0f kB arrive of a second's flood", pod.PodName, arrived/1e3)
	if arrived > most || arrived < most/4 {
		t.Errorf("%s: %.0f kB arrive of a second's flood, and %.0f may", pod.PodName, arrived/1e3, most/1e3)
	}
}

// flood returns how many bytes arrive at the tenant's server.
func (c *cluster) flood(t *testing.T, pod *network.Pod, lasts time.Duration) float64 {
	t.Helper()
	to := c.Network.Pod("tenant-server")
	count := func() uint64 {
		counters, err := to.Counters("eth0")
		if err != nil {
			t.Fatal(err)
		}
		return counters.RxBytes
	}
	before := count()
	testlab.Flood{To: testlab.UDPTo(to.IPv4), Mbit: 10 * newPodMbit}.Run(t, pod, lasts)
	time.Sleep(100 * time.Millisecond)
	return float64(count() - before)
}

// expectOnlyOwn: nothing arrives of what a pod sends with others' addresses.
func (c *cluster) expectOnlyOwn(t *testing.T, pod *network.Pod) {
	t.Helper()
	const count = 100
	c.waitChecked(t, pod)
	to, victim := c.Network.Pod("tenant-server"), c.Network.Pod("client")
	send := func(from, address string) uint64 {
		one := testlab.Forgery{From: testlab.AddrPort(from, 4000), To: testlab.AddrPort(address, lab.TrafficPort), Flags: testlab.SYN}
		before := testlab.Received(t, to)
		testlab.Forge(t, pod, slices.Repeat([]testlab.Forgery{one}, count)...)
		time.Sleep(100 * time.Millisecond)
		return testlab.Received(t, to) - before
	}
	for _, forged := range [][2]string{
		{victim.IPv4, to.IPv4}, {victim.IPv6, to.IPv6}, {pod.Node.Address(1, 4), to.IPv4}, {"203.0.113.7", to.IPv4}, {"2001:db8:9::7", to.IPv6},
	} {
		if arrived := send(forged[0], forged[1]); arrived > count/10 { // of others, at most
			t.Errorf("%s: %d of %d packets arrive from %s", pod.PodName, arrived, count, forged[0])
		}
	}
	for _, own := range [][2]string{{pod.IPv4, to.IPv4}, {pod.IPv6, to.IPv6}} {
		send(own[0], own[1]) // the first ones wait until the neighbours are known
		if arrived := send(own[0], own[1]); arrived < count {
			t.Errorf("%s: %d of %d packets arrive from its own address %s", pod.PodName, arrived, count, own[0])
		}
	}
}

// waitChecked waits until a program looks at what a new pod sends. That takes a few
// milliseconds, or more on a busy machine: container runtimes begin a pod's first process
// later.
func (c *cluster) waitChecked(t *testing.T, pod *network.Pod) {
	t.Helper()
	index, err := pod.Node.Index(pod.HostInterface)
	if err != nil {
		t.Fatal(err)
	}
	took := c.WaitFor(t, pod.PodName+" is checked", 2*time.Second, func(context.Context) error {
		return pod.Node.Do(func() error {
			programs, err := link.QueryPrograms(link.QueryOptions{Target: index, Attach: ebpf.AttachTCXIngress})
			if err != nil || len(programs.Programs) == 0 {
				return fmt.Errorf("no program is on its interface: %w", err)
			}
			return nil
		})
	})
	t.Logf("%s is checked %v after it was made", pod.PodName, took)
}

// expectFast waits until a pod sends many times what new pods may.
func (c *cluster) expectFast(t *testing.T, pod *network.Pod) {
	t.Helper()
	const lasts = 300 * time.Millisecond
	took := c.WaitFor(t, pod.PodName+" sends as fast as it likes", 10*time.Second, func(context.Context) error {
		if mbit := c.flood(t, pod, lasts) * 8 / 1e6 / lasts.Seconds(); mbit < 5*newPodMbit {
			return fmt.Errorf("%.1f Mbit/s arrive", mbit)
		}
		return nil
	})
	t.Logf("%s sends as fast as it likes after %v", pod.PodName, took-lasts)
}

// guardsNewPods: a node's agent has the plan that says so.
func (c *cluster) guardsNewPods(ctx context.Context, node *network.Node, rate int64) error {
	plan := &v1alpha1.MPTCPNodePlan{ObjectMeta: metav1.ObjectMeta{Name: node.NodeName()}}
	if err := c.Get(ctx, plan); err != nil {
		return err
	}
	if plan.Spec.NewPods == nil || plan.Spec.NewPods.MaxRate != rate || plan.Status.ObservedGeneration != plan.Generation {
		return fmt.Errorf("its plan of generation %d says %+v of new pods, and its agent has %d", plan.Generation, plan.Spec.NewPods, plan.Status.ObservedGeneration)
	}
	return nil
}

func (c *cluster) programmed(ctx context.Context, node *network.Node, pod string) error {
	plan := &v1alpha1.MPTCPNodePlan{ObjectMeta: metav1.ObjectMeta{Name: node.NodeName()}}
	if err := c.Get(ctx, plan); err != nil {
		return err
	}
	for _, endpoint := range plan.Status.Endpoints {
		if endpoint.Name == pod && endpoint.State == v1alpha1.EndpointProgrammed {
			return nil
		}
	}
	return errors.New("it is not programmed")
}
