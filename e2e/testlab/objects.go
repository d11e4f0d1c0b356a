// SPDX-License-Identifier: Apache-2.0

package testlab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
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

// NewPath is a path of the NICs of that name.
func NewPath(name string) *v1alpha1.MPTCPPath {
	return &v1alpha1.MPTCPPath{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1alpha1.MPTCPPathSpec{Interfaces: []v1alpha1.InterfacePattern{v1alpha1.InterfacePattern(name)}},
	}
}

// NewPolicy selects the pods of a namespace that have one of these labels "app".
func NewPolicy(namespace string, apps ...string) *v1alpha1.MPTCPPolicy {
	return &v1alpha1.MPTCPPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "spread"},
		Spec: v1alpha1.MPTCPPolicySpec{PodSelector: metav1.LabelSelector{
			MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: metav1.LabelSelectorOpIn, Values: apps}},
		}},
	}
}

// Create creates objects.
func (c *Cluster) Create(t testing.TB, objects ...client.Object) {
	t.Helper()
	for _, object := range objects {
		if err := c.Client.Create(t.Context(), object); err != nil {
			t.Fatalf("creating %T %s: %v", object, object.GetName(), err)
		}
	}
}

// Update changes an object, which somebody else may have changed meanwhile.
func (c *Cluster) Update(t testing.TB, object client.Object, change func()) {
	t.Helper()
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		if err := c.Get(t.Context(), object); err != nil {
			return err
		}
		change()
		return c.Client.Update(t.Context(), object)
	})
	if err != nil {
		t.Fatalf("updating %T %s: %v", object, object.GetName(), err)
	}
}

// CreatePaths creates an MPTCPPath for each path of the lab.
func (c *Cluster) CreatePaths(t testing.TB) {
	t.Helper()
	for _, path := range c.Paths {
		c.Create(t, NewPath(path))
	}
}

// DeleteAll deletes all paths, policies, guardrails and VMs. It does its work also after the
// test's context has ended.
func (c *Cluster) DeleteAll(t testing.TB) {
	t.Helper()
	ctx := context.Background()
	for _, kind := range []client.Object{&v1alpha1.MPTCPPath{}, &v1alpha1.ClusterMPTCPPolicy{}, &v1alpha1.MPTCPGuardrail{}} {
		if err := c.Client.DeleteAllOf(ctx, kind); err != nil {
			t.Errorf("deleting every %T: %v", kind, err)
		}
	}
	var policies v1alpha1.MPTCPPolicyList
	if err := c.Client.List(ctx, &policies); err != nil {
		t.Errorf("listing the policies of all namespaces: %v", err)
	}
	for _, policy := range policies.Items {
		if err := c.Client.Delete(ctx, &policy); client.IgnoreNotFound(err) != nil {
			t.Errorf("deleting the policy %s of %s: %v", policy.Name, policy.Namespace, err)
		}
	}
	var endpoints v1alpha1.MPTCPEndpointList
	if err := c.Client.List(ctx, &endpoints); err != nil {
		t.Errorf("listing the MPTCPEndpoints of all namespaces: %v", err)
	}
	for _, endpoint := range endpoints.Items {
		if err := c.Client.Delete(ctx, &endpoint); client.IgnoreNotFound(err) != nil {
			t.Errorf("deleting the MPTCPEndpoint %s of %s: %v", endpoint.Name, endpoint.Namespace, err)
		}
	}
}

// WaitProgrammed waits until the policy in its present generation is programmed
// for so many pods, and returns how long that took.
func (c *Cluster) WaitProgrammed(t testing.TB, policy *v1alpha1.MPTCPPolicy, pods int) time.Duration {
	t.Helper()
	return c.WaitFor(t, "the policy is programmed", 10*time.Second, func(ctx context.Context) error {
		return c.Programmed(ctx, policy, pods)
	})
}

// Programmed fails while the policy is not.
func (c *Cluster) Programmed(ctx context.Context, policy *v1alpha1.MPTCPPolicy, pods int) error {
	if err := c.Get(ctx, policy); err != nil {
		return err
	}
	status := policy.Status
	if !IsTrue(status.Conditions, v1alpha1.ConditionProgrammed, policy.Generation) {
		return fmt.Errorf("it is not programmed: %+v", status)
	}
	if int(status.PodsSelected) != pods || int(status.PodsProgrammed) != pods {
		return fmt.Errorf("%d of %d pods are programmed, and should be %d", status.PodsProgrammed, status.PodsSelected, pods)
	}
	return nil
}

// PodProgrammed fails while the plan of a node does not say so of a pod.
func (c *Cluster) PodProgrammed(ctx context.Context, node, namespace, name string) error {
	plan := &v1alpha1.MPTCPNodePlan{ObjectMeta: metav1.ObjectMeta{Name: node}}
	if err := c.Get(ctx, plan); err != nil {
		return err
	}
	for i := range plan.Status.Endpoints {
		status := &plan.Status.Endpoints[i]
		if status.Namespace == namespace && status.Name == name && status.State == v1alpha1.EndpointProgrammed {
			return nil
		}
	}
	return fmt.Errorf("pod %s/%s is not programmed", namespace, name)
}

// Get reads an object anew.
func (c *Cluster) Get(ctx context.Context, object client.Object) error {
	if err := c.Client.Get(ctx, client.ObjectKeyFromObject(object), object); err != nil {
		return fmt.Errorf("reading %T %s: %w", object, object.GetName(), err)
	}
	return nil
}

// IsTrue says whether a condition of that kind and generation is true.
func IsTrue(conditions []metav1.Condition, kind string, generation int64) bool {
	condition := meta.FindStatusCondition(conditions, kind)
	return condition != nil && condition.Status == metav1.ConditionTrue && condition.ObservedGeneration == generation
}

// WaitFor asks until there is no error, and returns how long that took.
func (c *Cluster) WaitFor(t testing.TB, what string, patience time.Duration, ask func(context.Context) error) time.Duration {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testutil.Slowdown*patience+5*time.Second)
	defer cancel()
	took, err := testutil.Until(patience, func() error { return ask(ctx) })
	if err != nil {
		t.Fatalf("waiting until %s, for %v: %v", what, took.Round(time.Second), err)
	}
	return took
}

// NothingLeft fails while nodes and pods are not as they were before anything was applied.
func (c *Cluster) NothingLeft(context.Context) error {
	now, err := c.Footprint()
	if err != nil {
		return err
	}
	if more, less := lab.Difference(c.Untouched, now); len(more)+len(less) > 0 {
		return fmt.Errorf("left behind: %q; taken away: %q", more, less)
	}
	return nil
}

// LogProcesses shows the end of each process's log.
func (c *Cluster) LogProcesses(t testing.TB) {
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

// Apply gives a manifest to kubectl, as a user would.
func (c *Cluster) Apply(t testing.TB, manifest string) {
	t.Helper()
	if out, err := c.TryApply(t, manifest); err != nil {
		t.Fatalf("kubectl apply: %v: %s", err, out)
	}
}

// TryApply gives a manifest to kubectl, and returns what that said.
func (c *Cluster) TryApply(t testing.TB, manifest string) (string, error) {
	t.Helper()
	command := c.Kubectl(t.Context(), "apply", "-f", "-")
	command.Stdin = strings.NewReader(manifest)
	out, err := command.CombinedOutput()
	return string(out), err
}
