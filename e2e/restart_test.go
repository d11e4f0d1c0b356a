// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"context"
	"fmt"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/bpf/uplink"
	"braid.dev/braid/hack/lab"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

func TestAnAgentIsKilledAndStartedAgain(t *testing.T) {
	c := use(t)
	policy := shopPolicy(v1alpha1.SubflowManagerKernel)
	c.spread(t, policy, 2)
	client, server := c.Network.Pod("client").Node, c.Network.Pod("server").Node

	undisturbed := c.run(t, transfer{"client", "server", 4, traffic.Up, killedEnd})
	noise := undisturbed.longestStop(warmup, killedEnd)
	t.Logf("undisturbed, nothing arrived for %v at most", noise)

	cases := []struct {
		name  string
		nodes []*network.Node
	}{
		{"the initiator's", []*network.Node{client}},
		{"both", []*network.Node{client, server}},
	}
	for _, test := range cases {
		t.Run(test.name, func(t *testing.T) { c.expectUntouched(t, noise, test.nodes...) })
		c.expectTakenOver(t, policy)
	}
}

// What happens when, in a transfer during which agents are killed and started.
const (
	killedAt  = 1500 * time.Millisecond
	newAt     = 2 * time.Second
	startedAt = 5 * time.Second
	killedEnd = 7500 * time.Millisecond
)

// noticeable is how much longer than without a disturbance a connection may stop.
const noticeable = 500 * time.Millisecond

// expectUntouched kills and starts the nodes' agents in the middle of a transfer.
func (c *cluster) expectUntouched(t *testing.T, noise time.Duration, nodes ...*network.Node) {
	r := c.begin(t, transfer{"client", "server", 4, traffic.Up, killedEnd})
	r.sleepUntil(killedAt)
	before := c.flows(t, nodes[0])
	c.kill(t, nodes...)

	r.sleepUntil(newAt)
	fresh := c.run(t, transfer{"client", "server", 4, traffic.Down, startedAt - newAt - 500*time.Millisecond})
	t.Logf("a connection from the time without agent: %d subflows; %v", fresh.result.Subflows, fresh.steady())
	if fresh.result.Subflows != len(paths) || len(fresh.steady().used()) != len(paths) {
		t.Errorf("a connection from the time without agent is not spread")
	}

	r.sleepUntil(startedAt)
	c.start(t, nodes...)
	after := c.flows(t, nodes[0])
	r.finish(t)

	stop := r.longestStop(killedAt, killedEnd)
	t.Logf("nothing arrived for %v at most; before the kill %v, without agent %v, at the end %v", stop,
		r.shares(warmup, killedAt), r.shares(killedAt, startedAt), r.shares(startedAt, killedEnd))
	if stop > noise+noticeable {
		t.Errorf("nothing arrived for %v, and for %v when nothing was killed", stop, noise)
	}
	expectSamePaths(t, before, after)
}

// expectSamePaths compares the flows that a node knew with those that it knows.
func expectSamePaths(t *testing.T, before, after map[uplink.ToUplinkFlowKey]uint8) {
	t.Helper()
	if len(before) < len(paths) {
		t.Errorf("the node knew only %d flows", len(before))
	}
	for key, path := range before {
		if now, known := after[key]; !known || now != path {
			t.Errorf("a subflow was on path %d, and is on %d (known: %v)", path, now, known)
		}
	}
}

// kill kills the agents of nodes. When the test ends they run again.
func (c *cluster) kill(t *testing.T, nodes ...*network.Node) {
	t.Helper()
	for _, node := range nodes {
		agent := c.Agents[node.NodeName()]
		if err := agent.Stop(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if c.Agents[node.NodeName()] == agent {
				c.start(t, node)
			}
		})
	}
}

// start starts the agents of nodes, and waits until they have reported.
func (c *cluster) start(t *testing.T, nodes ...*network.Node) {
	t.Helper()
	for _, node := range nodes {
		started := time.Now()
		if err := c.StartAgent(context.Background(), node); err != nil {
			t.Fatal(err)
		}
		c.waitFor(t, "the agent of "+node.NodeName()+" reports", 20*time.Second, func(ctx context.Context) error {
			return c.renewed(ctx, node.NodeName(), started)
		})
	}
}

