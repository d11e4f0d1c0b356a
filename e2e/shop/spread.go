// SPDX-License-Identifier: Apache-2.0

package shop

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/e2e/testlab"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

// ShortTime is for how long a connection lasts of which only the paths matter.
const ShortTime = 2500 * time.Millisecond

// Noticeable is how much longer than without a disturbance a connection may stop.
const Noticeable = 500 * time.Millisecond

// ExpectUsed checks which paths a connection of the shop uses.
func (c *Cluster) ExpectUsed(t *testing.T, wanted ...string) {
	t.Helper()
	r := c.Run(t, testlab.NewTransfer("client", "server", 4, traffic.Up, ShortTime))
	if used := r.Steady().Used(); !slices.Equal(used, wanted) {
		t.Errorf("the connection uses %v instead of %v: %v", used, wanted, r.Steady())
	}
}

// ExpectSpread moves bytes in both directions at once, over a connection each.
func (c *Cluster) ExpectSpread(t *testing.T, version int, singleMbit float64) {
	transfers := []*testlab.Running{
		c.Begin(t, testlab.NewTransfer("client", "server", version, traffic.Up, testlab.SpreadTime)),
		c.Begin(t, testlab.NewTransfer("client", "server", version, traffic.Down, testlab.SpreadTime)),
	}
	for _, r := range transfers {
		r.Finish(t)
		ratio := r.Result.Mbit / singleMbit
		t.Logf("%s: %.1f Mbit/s, %.2f times as much, %d subflows; %v", r, r.Result.Mbit, ratio, r.Result.Subflows, r.Steady())
		if ratio <= 2 || r.Result.Subflows != len(Paths) || len(r.Steady().Used()) != len(Paths) {
			t.Errorf("%s: the connection does not fill all NICs", r)
		}
	}
}

// AllReady checks what paths, nodes and plans say of a policy for client and
// server.
func (c *Cluster) AllReady(ctx context.Context) error {
	for _, ready := range []func(context.Context) error{c.PathsReady, c.nodesReady, c.plansReady} {
		if err := ready(ctx); err != nil {
			return err
		}
	}
	return nil
}

// PathsReady checks what the paths say.
func (c *Cluster) PathsReady(ctx context.Context) error {
	var list v1alpha1.MPTCPPathList
	if err := c.list(ctx, &list, len(Paths)); err != nil {
		return err
	}
	for _, path := range list.Items {
		status := path.Status
		if status.Nodes != 3 || status.NodesUp != 3 || !testlab.IsTrue(status.Conditions, v1alpha1.ConditionReady, path.Generation) {
			return fmt.Errorf("path %s: %+v", path.Name, status)
		}
	}
	return nil
}

func (c *Cluster) nodesReady(ctx context.Context) error {
	var list v1alpha1.MPTCPNodeList
	if err := c.list(ctx, &list, 3); err != nil {
		return err
	}
	for _, node := range list.Items {
		status := node.Status
		if status.PathsTotal != 3 || status.PathsUp != 3 || !testlab.IsTrue(status.Conditions, v1alpha1.ConditionReady, node.Generation) {
			return fmt.Errorf("node %s: %+v", node.Name, status)
		}
	}
	return nil
}

func (c *Cluster) plansReady(ctx context.Context) error {
	var list v1alpha1.MPTCPNodePlanList
	if err := c.list(ctx, &list, 3); err != nil {
		return err
	}
	endpoints := map[string]int32{"node1": 1, "node2": 1, "node3": 0}
	for _, plan := range list.Items {
		status := plan.Status
		if status.EndpointsProgrammed != endpoints[plan.Name] || !testlab.IsTrue(status.Conditions, v1alpha1.ConditionProgrammed, plan.Generation) {
			return fmt.Errorf("plan of %s: %+v", plan.Name, status)
		}
	}
	return nil
}

// list reads all objects of a kind, which must be so many.
func (c *Cluster) list(ctx context.Context, list client.ObjectList, wanted int) error {
	if err := c.Client.List(ctx, list); err != nil {
		return err
	}
	if found := meta.LenList(list); found != wanted {
		return fmt.Errorf("there are %d objects instead of %d in %T", found, wanted, list)
	}
	return nil
}

// ExpectTakenOver changes the policy: only agents that work carry that out.
func (c *Cluster) ExpectTakenOver(t *testing.T, policy *v1alpha1.MPTCPPolicy) {
	t.Helper()
	for _, weight := range []int32{2, 1} {
		c.Update(t, policy, func() {
			policy.Spec.Paths.Weights = []v1alpha1.PathWeight{{Path: "blue", Weight: weight}}
		})
		c.WaitProgrammed(t, policy, 2)
	}
	c.WaitFor(t, "every object says that all is well", 10*time.Second, c.AllReady)
}

// WithPrefix are the lines that begin with one of these.
func WithPrefix(lines []string, prefixes ...string) (found []string) {
	for _, line := range lines {
		if slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(line, prefix) }) {
			found = append(found, line)
		}
	}
	return found
}

// SetForTest sets a sysctl of a namespace until the test ends.
func SetForTest(t *testing.T, ns *network.Namespace, key, value string) {
	t.Helper()
	var before []byte
	err := ns.Do(func() (err error) {
		before, err = os.ReadFile("/proc/sys/" + strings.ReplaceAll(key, ".", "/"))
		return err
	})
	if err := errors.Join(err, ns.Sysctl(key, value)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := ns.Sysctl(key, strings.TrimSpace(string(before))); err != nil {
			t.Error(err)
		}
	})
}

// Annotate sets an annotation of a pod of the shop, or removes it when the value
// is empty. When the test ends it is gone.
func (c *Cluster) Annotate(t *testing.T, name, key, value string) time.Time {
	t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}}
	set := func(value string) {
		c.Update(t, pod, func() {
			if pod.Annotations == nil {
				pod.Annotations = map[string]string{}
			}
			pod.Annotations[key] = value
			if value == "" {
				delete(pod.Annotations, key)
			}
		})
	}
	if value != "" {
		t.Cleanup(func() {
			patch := client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"metadata":{"annotations":{%q:null}}}`, key))
			if err := c.Client.Patch(context.Background(), pod, patch); err != nil {
				t.Error(err)
			}
		})
	}
	at := time.Now()
	set(value)
	return at
}
