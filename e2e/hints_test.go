// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/e2e/shop"
	"braid.dev/braid/e2e/testlab"
	"braid.dev/braid/internal/lab/traffic"
)

// hintsOf are the hints of a pod of the shop, as its agent reports them: key, state.
func (c *cluster) hintsOf(ctx context.Context, name string) (hints []string, err error) {
	node := c.Network.Pod(name).Node
	var plans v1alpha1.MPTCPNodePlanList
	if err := c.Client.List(ctx, &plans); err != nil {
		return nil, err
	}
	for _, plan := range plans.Items {
		for _, e := range plan.Status.Endpoints {
			for _, hint := range e.Hints {
				if e.Namespace == "shop" && e.Name == name {
					hints = append(hints, fmt.Sprintf("%s %s", hint.Annotation, hint.State))
				}
			}
		}
	}
	if hints == nil {
		return nil, fmt.Errorf("no agent says anything of the hints of %s, which is on %s", name, node.Name)
	}
	slices.Sort(hints)
	return hints, nil
}

func (c *cluster) waitForHints(t *testing.T, name string, want ...string) {
	t.Helper()
	c.WaitFor(t, "the agent says what became of the hints", 30*time.Second, func(ctx context.Context) error {
		hints, err := c.hintsOf(ctx, name)
		if err == nil && !slices.Equal(hints, want) {
			err = fmt.Errorf("the hints are %q, not %q", hints, want)
		}
		return err
	})
}

// without lists the paths of the lab that are not among these.
func without(some []string) []string {
	return slices.DeleteFunc(slices.Clone(paths), func(path string) bool { return slices.Contains(some, path) })
}

// A tenant's annotation moves a connection that exists to the path that it names,
// and its removal moves it back, with every byte delivered.
func TestAnAnnotationMovesTheTrafficAndItsRemovalMovesItBack(t *testing.T) {
	for _, version := range []int{4, 6} {
		t.Run(fmt.Sprintf("over IPv%d", version), func(t *testing.T) {
			c := use(t)
			c.Spread(t, shop.Policy(v1alpha1.SubflowManagerAgent), 2)
			r := c.Begin(t, testlab.NewTransfer("client", "server", version, traffic.Up, 16*time.Second))
			r.SleepUntil(testlab.Warmup)
			c.WaitForUse(t, r, time.Now(), paths...)
			c.WaitForUse(t, r, c.Annotate(t, "client", v1alpha1.AnnotationPreferredPaths, "green"), "green")
			c.waitForHints(t, "client", "braid.dev/preferred-paths Followed")
			c.WaitForUse(t, r, c.Annotate(t, "client", v1alpha1.AnnotationPreferredPaths, "red"), "red")
			c.WaitForUse(t, r, c.Annotate(t, "client", v1alpha1.AnnotationPreferredPaths, ""), paths...)
			c.WaitForUse(t, r, c.Annotate(t, "client", v1alpha1.AnnotationBackupPaths, "blue"), "green", "red")
			c.WaitForUse(t, r, c.Annotate(t, "client", v1alpha1.AnnotationBackupPaths, ""), paths...)
			r.Finish(t)
			if stop := r.LongestStop(testlab.Warmup, r.Duration); stop > testlab.LongestStop {
				t.Errorf("nothing arrived for %v", stop)
			}
		})
	}
}

// A tenant's own rate holds over all paths together, for a connection that exists,
// and is lifted with the annotation.
func TestARateByAnnotationHoldsWhileItIsThere(t *testing.T) {
	c := use(t)
	c.Spread(t, shop.Policy(v1alpha1.SubflowManagerAgent), 2)
	r := c.Begin(t, testlab.NewTransfer("client", "server", 4, traffic.Up, 9*time.Second))
	r.SleepUntil(testlab.Warmup)
	c.WaitForUse(t, r, time.Now(), paths...)
	limited := c.Annotate(t, "client", v1alpha1.AnnotationMaxRate, "12M")
	time.Sleep(3 * time.Second)
	lifted := c.Annotate(t, "client", v1alpha1.AnnotationMaxRate, "")
	c.WaitForUse(t, r, lifted, paths...)
	r.Finish(t)
	rates := r.Wire.Rates(limited.Add(1500*time.Millisecond), lifted)
	t.Logf("%s: %v", r, rates)
	if rate := rates.Of(paths); rate > 12*testlab.Slack || rate < 12/2 {
		t.Errorf("the pod sends %.1f Mbit/s in all, and wants to send 12", rate)
	}
}

// shopGuardrails let the shop use two of the three paths, and each of its pods
// send so much.
const shopGuardrails = testlab.GuardrailsOfShop + `
  paths: [blue, green]
  maxPodRate: 20M
`

// podRate is maxPodRate in Mbit/s.
const podRate = 20

// eventsOn lists the Warning Events on a pod of the shop, as reason and message.
func (c *cluster) eventsOn(ctx context.Context, name string, since time.Time) ([]string, error) {
	var list corev1.EventList
	if err := c.Client.List(ctx, &list, client.InNamespace("shop")); err != nil {
		return nil, err
	}
	var told []string
	for _, e := range list.Items {
		if e.InvolvedObject.Kind == "Pod" && e.InvolvedObject.Name == name && e.Type == corev1.EventTypeWarning && e.EventTime.After(since) {
			told = append(told, e.Reason+" "+e.Message)
		}
	}
	return told, nil
}

