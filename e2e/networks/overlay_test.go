// SPDX-License-Identifier: Apache-2.0

package networks_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/e2e/shop"
	"braid.dev/braid/e2e/testlab"
	"braid.dev/braid/hack/lab"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
	"braid.dev/braid/internal/testutil"
)

// What is most used works in an overlay too: VXLAN as flannel lays it. All other tests can
// be run on one (BRAID_E2E_NETWORK=vxlan).
func TestPodsOfAnOverlayAreSpreadAndGuarded(t *testing.T) {
	overlaid := testlab.NewShared(lab.Options{
		Name:    "e2eoverlay",
		Network: network.Spec{Nodes: 3, Paths: paths, LinkMbit: linkMbit, Overlay: network.Overlay{Outer: 4}},
		Pods:    pods,
	})
	t.Cleanup(func() { require.NoError(t, overlaid.Down()) })
	c := use(t, overlaid)
	single := c.Run(t, testlab.NewTransfer("client", "server", 4, traffic.Up, testlab.SpreadTime))
	if used := single.Steady().Used(); !slices.Equal(used, paths[:1]) {
		t.Fatalf("without a policy the connection used %v: %v", used, single.Steady())
	}
	policy := shop.Policy(v1alpha1.SubflowManagerAgent)
	c.Spread(t, policy, 2)
	t.Run("over all NICs, both ways", func(t *testing.T) { c.ExpectSpread(t, 4, single.Result.Mbit) })
	for i, f := range []shop.Failure{
		shop.LosesCarrier("blue", "server"),
		shop.IsSetDown("blue", "client"),
	} {
		t.Run("when "+f.String(), func(t *testing.T) { c.ExpectFailover(t, f, i%2 == 0) })
	}
	t.Run("as a hint wants it", c.expectHint)
	t.Run("with backups by a rule that matches a path", func(t *testing.T) { c.ExpectRest(t, policy) })
	t.Run("with rules", func(t *testing.T) { c.expectRule(t, policy) })
	t.Run("within guardrails", func(t *testing.T) {
		c.GuardTenant(t)
		time.Sleep(shop.BurstOver)
		c.ExpectTransferWithin(t, "TCP")
		c.ExpectFloodWithin(t, c.Network.Pod("tenant-client"), testlab.Flood{To: testlab.UDPTo(c.Network.Pod("tenant-server").IPv4)})
	})
	t.Run("whatever a pod puts into it itself", c.expectOwnTunnelPacketsToChangeNothing)
	t.Run("when", c.expectOverlayToChangeAndBack)
}

// expectHint moves a connection by an annotation, and back. The agents of both ends tell of
// the NICs that carry its packets, inside the overlay's.
func (c *cluster) expectHint(t *testing.T) {
	r := c.Begin(t, testlab.NewTransfer("client", "server", 6, traffic.Up, 10*time.Second))
	r.SleepUntil(testlab.Warmup)
	c.WaitForUse(t, r, time.Now(), paths...)
	c.waitForTold(t, paths...)
	c.WaitForUse(t, r, c.Annotate(t, "client", v1alpha1.AnnotationPreferredPaths, "green"), "green")
	c.waitForTold(t, "green")
	c.WaitForUse(t, r, c.Annotate(t, "client", v1alpha1.AnnotationPreferredPaths, ""), paths...)
	r.Finish(t)
}

// waitForTold waits until those paths are told at both ends, as top shows them, while the
// client sends.
func (c *cluster) waitForTold(t *testing.T, want ...string) {
	t.Helper()
	want = slices.Sorted(slices.Values(want))
	testutil.Retry(t, 10*time.Second, func() error {
		sends, receives := c.BusyPaths(t, "client", true), c.BusyPaths(t, "server", false)
		if !slices.Equal(sends, want) || !slices.Equal(receives, want) {
			return fmt.Errorf("what the client sends is told to be on %v, what the server receives on %v, not on %v", sends, receives, want)
		}
		return nil
	})
}

// expectRule has a rule see what a pod sends.
func (c *cluster) expectRule(t *testing.T, policy *v1alpha1.MPTCPPolicy) {
	c.SetRules(t, policy, shop.Counting("sent", shop.Directed(v1alpha1.DirectionFromEndpoint)))
	c.Run(t, testlab.NewTransfer("client", "server", 4, traffic.Up, time.Second))
	if hits := c.Hits(t, "client"); hits["sent"] == 0 {
		t.Errorf("the rule's hits are %v", hits)
	}
}