// renewed: the agent of a node has renewed its Lease since a time.
func (c *cluster) renewed(ctx context.Context, node string, since time.Time) error {
	var lease coordinationv1.Lease
	key := client.ObjectKey{Namespace: lab.SystemNamespace, Name: v1alpha1.AgentLeasePrefix + node}
	if err := c.Client.Get(ctx, key, &lease); err != nil {
		return fmt.Errorf("reading the Lease: %w", err)
	}
	if lease.Spec.RenewTime.Time.Before(since) {
		return fmt.Errorf("the agent of %s has not reported since %v", node, lease.Spec.RenewTime)
	}
	return nil
}

// expectTakenOver changes the policy: only agents that work carry that out.
func (c *cluster) expectTakenOver(t *testing.T, policy *v1alpha1.MPTCPPolicy) {
	t.Helper()
	for _, weight := range []int32{2, 1} {
		c.update(t, policy, func() {
			policy.Spec.Paths.Weights = []v1alpha1.PathWeight{{Path: "blue", Weight: weight}}
		})
		c.waitProgrammed(t, policy, 2)
	}
	c.waitFor(t, "every object says that all is well", 10*time.Second, c.allReady)
}

// flows are the subflows that a node steers, and the slots of their paths.
func (c *cluster) flows(t *testing.T, node *network.Node) map[uplink.ToUplinkFlowKey]uint8 {
	t.Helper()
	pins, err := filepath.Glob(filepath.Join(c.PinPath(node.NodeName()), "datapath", "*", "flows"))
	if err != nil || len(pins) != 1 {
		t.Fatalf("the pinned maps of flows are %v (%v)", pins, err)
	}
	pinned, err := ebpf.LoadPinnedMap(pins[0], nil)
	if err != nil {
		t.Fatalf("reading the flows of %s: %v", node.NodeName(), err)
	}
	defer pinned.Close()
	flows := map[uplink.ToUplinkFlowKey]uint8{}
	var key uplink.ToUplinkFlowKey
	var flow uplink.ToUplinkFlow
	entries := pinned.Iterate()
	for entries.Next(&key, &flow) {
		if flow.Ended == 0 {
			flows[key] = flow.Path
		}
	}
	if err := entries.Err(); err != nil {
		t.Fatalf("reading the flows of %s: %v", node.NodeName(), err)
	}
	return flows
}

// silent is an agent that was killed, and a policy for a pod of its node.
type silent struct {
	node   *network.Node
	policy *v1alpha1.MPTCPPolicy
	since  time.Time
}

// silence kills the agent of a node where nothing else happens, once it has
// programmed a policy there.
func (c *cluster) silence(t *testing.T) silent {
	t.Helper()
	s := silent{node: c.Network.Pod("third").Node, policy: newPolicy("quiet", "third")}
	c.create(t, s.policy)
	c.waitProgrammed(t, s.policy, 1)
	c.kill(t, s.node)
	s.since = time.Now()
	return s
}

// expectSilence waits until the status says that the agent is silent, and that
// all is well after it was started again.
func (c *cluster) expectSilence(t *testing.T, s silent) {
	c.waitFor(t, "the silence shows", time.Minute-time.Since(s.since), func(ctx context.Context) error {
		if err := c.get(ctx, s.policy); err != nil {
			return err
		}
		condition := meta.FindStatusCondition(s.policy.Status.Conditions, v1alpha1.ConditionProgrammed)
		if condition == nil || condition.Reason != v1alpha1.ReasonAgentNotReporting {
			return fmt.Errorf("the policy says %+v", condition)
		}
		return nil
	})
	t.Logf("the policy says %v after the kill: %+v", time.Since(s.since).Round(time.Second), s.policy.Status.FailingNodes)
	if failing := s.policy.Status.FailingNodes; len(failing) != 1 || failing[0].Node != s.node.NodeName() {
		t.Errorf("the policy lists %+v as failing", failing)
	}
	c.start(t, s.node)
	c.waitProgrammed(t, s.policy, 1)
}
