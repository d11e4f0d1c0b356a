// SPDX-License-Identifier: Apache-2.0

package rules_test

import (
	"context"
	"testing"
	"time"

	"braid.dev/braid/e2e/shop"
	"braid.dev/braid/e2e/testlab"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

// A backup carries hardly anything in either direction, until the rule is removed.
func TestBackupsRestUntilTheRuleIsRemoved(t *testing.T) {
	for _, manager := range []v1alpha1.SubflowManager{v1alpha1.SubflowManagerKernel, v1alpha1.SubflowManagerAgent} {
		t.Run("manager "+string(manager), func(t *testing.T) {
			c := use(t)
			policy := shop.Policy(manager)
			c.Spread(t, policy, 2)
			c.ExpectRest(t, policy)
		})
	}
}

// Where windows are too small for paths that differ, subflows share the good one. When that comes to
// be the path of backups, nothing goes by it any longer.
func TestSubflowsLeaveASharedPathThatIsForBackupsFromNowOn(t *testing.T) {
	const begins, settled, duration = 5 * time.Second, 3 * time.Second, 14 * time.Second
	c := use(t)
	policy := shop.Policy(v1alpha1.SubflowManagerKernel)
	c.Spread(t, policy, 2)
	for _, pod := range []string{"client", "server"} {
		shop.SetForTest(t, c.Network.Pod(pod).Namespace, "net.ipv4.tcp_rmem", "4096 65536 65536")
		c.shapeForTest(t, c.Network.Pod(pod).Node, testlab.LinkMbit/10, "blue", "green")
	}
	for _, direction := range []traffic.Direction{traffic.Up, traffic.Down} {
		r := c.Begin(t, testlab.NewTransfer("client", "server", 4, direction, duration))
		r.SleepUntil(begins)
		c.SetRules(t, policy, shop.Spare("red"))
		holds := time.Now().Add(settled)
		r.Finish(t)
		before, since := r.Shares(begins-time.Second, begins), r.Wire.Rates(holds, r.Began.Add(duration))
		t.Logf("%s: before the rule %v; since %v (red %.3f)", r, before, since, since["red"])
		if all := before.Of(shop.Paths); before["red"] < all*9/10 {
			t.Errorf("%s: before the rule red carries %.1f of %.1f Mbit/s", r, before["red"], all)
		}
		if all := since.Of(shop.Paths); since["red"] > testlab.LinkMbit/100.0 || all < testlab.LinkMbit/10 {
			t.Errorf("%s: red carries %.3f of %.1f Mbit/s", r, since["red"], all)
		}
		c.SetRules(t, policy)
	}
}

// shapeForTest limits what leaves by some of a node's NICs until the test ends.
func (c *cluster) shapeForTest(t *testing.T, node *network.Node, mbit int, nics ...string) {
	t.Helper()
	for _, nic := range nics {
		if err := node.Shape(nic, mbit); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := node.Shape(nic, testlab.LinkMbit); err != nil {
				t.Error(err)
			}
		})
	}
}

// A deleted policy leaves nothing, even while a connection runs that has backups
// for its rules: they become ordinary subflows first.
func TestADeletedPolicyEndsWhatItsRulesDidToARunningConnection(t *testing.T) {
	c := use(t)
	policy := shop.Policy(v1alpha1.SubflowManagerKernel)
	c.Spread(t, policy, 2)
	r := c.Begin(t, testlab.NewTransfer("client", "server", 4, traffic.Up, 11*time.Second))
	r.SleepUntil(1500 * time.Millisecond)
	c.SetRules(t, policy, shop.Spare("red"))
	c.WaitFor(t, "red is a backup", 2*time.Second, func(context.Context) error { return c.AreBackups(t, "red", 1) })
	if err := c.Client.Delete(t.Context(), policy); err != nil {
		t.Fatal(err)
	}
	took := c.WaitFor(t, "nothing is left on nodes and pods", 10*time.Second, c.NothingLeft)
	t.Logf("nothing was left %v after the policy was deleted", took)
	select {
	case <-r.Done:
		t.Error("it was gone with the connection alone")
	default:
	}
	r.Finish(t)
}

// Flows that a failure moved to a path whose subflows are backups are ordinary ones again once
// they are back on their own.
func TestSubflowsThatAFailureMovedAreNoBackupsOnceTheyAreBack(t *testing.T) {
	const duration = 24 * time.Second
	c := use(t)
	policy := shop.Policy(v1alpha1.SubflowManagerKernel)
	c.Spread(t, policy, 2)
	var transfers []*testlab.Running
	for range 2 {
		transfers = append(transfers, c.Begin(t, testlab.NewTransfer("client", "server", 4, traffic.Up, duration)),
			c.Begin(t, testlab.NewTransfer("client", "server", 6, traffic.Down, duration)))
	}
	onlyRed := func(context.Context) error { return c.AreBackups(t, "red", len(transfers)) }
	transfers[0].SleepUntil(1500 * time.Millisecond)
	c.SetRules(t, policy, shop.Spare("red"))
	c.WaitFor(t, "red is a backup", 8*time.Second, onlyRed)
	failures := []shop.Failure{shop.LosesCarrier("blue", "client"), shop.LosesCarrier("blue", "server")}
	for _, f := range failures {
		c.Set(t, f, false)
	}
	time.Sleep(4 * time.Second)
	var returned time.Time
	for _, f := range failures {
		returned = c.Set(t, f, true)
	}
	took := c.WaitFor(t, "only red is a backup again", 8*time.Second, onlyRed)
	t.Logf("only red was a backup again %v after blue's return", took)
	for _, r := range transfers {
		r.Finish(t)
		if _, again := r.Wire.CarriesAgain("blue", returned); !again {
			t.Errorf("%s: blue did not carry its share again: %v at the end", r, r.Shares(duration-time.Second, duration))
		}
	}
}
