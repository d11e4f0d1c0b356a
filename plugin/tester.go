// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/api/v1alpha1"
)

// tester has a namespace of its own for as long as it tests.
type tester struct {
	*surveyor
	client.Client
	steps
	options testOptions
	paths   []v1alpha1.PathName
	// namespace is empty before it was made.
	namespace string
	policy    *v1alpha1.MPTCPPolicy
	// firstSpread is when a connection was first seen on all paths.
	firstSpread time.Duration
}

func (p *plugin) newTester(ctx context.Context, out io.Writer, options testOptions) (*tester, error) {
	t := &tester{steps: steps{out, time.Now()}, options: options}
	var err error
	if t.Client, err = p.connect(ctx); err != nil {
		return nil, err
	}
	if t.surveyor, err = p.newSurveyor(ctx, t.Client); err != nil {
		return nil, err
	}
	var paths v1alpha1.MPTCPPathList
	if err := t.List(ctx, &paths); err != nil {
		return nil, fmt.Errorf("reading paths: %w", err)
	}
	if len(paths.Items) == 0 {
		return nil, errors.New("there is no MPTCPPath yet: kubectl braid init --apply")
	}
	for i := range paths.Items {
		t.paths = append(t.paths, v1alpha1.PathName(paths.Items[i].Name))
	}
	return t, nil
}

// pair is a node to send from, and one to send to.
type pair struct{ from, to string }

// pairs are those to test.
func (t *tester) pairs() (pairs []pair, err error) {
	nodes := slices.Sorted(maps.Keys(t.agents))
	for _, node := range []string{t.options.from, t.options.to} {
		if node != "" && !slices.Contains(nodes, node) {
			return nil, fmt.Errorf("on %s runs no agent: choose among %s", node, strings.Join(nodes, ", "))
		}
	}
	if len(nodes) < 2 {
		return nil, errors.New("only one node has an agent: it takes two to send between")
	}
	if t.options.allPairs {
		for i, from := range nodes {
			for _, to := range nodes[i+1:] {
				pairs = append(pairs, pair{from, to})
			}
		}
		return pairs, nil
	}
	from := cmp.Or(t.options.from, firstBut(nodes, t.options.to))
	to := cmp.Or(t.options.to, firstBut(nodes, from))
	if from == to {
		return nil, errors.New("pods of one node use no NIC: give two nodes")
	}
	return []pair{{from, to}}, nil
}

func firstBut(nodes []string, other string) string {
	if nodes[0] == other {
		return nodes[1]
	}
	return nodes[0]
}

// selfTestLabel marks namespaces of self-tests.
const selfTestLabel = "braid.dev/self-test"

// begin makes the namespace and its policy, and removes those of tests that were killed.
func (t *tester) begin(ctx context.Context) error {
	t.removeOlder(ctx)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "braid-test-", Labels: map[string]string{
		selfTestLabel: "true", "pod-security.kubernetes.io/enforce": "restricted",
	}}}
	if err := t.Create(ctx, namespace); err != nil {
		return fmt.Errorf("making a namespace for the test: %w", err)
	}
	t.namespace = namespace.Name
	t.policy = &v1alpha1.MPTCPPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: t.namespace, Name: "test"}}
	if err := t.Create(ctx, t.policy); err != nil {
		return fmt.Errorf("making the test's policy: %w", err)
	}
	return nil
}

// lifetime is when pods of a test end by themselves; older namespaces belong to nobody.
const lifetime = 10 * time.Minute

// removeOlder goes by the API server's clock and leaves young ones alone: somebody else may
// be testing.
func (t *tester) removeOlder(ctx context.Context) {
	var all corev1.NamespaceList
	if err := t.List(ctx, &all, client.HasLabels{selfTestLabel}); err != nil {
		return // to remove them is a courtesy
	}
	for i := range all.Items {
		if one := &all.Items[i]; time.Since(one.CreationTimestamp.Time) > 2*lifetime && one.DeletionTimestamp == nil {
			t.say("removing %s, which an earlier test left", one.Name)
			_ = t.Delete(ctx, one) // as above
		}
	}
}

// cleanUp removes the namespace, whatever became of the context, and waits until it is gone.
func (t *tester) cleanUp(ctx context.Context) error {
	if t.namespace == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	t.say("removing namespace %s", t.namespace)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: t.namespace}}
	if err := t.Delete(ctx, namespace); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("removing the test's namespace, do it by kubectl delete namespace %s: %w", t.namespace, err)
	}
	err := t.until(ctx, time.Minute, func() error {
		err := t.Get(ctx, client.ObjectKey{Name: t.namespace}, namespace)
		if apierrors.IsNotFound(err) {
			return nil
		}
		return cmp.Or(err, errors.New("it is still there"))
	})
	if err != nil {
		return fmt.Errorf("the API server has not removed namespace %s yet: %w", t.namespace, err)
	}
	return nil
}

// until looks until there is no error, or for so long, and returns the last one.
func (t *tester) until(ctx context.Context, patience time.Duration, look func() error) error {
	for deadline := time.Now().Add(patience); ; {
		err := look()
		if err == nil || time.Now().After(deadline) {
			return err
		}
		select {
		case <-ctx.Done():
			return cmp.Or(err, ctx.Err())
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// allow gives the test's pods these paths alone; all where there are none.
func (t *tester) allow(ctx context.Context, paths []v1alpha1.PathName) error {
	before := t.policy.DeepCopy()
	t.policy.Spec.Paths.Allowed = paths
	if err := t.Patch(ctx, t.policy, client.MergeFrom(before)); err != nil {
		return fmt.Errorf("changing the test's policy: %w", err)
	}
	return t.programmed(ctx)
}

// programmed waits until both pods have what the policy says now.
func (t *tester) programmed(ctx context.Context) error {
	return t.until(ctx, t.options.wait, func() error {
		if err := t.Get(ctx, client.ObjectKeyFromObject(t.policy), t.policy); err != nil {
			return fmt.Errorf("reading the test's policy: %w", err)
		}
		status := &t.policy.Status
		is := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionProgrammed)
		switch {
		case is == nil || is.ObservedGeneration != t.policy.Generation:
			return errors.New("the controller has not seen the test's policy: is it running?")
		case is.Status != metav1.ConditionTrue || status.PodsProgrammed < 2:
			return fmt.Errorf("%d of %d pods are programmed: %s", status.PodsProgrammed, status.PodsSelected, is.Message)
		}
		return nil
	})
}
