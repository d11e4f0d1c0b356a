// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"slices"
	"testing"
	"time"

	"braid.dev/braid/e2e/testlab"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

// When green fails and returns while no agent runs. A flow tries it again after 2 seconds.
const (
	unwatchedUpAt = 3 * time.Second
	unwatchedEnd  = 6500 * time.Millisecond
)

func TestANICFailsWhileNoAgentRuns(t *testing.T) {
	c := use(t)
	policy := shopPolicy(v1alpha1.SubflowManagerKernel)
	c.spread(t, policy, 2)
	c.Kill(t, c.Network.Pod("client").Node, c.Network.Pod("server").Node)
	blocks := func(n *network.Network, node *network.Node, path string, up bool) error {
		return n.Block(node, path, !up)
	}
	for _, f := range []failure{
		{"green", "client", "loses everything", blocks},
		{"green", "server", "loses everything", blocks},
		{"green", "client", "loses its carrier", (*network.Network).SetCarrier},
		{"green", "server", "loses its carrier", (*network.Network).SetCarrier},
	} {
		t.Run(f.String(), func(t *testing.T) { c.expectUnwatchedFailover(t, f) })
	}
	c.Start(t, c.Network.Pod("client").Node, c.Network.Pod("server").Node)
	c.expectTakenOver(t, policy)
}

func (c *cluster) expectUnwatchedFailover(t *testing.T, f failure) {
	r := c.Begin(t, testlab.NewTransfer("client", "server", 4, traffic.Up, unwatchedEnd))
	r.SleepUntil(downAt)
	c.set(t, f, false)
	r.SleepUntil(unwatchedUpAt)
	returned := c.set(t, f, true)
	r.Finish(t)
	before, without := r.Shares(testlab.Warmup, downAt), r.Shares(downAt+settled, unwatchedUpAt)
	after, carries := r.Wire.CarriesAgain(f.path, returned)
	t.Logf("%s: longest stop %v; before %v; meanwhile %v; green carried again after %v", r, r.LongestStop(downAt, unwatchedEnd), before, without, after)
	if used := before.Used(); !slices.Equal(used, paths) {
		t.Errorf("before the failure only %v carried a share", used)
	}
	if used := without.Used(); !slices.Equal(used, []string{"blue", "red"}) {
		t.Errorf("during the failure %v carried a share", used)
	}
	if !carries {
		t.Errorf("%s did not carry its share again", f.path)
	}
	if stop := r.LongestStop(downAt, unwatchedEnd); stop > testlab.LongestStop {
		t.Errorf("nothing arrived for %v", stop)
	}
}
