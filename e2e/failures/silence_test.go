// SPDX-License-Identifier: Apache-2.0

package failures_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/e2e/shop"
	"braid.dev/braid/e2e/testlab"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

// When green fails and returns while no agent runs. A flow tries it again after 2 seconds.
const (
	unwatchedUpAt = 4 * time.Second
	unwatchedEnd  = 7500 * time.Millisecond
)

func TestANICFailsWhileNoAgentRuns(t *testing.T) {
	c := use(t)
	policy := shop.Policy(v1alpha1.SubflowManagerKernel)
	c.Spread(t, policy, 2)
	// A pod at rest announces nothing while an agent that was killed is away.
	c.Run(t, testlab.NewTransfer("client", "server", 4, traffic.Up, 2*time.Second))
	c.Kill(t, c.Network.Pod("client").Node, c.Network.Pod("server").Node)
	for _, f := range []shop.Failure{
		shop.LosesAll("green", "client"),
		shop.LosesAll("green", "server"),
		shop.LosesCarrier("green", "client"),
		shop.LosesCarrier("green", "server"),
	} {
		t.Run(f.String(), func(t *testing.T) { c.expectUnwatchedFailover(t, f) })
	}
	c.Start(t, c.Network.Pod("client").Node, c.Network.Pod("server").Node)
	c.ExpectTakenOver(t, policy)
}

func (c *cluster) expectUnwatchedFailover(t *testing.T, f shop.Failure) {
	r := c.Begin(t, testlab.NewTransfer("client", "server", 4, traffic.Up, unwatchedEnd))
	r.SleepUntil(shop.DownAt)
	c.Set(t, f, false)
	r.SleepUntil(unwatchedUpAt)
	returned := c.Set(t, f, true)
	r.Finish(t)
	before, without := r.Shares(testlab.Warmup, shop.DownAt), r.Shares(shop.DownAt+shop.Settled, unwatchedUpAt)
	after, carries := r.Wire.CarriesAgain(f.Path, returned)
	t.Logf("%s: longest stop %v; before %v; meanwhile %v; green carried again after %v", r, r.LongestStop(shop.DownAt, unwatchedEnd), before, without, after)
	if used := before.Used(); !slices.Equal(used, paths) {
		t.Errorf("before the failure only %v carried a share", used)
	}
	if used := without.Used(); !slices.Equal(used, []string{"blue", "red"}) {
		t.Errorf("during the failure %v carried a share", used)
	}
	if !carries {
		t.Errorf("%s did not carry its share again", f.Path)
	}
	if stop := r.LongestStop(shop.DownAt, unwatchedEnd); stop > testlab.LongestStop {
		t.Errorf("nothing arrived for %v", stop)
	}
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
	s := silent{node: c.Network.Pod("third").Node, policy: testlab.NewPolicy("quiet", "third")}
	c.Create(t, s.policy)
	c.WaitProgrammed(t, s.policy, 1)
	c.Kill(t, s.node)
	s.since = time.Now()
	return s
}

// expectSilence waits until the status says that the agent is silent, and that
// all is well after it was started again.
func (c *cluster) expectSilence(t *testing.T, s silent) {
	c.WaitFor(t, "the silence shows", time.Minute-time.Since(s.since), func(ctx context.Context) error {
		if err := c.Get(ctx, s.policy); err != nil {
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
	c.Start(t, s.node)
	c.WaitProgrammed(t, s.policy, 1)
}
