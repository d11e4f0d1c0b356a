// SPDX-License-Identifier: Apache-2.0

package shop

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/e2e/testlab"
	"braid.dev/braid/internal/lab/traffic"
)

// Group are two paths over one link, of which connections between two pods use the first one while
// that works.
type Group struct {
	First, Second v1alpha1.PathName
	From, To      string
}

// ShareBottleneck has a policy allow these two paths alone, which run over one link until the end
// of the test, and waits until the second one is a backup of all that the policy selects.
func (c *Cluster) ShareBottleneck(t *testing.T, policy *v1alpha1.MPTCPPolicy, group Group, selected ...string) {
	t.Helper()
	c.Update(t, policy, func() { policy.Spec.Paths.Allowed = []v1alpha1.PathName{group.First, group.Second} })
	for _, name := range policy.Spec.Paths.Allowed {
		path := testlab.NewPath(string(name))
		c.Update(t, path, func() { path.Spec.BottleneckGroup = "uplink" })
	}
	for _, pod := range selected {
		c.WaitFor(t, string(group.Second)+" is a backup of "+pod, 30*time.Second, func(ctx context.Context) error {
			return c.hasBackup(ctx, pod, group.Second)
		})
	}
}

// hasBackup tells whether a pod's node has this path as a backup of the pod.
func (c *Cluster) hasBackup(ctx context.Context, pod string, path v1alpha1.PathName) error {
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

// ExpectOtherToTakeOver has the first path of a group fail in the middle of a transfer.
func (c *Cluster) ExpectOtherToTakeOver(t *testing.T, group Group, f Failure, direction traffic.Direction) {
	t.Helper()
	const up, end = 4 * time.Second, 7 * time.Second
	r := c.Begin(t, testlab.NewTransfer(group.From, group.To, 4, direction, end))
	r.SleepUntil(DownAt)
	c.Set(t, f, false)
	r.SleepUntil(up)
	returned := c.Set(t, f, true)
	r.Finish(t)
	first, second := []string{string(group.First)}, []string{string(group.Second)}
	before, without, after := r.Shares(testlab.Warmup, DownAt), r.Shares(DownAt+Settled, up), r.Shares(end-2*time.Second, end)
	took, _ := r.Wire.CarriesAgain(first[0], returned)
	stop := r.LongestStop(DownAt, end)
	t.Logf("%s: before %v; meanwhile %v; then %v, after %v; longest stop %v", r, before, without, after, took, stop)
	if !slices.Equal(before.Used(), first) || !slices.Equal(without.Used(), second) || !slices.Equal(after.Used(), first) {
		t.Errorf("before the failure %v carried a share, then %v, and after it %v", before.Used(), without.Used(), after.Used())
	}
	if stop > testlab.LongestStop {
		t.Errorf("nothing arrived for %v", stop)
	}
}
