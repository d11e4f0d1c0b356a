// SPDX-License-Identifier: Apache-2.0

package failures_test

import (
	"slices"
	"testing"
	"time"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/e2e/shop"
	"braid.dev/braid/e2e/testlab"
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
	c.expectTakenOver(t, policy)
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