// Whatever a tenant's annotation asks for, an Event on the pod says what is wrong
// with it and what is allowed, and on the wire the pod stays within the guardrails.
func TestAHintBeyondTheGuardrailsIsToldAndNotFollowed(t *testing.T) {
	for _, hint := range []struct{ name, key, value, reason, allowed string }{
		{"a forbidden path", v1alpha1.AnnotationPreferredPaths, "red", v1alpha1.ReasonHintPathNotAllowed, "the pod may use blue, green"},
		{"an unknown path", v1alpha1.AnnotationPreferredPaths, "purple", v1alpha1.ReasonHintPathNotFound, "the pod may use blue, green"},
		{"too high a rate", v1alpha1.AnnotationMaxRate, "1G", v1alpha1.ReasonHintRateTooHigh, "allow a pod 20M"},
		{"a malformed annotation", v1alpha1.AnnotationPreferredPaths, "[red]", v1alpha1.ReasonHintMalformed, "the pod may use blue, green"},
	} {
		t.Run(hint.name, func(t *testing.T) {
			c := use(t)
			policy := shop.Policy(v1alpha1.SubflowManagerAgent)
			c.Spread(t, policy, 2)
			c.Apply(t, shopGuardrails)
			since := time.Now().Add(-time.Second)
			c.Annotate(t, "client", hint.key, hint.value)
			c.WaitFor(t, "the pod's owner is told", 30*time.Second, func(ctx context.Context) error {
				told, err := c.eventsOn(ctx, "client", since)
				if err == nil && (len(told) != 1 || !strings.HasPrefix(told[0], hint.reason+" "+hint.key+": ") || !strings.Contains(told[0], hint.allowed)) {
					err = fmt.Errorf("the Events are %q", told)
				}
				return err
			})
			c.waitForHints(t, "client", hint.key+" Refused")
			c.WaitProgrammed(t, policy, 2)
			r := c.Run(t, testlab.NewTransfer("client", "server", 4, traffic.Up, 5*time.Second))
			expectWithin(t, r)
		})
	}
}

// expectWithin: the paths that are allowed carried what is allowed, and the other
// one nothing.
func expectWithin(t *testing.T, r *testlab.Running) {
	t.Helper()
	steady := r.Shares(2*testlab.Warmup, r.Duration)
	t.Logf("%s: %v", r, steady)
	if steady["red"] > testlab.Stray {
		t.Errorf("%s: the forbidden path carries %.1f Mbit/s", r, steady["red"])
	}
	if rate := steady.Of(paths); rate > podRate*testlab.Slack || rate < podRate/2 {
		t.Errorf("%s: the pod sends %.1f Mbit/s in all, and may send %d", r, rate, podRate)
	}
}

// A tenant who may not use a path cannot use it by a policy either, nor by having
// somebody else begin the connection.
func TestAPolicyBeyondTheGuardrailsIsToldAndKeptWithin(t *testing.T) {
	c := use(t)
	policy := shop.Policy(v1alpha1.SubflowManagerAgent)
	policy.Spec.Paths.Allowed = []v1alpha1.PathName{"red"}
	c.Apply(t, shopGuardrails)
	c.Spread(t, policy, 2)
	c.WaitFor(t, "the policy says what is not allowed", 30*time.Second, func(ctx context.Context) error {
		if err := c.Get(ctx, policy); err != nil {
			return err
		}
		for _, condition := range policy.Status.Conditions {
			if condition.Type == v1alpha1.ConditionAccepted && condition.Reason == v1alpha1.ReasonPathNotAllowed {
				return nil
			}
		}
		return fmt.Errorf("its status is %+v", policy.Status)
	})
	for _, direction := range []traffic.Direction{traffic.Up, traffic.Down} {
		r := c.Run(t, testlab.NewTransfer("client", "server", 4, direction, 5*time.Second))
		expectWithin(t, r)
	}
}

// A tenant gets past guardrails neither by deleting its policies nor by never
// having any: the pods stay as they are, within the guardrails.
func TestGuardrailsHoldForPodsThatNoOtherPolicySelects(t *testing.T) {
	for _, rails := range []struct{ name, paths, path string }{
		{"on the route of the cluster's network", "", "blue"},
		{"on a path that the guardrails choose", "  paths: [green]\n", "green"},
	} {
		t.Run(rails.name, func(t *testing.T) {
			c := use(t)
			c.CreatePaths(t)
			c.Apply(t, strings.Replace(shopGuardrails, "  paths: [blue, green]\n", rails.paths, 1))
			c.WaitFor(t, "the guardrails are programmed", 30*time.Second, func(ctx context.Context) error {
				guardrails := &v1alpha1.MPTCPGuardrail{ObjectMeta: metav1.ObjectMeta{Name: "tenants"}}
				if err := c.Get(ctx, guardrails); err != nil {
					return err
				}
				if !testlab.IsTrue(guardrails.Status.Conditions, v1alpha1.ConditionProgrammed, guardrails.Generation) || guardrails.Status.PodsProgrammed != 2 {
					return fmt.Errorf("the status is %+v", guardrails.Status)
				}
				return nil
			})
			for _, version := range []int{4, 6} {
				r := c.Run(t, testlab.NewTransfer("client", "server", version, traffic.Up, 4*time.Second))
				expectWithin(t, r)
				if others := r.Shares(2*testlab.Warmup, r.Duration).Of(without([]string{rails.path})); others > testlab.Stray {
					t.Errorf("%s: paths other than %s carry %.1f Mbit/s", r, rails.path, others)
				}
			}
		})
	}
}
