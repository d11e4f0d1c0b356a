// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/hack/lab"
	"braid.dev/braid/internal/testutil"
)

func newPath(name string) *v1alpha1.MPTCPPath {
	return &v1alpha1.MPTCPPath{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1alpha1.MPTCPPathSpec{Interfaces: []v1alpha1.InterfacePattern{v1alpha1.InterfacePattern(name)}},
	}
}

// newPolicy selects the pods of a namespace that have one of these labels "app".
func newPolicy(namespace string, apps ...string) *v1alpha1.MPTCPPolicy {
	return &v1alpha1.MPTCPPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "spread"},
		Spec: v1alpha1.MPTCPPolicySpec{PodSelector: metav1.LabelSelector{
			MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: metav1.LabelSelectorOpIn, Values: apps}},
		}},
	}
}

// shopPolicy selects client and server of the shop.
func shopPolicy(manager v1alpha1.SubflowManager) *v1alpha1.MPTCPPolicy {
	p := newPolicy("shop", "client", "server")
	p.Spec.Subflows.Manager = manager
	return p
}

func (c *cluster) create(t *testing.T, objects ...client.Object) {
	t.Helper()
	for _, object := range objects {
		if err := c.Client.Create(t.Context(), object); err != nil {
			t.Fatalf("creating %T %s: %v", object, object.GetName(), err)
		}
	}
}

// update changes an object, which somebody else may have changed meanwhile.
func (c *cluster) update(t *testing.T, object client.Object, change func()) {
	t.Helper()
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		if err := c.get(t.Context(), object); err != nil {
			return err
		}
		change()
		return c.Client.Update(t.Context(), object)
	})
	if err != nil {
		t.Fatalf("updating %T %s: %v", object, object.GetName(), err)
	}
}

// createPaths creates an MPTCPPath for each path of the lab.
func (c *cluster) createPaths(t *testing.T) {
	t.Helper()
	for _, path := range paths {
		c.create(t, newPath(path))
	}
}

// deleteAll deletes all paths, policies and guardrails. It does its work also after the
// test's context has ended.
func (c *cluster) deleteAll(t *testing.T) {
	t.Helper()
	ctx := context.Background()
	for _, kind := range []client.Object{&v1alpha1.MPTCPPath{}, &v1alpha1.ClusterMPTCPPolicy{}, &v1alpha1.MPTCPGuardrail{}} {
		if err := c.Client.DeleteAllOf(ctx, kind); err != nil {
			t.Errorf("deleting every %T: %v", kind, err)
		}
	}
	for _, namespace := range []string{"shop", "tenant", "quiet"} {
		if err := c.Client.DeleteAllOf(ctx, &v1alpha1.MPTCPPolicy{}, client.InNamespace(namespace)); err != nil {
			t.Errorf("deleting the policies of %s: %v", namespace, err)
		}
	}
}

// spread creates the paths and a policy, and waits until it is programmed for so
// many pods.
func (c *cluster) spread(t *testing.T, policy *v1alpha1.MPTCPPolicy, pods int) {
	t.Helper()
	c.createPaths(t)
	c.create(t, policy)
	c.waitProgrammed(t, policy, pods)
}

// waitProgrammed waits until the policy in its present generation is programmed
// for so many pods, and returns how long that took.
func (c *cluster) waitProgrammed(t *testing.T, policy *v1alpha1.MPTCPPolicy, pods int) time.Duration {
	t.Helper()
	return c.waitFor(t, "the policy is programmed", 10*time.Second, func(ctx context.Context) error {
		return c.programmed(ctx, policy, pods)
	})
}

func (c *cluster) programmed(ctx context.Context, policy *v1alpha1.MPTCPPolicy, pods int) error {
	if err := c.get(ctx, policy); err != nil {
		return err
	}
	status := policy.Status
	if !isTrue(status.Conditions, v1alpha1.ConditionProgrammed, policy.Generation) {
		return fmt.Errorf("it is not programmed: %+v", status)
	}
	if int(status.PodsSelected) != pods || int(status.PodsProgrammed) != pods {
		return fmt.Errorf("%d of %d pods are programmed, and should be %d", status.PodsProgrammed, status.PodsSelected, pods)
	}
	return nil
}

// get reads an object anew.
func (c *cluster) get(ctx context.Context, object client.Object) error {
	if err := c.Client.Get(ctx, client.ObjectKeyFromObject(object), object); err != nil {
		return fmt.Errorf("reading %T %s: %w", object, object.GetName(), err)
	}
	return nil
}

func isTrue(conditions []metav1.Condition, kind string, generation int64) bool {
	condition := meta.FindStatusCondition(conditions, kind)
	return condition != nil && condition.Status == metav1.ConditionTrue && condition.ObservedGeneration == generation
}

// waitFor asks until there is no error, and returns how long that took.
func (c *cluster) waitFor(t *testing.T, what string, patience time.Duration, ask func(context.Context) error) time.Duration {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience+5*time.Second)
	defer cancel()
	took, err := testutil.Until(patience, func() error { return ask(ctx) })
	if err != nil {
		t.Fatalf("waiting until %s, for %v: %v", what, patience, err)
	}
	return took
}

// nothingLeft: nodes and pods are as they were before anything was applied.
func (c *cluster) nothingLeft(context.Context) error {
	now, err := c.Footprint()
	if err != nil {
		return err
	}
	if more, less := lab.Difference(c.untouched, now); len(more)+len(less) > 0 {
		return fmt.Errorf("left behind: %q; taken away: %q", more, less)
	}
	return nil
}

// logProcesses shows the end of each process's log.
func (c *cluster) logProcesses(t *testing.T) {
	t.Helper()
	const limit = 3000
	files, err := filepath.Glob(filepath.Join(c.LogDirectory(), "*.log"))
	for _, file := range files {
		content, readErr := os.ReadFile(file)
		err = errors.Join(err, readErr)
		t.Logf("the end of %s:\n%s", filepath.Base(file), content[max(0, len(content)-limit):])
	}
	if err != nil {
		t.Errorf("reading the logs: %v", err)
	}
}
