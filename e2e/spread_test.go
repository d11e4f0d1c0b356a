// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/e2e/testlab"
	"braid.dev/braid/internal/lab/traffic"
)

func TestAPolicyMakesAConnectionFillAllNICs(t *testing.T) {
	c := use(t)
	single := c.Run(t, testlab.NewTransfer("client", "server", 4, traffic.Up, testlab.SpreadTime))
	if used := single.Steady().Used(); !slices.Equal(used, paths[:1]) {
		t.Fatalf("without a policy the connection used %v: %v", used, single.Steady())
	}
	t.Logf("without a policy: %.1f Mbit/s", single.Result.Mbit)

	policy := shopPolicy(v1alpha1.SubflowManagerKernel)
	c.CreatePaths(t)
	c.Create(t, policy)
	t.Logf("programmed %v after the policy was created", c.WaitProgrammed(t, policy, 2))
	c.WaitFor(t, "every object says so", 10*time.Second, c.allReady)
	t.Log(c.kubectl(t, "get", "mpol,mpath,mnode,mplan", "--all-namespaces"))

	for _, manager := range []v1alpha1.SubflowManager{v1alpha1.SubflowManagerKernel, v1alpha1.SubflowManagerAgent} {
		c.Update(t, policy, func() { policy.Spec.Subflows.Manager = manager })
		c.WaitProgrammed(t, policy, 2)
		for _, version := range []int{4, 6} {
			t.Run(fmt.Sprintf("manager %s, IPv%d", manager, version), func(t *testing.T) {
				c.expectSpread(t, version, single.Result.Mbit)
			})
		}
	}
}

// expectSpread moves bytes in both directions at once, over a connection each.
func (c *cluster) expectSpread(t *testing.T, version int, singleMbit float64) {
	transfers := []*testlab.Running{
		c.Begin(t, testlab.NewTransfer("client", "server", version, traffic.Up, testlab.SpreadTime)),
		c.Begin(t, testlab.NewTransfer("client", "server", version, traffic.Down, testlab.SpreadTime)),
	}
	for _, r := range transfers {
		r.Finish(t)
		ratio := r.Result.Mbit / singleMbit
		t.Logf("%s: %.1f Mbit/s, %.2f times as much, %d subflows; %v", r, r.Result.Mbit, ratio, r.Result.Subflows, r.Steady())
		if ratio <= 2 || r.Result.Subflows != len(paths) || len(r.Steady().Used()) != len(paths) {
			t.Errorf("%s: the connection does not fill all NICs", r)
		}
	}
}

// allReady checks what paths, nodes and plans say of a policy for client and
// server.
func (c *cluster) allReady(ctx context.Context) error {
	for _, ready := range []func(context.Context) error{c.pathsReady, c.nodesReady, c.plansReady} {
		if err := ready(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (c *cluster) pathsReady(ctx context.Context) error {
	var list v1alpha1.MPTCPPathList
	if err := c.list(ctx, &list, len(paths)); err != nil {
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

func (c *cluster) nodesReady(ctx context.Context) error {
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

func (c *cluster) plansReady(ctx context.Context) error {
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
func (c *cluster) list(ctx context.Context, list client.ObjectList, wanted int) error {
	if err := c.Client.List(ctx, list); err != nil {
		return err
	}
	if found := meta.LenList(list); found != wanted {
		return fmt.Errorf("there are %d objects instead of %d in %T", found, wanted, list)
	}
	return nil
}

func (c *cluster) kubectl(t *testing.T, arguments ...string) string {
	t.Helper()
	out, err := c.Kubectl(t.Context(), arguments...).CombinedOutput()
	if err != nil {
		t.Fatalf("kubectl %s: %v: %s", strings.Join(arguments, " "), err, out)
	}
	return "kubectl " + strings.Join(arguments, " ") + ":\n" + string(out)
}
