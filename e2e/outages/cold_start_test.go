// SPDX-License-Identifier: Apache-2.0

package outages_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"braid.dev/braid/e2e/shop"
	"braid.dev/braid/e2e/testlab"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

// An agent that starts while the API server is away does what the last one did: a NIC
// that fails in that time is avoided, and so is that of the cluster network's own
// routes, for which a detour is needed.
func TestAnAgentStartsWithoutTheAPIServer(t *testing.T) {
	c := use(t)
	policy := shop.Policy(v1alpha1.SubflowManagerKernel)
	c.Spread(t, policy, 2)
	node := c.Network.Pod("client").Node
	c.WaitSaved(t, node)
	c.StopServer(t)

	t.Run("the agent starts again", func(t *testing.T) {
		r := c.Begin(t, testlab.NewTransfer("client", "server", 4, traffic.Up, killedEnd))
		r.SleepUntil(killedAt)
		c.Kill(t, node)
		c.RestartCold(t, node)
		c.expectBlueAvoided(t)
		r.Finish(t)
		if stop := r.LongestStop(testlab.Warmup, killedEnd); stop > testlab.LongestStop {
			t.Errorf("nothing arrived for %v", stop)
		}
	})
	t.Run("the node starts again", func(t *testing.T) {
		c.Kill(t, node)
		c.cleanUp(t, node, "") // what is on the disk stays
		c.RestartCold(t, node)
		c.awaitLook(t, node)
		c.WaitFor(t, "a new connection is spread", 10*time.Second, func(context.Context) error { return c.spreads(t, paths...) })
		c.expectBlueAvoided(t)
	})

	c.StartServer(t)
	c.WaitFor(t, "the node's status tells of it", time.Minute, func(ctx context.Context) error {
		c.KeepController(t)
		return c.coldStartTold(ctx, node)
	})
	c.expectRecovery(t, policy)
	c.Kill(t, node)
	c.Start(t, node)
	c.WaitFor(t, "the next agent's start is told of no more", 10*time.Second, func(ctx context.Context) error {
		if told, err := c.coldStart(ctx, node); err != nil || told != nil {
			return fmt.Errorf("the condition is %+v (%w)", told, err)
		}
		return nil
	})
}

// roundsOfNode tells of rounds that ended.
var roundsOfNode = regexp.MustCompile(`(?m)^braid_agent_round_duration_seconds_count\{loop="node"\} [1-9]`)

// awaitLook waits until a node's agent has looked at the node once: where no agent has before, only
// then somebody knows the routes that a NIC which fails takes along.
func (c *cluster) awaitLook(t *testing.T, node *network.Node) {
	t.Helper()
	c.WaitFor(t, "the agent has looked at the node", 10*time.Second, func(ctx context.Context) error {
		told, err := c.AgentMetrics(ctx, node)
		if err == nil && !roundsOfNode.MatchString(told) {
			err = errors.New("its metrics do not say so")
		}
		return err
	})
}

// expectBlueAvoided sets the NIC of the cluster network's routes down and up again.
func (c *cluster) expectBlueAvoided(t *testing.T) {
	t.Helper()
	blue := shop.IsSetDown("blue", "client")
	c.Set(t, blue, false)
	took := c.WaitFor(t, "a new connection avoids the NIC that failed", 10*time.Second, func(context.Context) error {
		return c.spreads(t, "green", "red")
	})
	t.Logf("with blue down a new connection of %v was spread within %v", shop.ShortTime, took)
	c.Set(t, blue, true)
	c.WaitFor(t, "it is used again", 10*time.Second, func(context.Context) error { return c.spreads(t, paths...) })
}

// spreads: a new connection uses exactly these paths.
func (c *cluster) spreads(t *testing.T, wanted ...string) error {
	r := c.Begin(t, testlab.NewTransfer("client", "server", 4, traffic.Up, shop.ShortTime))
	<-r.Done
	if r.Err != nil {
		return r.Err
	}
	if used := r.Steady().Used(); fmt.Sprint(used) != fmt.Sprint(wanted) {
		return fmt.Errorf("a new connection uses %v: %v", used, r.Steady())
	}
	return nil
}

func (c *cluster) coldStart(ctx context.Context, node *network.Node) (*metav1.Condition, error) {
	var published v1alpha1.MPTCPNode
	if err := c.Client.Get(ctx, client.ObjectKey{Name: node.NodeName()}, &published); err != nil {
		return nil, err
	}
	return meta.FindStatusCondition(published.Status.Conditions, v1alpha1.ConditionStartedFromSavedPlan), nil
}

func (c *cluster) coldStartTold(ctx context.Context, node *network.Node) error {
	told, err := c.coldStart(ctx, node)
	if err != nil {
		return err
	}
	if told == nil || told.Status != metav1.ConditionTrue || !strings.Contains(told.Message, "from the plan saved at") {
		return fmt.Errorf("the condition is %+v", told)
	}
	return nil
}
