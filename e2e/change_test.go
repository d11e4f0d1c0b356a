// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"braid.dev/braid/agent/detours"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/e2e/shop"
	"braid.dev/braid/e2e/testlab"
	"braid.dev/braid/hack/lab"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

func TestAPolicyNamesAPathThatDoesNotExistYet(t *testing.T) {
	c := use(t)
	c.Create(t, testlab.NewPath("blue"), testlab.NewPath("green"))
	policy := shop.Policy(v1alpha1.SubflowManagerAgent)
	policy.Spec.Paths.Allowed = []v1alpha1.PathName{"blue", "green", "red"}
	c.Create(t, policy)
	c.WaitFor(t, "the pods have the other paths", 30*time.Second, func(ctx context.Context) error {
		if err := c.Get(ctx, policy); err != nil {
			return err
		}
		programmed := meta.FindStatusCondition(policy.Status.Conditions, v1alpha1.ConditionProgrammed)
		if programmed == nil || programmed.Reason != v1alpha1.ReasonPathNotFound || policy.Status.PodsProgrammed != 2 {
			return fmt.Errorf("the status is %+v", policy.Status)
		}
		return nil
	})
	accepted := meta.FindStatusCondition(policy.Status.Conditions, v1alpha1.ConditionAccepted)
	t.Logf("Accepted is %s: %s", accepted.Status, accepted.Message)
	if accepted.Status != metav1.ConditionFalse || accepted.Reason != v1alpha1.ReasonPathNotFound || !strings.Contains(accepted.Message, "red") {
		t.Errorf("the condition Accepted is %+v", accepted)
	}
	c.ExpectUsed(t, "blue", "green")

	c.Create(t, testlab.NewPath("red"))
	c.WaitFor(t, "the policy is accepted", 30*time.Second, func(ctx context.Context) error {
		if err := c.Programmed(ctx, policy, 2); err != nil {
			return err
		}
		if !testlab.IsTrue(policy.Status.Conditions, v1alpha1.ConditionAccepted, policy.Generation) {
			return fmt.Errorf("the conditions are %+v", policy.Status.Conditions)
		}
		return nil
	})
	c.WaitFor(t, "every object says so", 30*time.Second, c.AllReady)
	c.ExpectUsed(t, paths...)
}

func TestPodsComeAndGo(t *testing.T) {
	c := use(t)
	policy := shop.Policy(v1alpha1.SubflowManagerKernel)
	c.Spread(t, policy, 2)
	late := c.addPod(t, "late", "client", c.Network.Nodes[2])
	t.Logf("a new pod was programmed after %v", c.WaitProgrammed(t, policy, 3))
	r := c.Run(t, testlab.NewTransfer("late", "server", 4, traffic.Up, shop.ShortTime))
	if used := r.Steady().Used(); !slices.Equal(used, paths) {
		t.Errorf("a connection of the new pod uses %v: %v", used, r.Steady())
	}
	c.removePod(t, late)
	t.Logf("a deleted pod was gone after %v", c.WaitProgrammed(t, policy, 2))
	c.WaitFor(t, "its node has nothing of it", 30*time.Second, func(ctx context.Context) error {
		return c.withoutEndpoints(ctx, late.Node)
	})
}

// withoutEndpoints: the agent of a node manages no pod, and keeps nothing of one. What it knows of
// the ways to other nodes it keeps for as long as there are paths.
func (c *cluster) withoutEndpoints(ctx context.Context, node *network.Node) error {
	plan := &v1alpha1.MPTCPNodePlan{ObjectMeta: metav1.ObjectMeta{Name: node.NodeName()}}
	if err := c.Get(ctx, plan); err != nil {
		return err
	}
	if len(plan.Spec.Endpoints)+len(plan.Status.Endpoints) > 0 {
		return fmt.Errorf("the plan has endpoints: %+v, %+v", plan.Spec.Endpoints, plan.Status.Endpoints)
	}
	now, err := c.Footprint()
	if err != nil {
		return err
	}
	state := c.StatePath(node.NodeName())
	for _, line := range now {
		if strings.HasPrefix(line, "file "+state) && line != "file "+filepath.Join(state, detours.FileName) {
			return fmt.Errorf("the agent keeps %s", line)
		}
	}
	return nil
}

// addPod adds a pod of the shop until the test ends.
func (c *cluster) addPod(t *testing.T, name, app string, node *network.Node) *network.Pod {
	t.Helper()
	inside, err := c.AddPod(t.Context(), lab.Pod{Namespace: "shop", Name: name, Node: node.Number, Labels: map[string]string{"app": app}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.removePod(t, inside) })
	return inside
}

// removePod removes a pod of the shop, unless it is gone.
func (c *cluster) removePod(t *testing.T, pod *network.Pod) {
	t.Helper()
	if err := c.RemovePod(context.Background(), "shop", pod); err != nil {
		t.Error(err)
	}
}

// The pods of the tenant have the same labels, and a policy of their own later.
func TestAPolicyStaysInItsNamespace(t *testing.T) {
	c := use(t)
	c.Spread(t, shop.Policy(v1alpha1.SubflowManagerKernel), 2)
	var plans v1alpha1.MPTCPNodePlanList
	if err := c.Client.List(t.Context(), &plans); err != nil {
		t.Fatal(err)
	}
	for _, plan := range plans.Items {
		for _, endpoint := range plan.Spec.Endpoints {
			if endpoint.Namespace != "shop" {
				t.Errorf("the plan of %s has %s/%s", plan.Name, endpoint.Namespace, endpoint.Name)
			}
		}
	}
	c.expectUntouchedPods(t, "tenant-client", "tenant-server", "third")
	r := c.Run(t, testlab.NewTransfer("tenant-client", "tenant-server", 4, traffic.Up, shop.ShortTime))
	if used := r.Steady().Used(); !slices.Equal(used, paths[:1]) || r.Result.Subflows != 1 {
		t.Errorf("a connection of another namespace uses %v with %d subflows", used, r.Result.Subflows)
	}
}

// expectUntouchedPods compares pods with how they were before all policies.
func (c *cluster) expectUntouchedPods(t *testing.T, names ...string) {
	t.Helper()
	now, err := c.Footprint()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		prefix := c.Network.Pod(name).Name + ":"
		before, after := shop.WithPrefix(c.Untouched, prefix), shop.WithPrefix(now, prefix)
		if len(before) == 0 || !slices.Equal(before, after) {
			t.Errorf("pod %s was\n%q\nand is\n%q", name, before, after)
		}
	}
}
