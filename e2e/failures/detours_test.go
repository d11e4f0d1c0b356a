// SPDX-License-Identifier: Apache-2.0

package failures_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	agentpaths "braid.dev/braid/agent/paths"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/e2e/shop"
	"braid.dev/braid/internal/lab/network"
)

// The cluster network's routes need a detour, and the agent that knows why is replaced: by the
// kernel's routes alone the next one could not tell.
func TestDetoursOutliveTheirAgent(t *testing.T) {
	c := use(t)
	c.Spread(t, shop.Policy(v1alpha1.SubflowManagerAgent), 2)
	c.awaitProbes(t)
	c.ForgetNeighboursSoon(t, "blue")
	t.Run("the path is lost", c.expectDetoursOfLostPathsKept)
	t.Run("the NIC is set down while no agent runs", c.expectDetoursOfLostRoutes)
}

// watched is longer than an agent needs to find out by itself that a path is lost.
const watched = 5 * time.Second

// fewestLooks is what a busy machine takes in that time.
const fewestLooks = 10

func (c *cluster) expectDetoursOfLostPathsKept(t *testing.T) {
	blocked := shop.LosesAll("blue", "client")
	c.Set(t, blocked, false)
	c.WaitFor(t, "plain TCP gets through", 20*time.Second, c.connectsPlainly)
	node := c.Network.Pod("client").Node
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	looked := keepLooking(ctx, node)
	c.Kill(t, node)
	c.Start(t, node)
	time.Sleep(watched)
	cancel()
	looks := <-looked
	t.Logf("the detours were looked at %d times while the agent was replaced", len(looks))
	if err := errors.Join(looks...); err != nil || len(looks) < fewestLooks {
		t.Errorf("of %d looks: %v", len(looks), err)
	}
	c.Set(t, blocked, true)
	c.WaitFor(t, "the routes are as before", 20*time.Second, c.HasNoDetours)
}

// keepLooking looks at a node's detours until the context ends, and tells of each look what was wrong.
func keepLooking(ctx context.Context, node *network.Node) <-chan []error {
	looked := make(chan []error, 1)
	go func() {
		var looks []error
		for ctx.Err() == nil {
			out, err := node.Run("ip", "-4", "route", "show", "table", "all", "proto", strconv.Itoa(agentpaths.DetourProtocol))
			if err == nil && out == "" {
				err = fmt.Errorf("at look %d there was no detour any more", len(looks))
			}
			looks = append(looks, err)
			time.Sleep(20 * time.Millisecond)
		}
		looked <- looks
	}()
	return looked
}

func (c *cluster) expectDetoursOfLostRoutes(t *testing.T) {
	node, blue := c.Network.Pod("client").Node, shop.IsSetDown("blue", "client")
	c.Kill(t, node)
	c.Set(t, blue, false)
	if err := c.connectsPlainly(t.Context()); err == nil {
		t.Error("plain TCP gets through without any route: what is tested?")
	}
	c.Start(t, node)
	took := c.WaitFor(t, "plain TCP gets through", 10*time.Second, c.connectsPlainly)
	t.Logf("plain TCP got through %v after the agent's start", took)
	c.Set(t, blue, true)
	c.WaitFor(t, "the routes are as before", 20*time.Second, c.HasNoDetours)
}
