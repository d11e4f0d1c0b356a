// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/policy"
)

// waitForExempt waits until the plan of node-a exempts exactly these pods.
func (h *hinted) waitForExempt(pods ...types.UID) {
	h.t.Helper()
	h.eventually(func() error {
		plan, err := h.plan("node-a")
		if err != nil || plan == nil || plan.Spec.NewPods == nil {
			return fmt.Errorf("the plan is %+v: %w", plan, err)
		}
		var exempt []types.UID
		for _, pod := range plan.Spec.NewPods.Exempt {
			exempt = append(exempt, pod.UID)
		}
		if !slices.Equal(exempt, pods) {
			return fmt.Errorf("exempt are %v, want %v", exempt, pods)
		}
		return nil
	})
}

func TestThePlanTellsNewPodsFromThoseThatNobodyGuards(t *testing.T) {
	h := newHinted(t)
	h.startController(apiServer)
	h.waitForEndpoint(prefers())
	if plan, err := h.plan("node-a"); err != nil || plan.Spec.NewPods != nil {
		t.Fatalf("without being asked it says %+v of new pods (%v)", plan.Spec.NewPods, err)
	}
	change(h.cluster, h.guardrails, func(p *v1alpha1.MPTCPGuardrail) {
		p.Spec.NewPods, p.Spec.PodSelector.MatchLabels, p.Spec.TenantPaths = v1alpha1.NewPodsGuard, map[string]string{"app": "guarded"}, nil
	})
	h.waitForExempt() // the pod is an endpoint by its policy
	starting := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: h.namespace, Name: "starting", Labels: map[string]string{"app": "free"}},
		Spec:       corev1.PodSpec{NodeName: "node-a", Containers: []corev1.Container{{Name: "c", Image: "c"}}},
	}
	h.create(starting) // and no address
	h.waitForExempt(starting.UID)
	change(h.cluster, starting, func(p *corev1.Pod) { p.Labels["app"] = "guarded" })
	h.waitForExempt()
	change(h.cluster, starting, func(p *corev1.Pod) { p.Labels["app"] = "free" })
	h.waitForExempt(starting.UID)
	h.delete(starting)
	h.waitForExempt()
	h.delete(h.guardrails)
	h.eventually(func() error {
		if plan, err := h.plan("node-a"); err != nil || plan.Spec.NewPods != nil {
			return fmt.Errorf("the plan still says %+v of new pods: %w", plan.Spec.NewPods, err)
		}
		return nil
	})
}

func TestPodsWithoutAnAddressCauseARunWhereTheyCanBeExempt(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop"}, Spec: corev1.PodSpec{NodeName: "n"}}
	for _, tc := range []struct {
		result policy.Result
		want   bool
	}{
		{policy.Result{}, false},
		{policy.Result{GuardsNewPods: true}, true},
		{policy.Result{GuardsNewPods: true, WhollyGuarded: map[string]bool{"shop": true}}, false},
	} {
		compiled := newShared[policy.Result]()
		compiled.publish(&tc.result)
		if got := (podChanged{compiled: compiled}).Create(event.CreateEvent{Object: pod}); got != tc.want {
			t.Errorf("with %+v it causes a run: %t", tc.result, got)
		}
	}
}
