// SPDX-License-Identifier: Apache-2.0

package failures_test

import (
	"testing"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/e2e/shop"
	"braid.dev/braid/internal/lab/traffic"
)

// failures are those of the path that the cluster network's routes use, and of
// another one.
func failures() (all []shop.Failure) {
	for _, path := range paths[:2] {
		for _, node := range []string{"client", "server"} {
			all = append(all,
				shop.LosesCarrier(path, node),
				shop.IsSetDown(path, node))
		}
	}
	return all
}

// Both versions of IP and both directions at once, each byte compared. What takes
// most of a minute, to find out that an agent is silent, goes on beside the failures
// that fit into it.
func TestANICGoesDownAndComesBack(t *testing.T) {
	c := use(t)
	c.Spread(t, shop.Policy(v1alpha1.SubflowManagerAgent), 2)
	quiet := c.silence(t)
	all := failures()
	expect := func(from, to int) {
		for i := from; i < to; i++ {
			t.Run(all[i].String(), func(t *testing.T) { c.ExpectFailover(t, all[i], i%2 == 0) })
		}
	}
	const withinAMinute = 6
	expect(0, withinAMinute)
	t.Run("a silent agent shows within a minute", func(t *testing.T) { c.expectSilence(t, quiet) })
	expect(withinAMinute, len(all))
}

// Of two paths over one link a connection uses one, and the other as long as that is dead.
func TestTheOtherPathOfABottleneckGroupTakesOver(t *testing.T) {
	c, policy := use(t), shop.Policy(v1alpha1.SubflowManagerKernel)
	c.Spread(t, policy, 2)
	group := shop.Group{First: "blue", Second: "green", From: "client", To: "server"}
	c.ShareBottleneck(t, policy, group, "client", "server")
	for i, f := range []shop.Failure{shop.LosesCarrier("blue", "client"), shop.IsSetDown("blue", "server"), shop.LosesAll("blue", "client")} {
		direction := []traffic.Direction{traffic.Up, traffic.Down}[i%2]
		t.Run("when "+f.String(), func(t *testing.T) { c.ExpectOtherToTakeOver(t, group, f, direction) })
	}
	c.Update(t, policy, func() { policy.Spec.Subflows.Manager = v1alpha1.SubflowManagerAgent })
	c.WaitProgrammed(t, policy, 2)
	t.Run("with the agent's manager", func(t *testing.T) {
		c.ExpectOtherToTakeOver(t, group, shop.LosesCarrier("blue", "client"), traffic.Up)
	})
}
