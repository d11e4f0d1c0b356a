// SPDX-License-Identifier: Apache-2.0

package failures_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/e2e/shop"
	"braid.dev/braid/e2e/testlab"
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
	c.shareBottleneck(t, policy, "blue", "green")
	for i, f := range []shop.Failure{shop.LosesCarrier("blue", "client"), shop.IsSetDown("blue", "server"), shop.LosesAll("blue", "client")} {
		direction := []traffic.Direction{traffic.Up, traffic.Down}[i%2]
		t.Run("when "+f.String(), func(t *testing.T) { c.expectTheOtherToTakeOver(t, f, direction) })
	}
	c.Update(t, policy, func() { policy.Spec.Subflows.Manager = v1alpha1.SubflowManagerAgent })
	c.WaitProgrammed(t, policy, 2)
	t.Run("with the agent's manager", func(t *testing.T) { c.expectTheOtherToTakeOver(t, shop.LosesCarrier("blue", "client"), traffic.Up) })
}

// shareBottleneck spreads over these two paths, which run over one link, and waits until the
// second one is a backup.
func (c *cluster) shareBottleneck(t *testing.T, policy *v1alpha1.MPTCPPolicy, first, second v1alpha1.PathName) {
	t.Helper()
	policy.Spec.Paths.Allowed = []v1alpha1.PathName{first, second}
	c.Spread(t, policy, 2)
	for _, name := range policy.Spec.Paths.Allowed {
		path := testlab.NewPath(string(name))
		c.Update(t, path, func() { path.Spec.BottleneckGroup = "uplink" })
	}
	for _, pod := range []string{"client", "server"} {
		c.WaitFor(t, string(second)+" is a backup of "+pod, 30*time.Second, func(ctx context.Context) error {
			return c.hasBackup(ctx, pod, second)
		})
	}
}

func (c *cluster) expectTheOtherToTakeOver(t *testing.T, f shop.Failure, direction traffic.Direction) {
	const up, end = 4 * time.Second, 7 * time.Second
	r := c.Begin(t, testlab.NewTransfer("client", "server", 4, direction, end))
	r.SleepUntil(shop.DownAt)
	c.Set(t, f, false)
	r.SleepUntil(up)
	returned := c.Set(t, f, true)
	r.Finish(t)
	before, without, after := r.Shares(testlab.Warmup, shop.DownAt), r.Shares(shop.DownAt+shop.Settled, up), r.Shares(end-2*time.Second, end)
	took, _ := r.Wire.CarriesAgain("blue", returned)
	stop := r.LongestStop(shop.DownAt, end)
	t.Logf("%s: before %v; meanwhile %v; then %v, after %v; longest stop %v", r, before, without, after, took, stop)
	if !slices.Equal(before.Used(), []string{"blue"}) || !slices.Equal(without.Used(), []string{"green"}) || !slices.Equal(after.Used(), []string{"blue"}) {
		t.Errorf("before the failure %v carried a share, then %v, and after it %v", before.Used(), without.Used(), after.Used())
	}
	if stop > testlab.LongestStop {
		t.Errorf("nothing arrived for %v", stop)
	}
}

// hasBackup tells whether a pod's node has this path as a backup of the pod.
func (c *cluster) hasBackup(ctx context.Context, pod string, path v1alpha1.PathName) error {
	plan := &v1alpha1.MPTCPNodePlan{ObjectMeta: metav1.ObjectMeta{Name: c.Network.Pod(pod).Node.NodeName()}}
	if err := c.Get(ctx, plan); err != nil {
		return err
	}
	for i := range plan.Spec.Endpoints {
		if e := &plan.Spec.Endpoints[i]; e.Name == pod && slices.Contains(e.Backup, path) && plan.Status.ObservedGeneration == plan.Generation {
			return nil
		}
	}
	return fmt.Errorf("%s is no backup of %s, or not yet in the datapath", path, pod)
}
