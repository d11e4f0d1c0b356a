// SPDX-License-Identifier: Apache-2.0

package outages_test

import (
	"testing"
	"time"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/bpf/uplink"
	"braid.dev/braid/e2e/shop"
	"braid.dev/braid/e2e/testlab"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

func TestAnAgentIsKilledAndStartedAgain(t *testing.T) {
	c := use(t)
	policy := shop.Policy(v1alpha1.SubflowManagerKernel)
	c.Spread(t, policy, 2)
	client, server := c.Network.Pod("client").Node, c.Network.Pod("server").Node

	undisturbed := c.Run(t, testlab.NewTransfer("client", "server", 4, traffic.Up, killedEnd))
	noise := undisturbed.LongestStop(testlab.Warmup, killedEnd)
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
		c.ExpectTakenOver(t, policy)
	}
}

// What happens when, in a transfer during which agents are killed and started.
const (
	killedAt  = 1500 * time.Millisecond
	newAt     = 2 * time.Second
	startedAt = 5 * time.Second
	killedEnd = 7500 * time.Millisecond
)

// expectUntouched kills and starts the nodes' agents in the middle of a transfer.
func (c *cluster) expectUntouched(t *testing.T, noise time.Duration, nodes ...*network.Node) {
	r := c.Begin(t, testlab.NewTransfer("client", "server", 4, traffic.Up, killedEnd))
	r.SleepUntil(killedAt)
	before := c.Flows(t, nodes[0])
	c.Kill(t, nodes...)

	r.SleepUntil(newAt)
	fresh := c.Run(t, testlab.NewTransfer("client", "server", 4, traffic.Down, startedAt-newAt-500*time.Millisecond))
	t.Logf("a connection from the time without agent: %d subflows; %v", fresh.Result.Subflows, fresh.Steady())
	if fresh.Result.Subflows != len(paths) || len(fresh.Steady().Used()) != len(paths) {
		t.Errorf("a connection from the time without agent is not spread")
	}

	r.SleepUntil(startedAt)
	c.Start(t, nodes...)
	after := c.Flows(t, nodes[0])
	r.Finish(t)

	stop := r.LongestStop(killedAt, killedEnd)
	t.Logf("nothing arrived for %v at most; before the kill %v, without agent %v, at the end %v", stop,
		r.Shares(testlab.Warmup, killedAt), r.Shares(killedAt, startedAt), r.Shares(startedAt, killedEnd))
	if stop > noise+shop.Noticeable {
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

// An agent that is started again finds its chains, and their counters; a removal
// without one leaves nothing.
func TestChainsOutliveTheirAgent(t *testing.T) {
	c := use(t)
	policy := shop.Policy(v1alpha1.SubflowManagerKernel)
	policy.Spec.Rules = []v1alpha1.Rule{shop.Counting("sent", shop.Directed(v1alpha1.DirectionFromEndpoint)), shop.Limiting("slow", "30M")}
	c.Spread(t, policy, 2)
	c.Run(t, testlab.NewTransfer("client", "server", 4, traffic.Up, shop.ShortTime))
	node := c.Network.Pod("client").Node
	before := c.Hits(t, "client")
	c.Kill(t, node)
	if without := c.Hits(t, "client"); without["sent"] < before["sent"] {
		t.Errorf("without the agent the hits are %v instead of %v", without, before)
	}
	c.Run(t, testlab.NewTransfer("client", "server", 4, traffic.Up, shop.ShortTime))
	between := c.Hits(t, "client")
	c.Start(t, node)
	c.ExpectTakenOver(t, policy)
	if after := c.Hits(t, "client"); between["sent"] <= before["sent"] || after["sent"] < between["sent"] {
		t.Errorf("the hits were %v, without the agent %v, and are %v", before, between, after)
	}
	c.Kill(t, node)
	c.remove(t, node)
	c.expectUntouchedNode(t, node)
	c.Start(t, node)
	c.ExpectTakenOver(t, policy)
}
