// SPDX-License-Identifier: Apache-2.0

package attacks_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/e2e/testlab"
	"braid.dev/braid/hack/lab"
)

// pace is between two requests of a flood of the API server: what it costs that one is not
// Braid's, and it shares this machine's processors with the victims.
const pace = 25 * time.Millisecond

// refused notes what the API server allowed that it must not.
func (s *scene) refused(what string, err error) {
	if err == nil {
		s.escaped("%s is allowed", what)
	} else if !apierrors.IsForbidden(err) {
		s.escaped("%s fails with another error than that it is forbidden: %v", what, err)
	}
}

func writeAsAdmin(t *testing.T, s *scene) {
	meta := metav1.ObjectMeta{Name: "mallory", Namespace: tenant}
	wide, system := metav1.ObjectMeta{Name: "mallory"}, metav1.ObjectMeta{Name: "mallory", Namespace: lab.SystemNamespace}
	for _, object := range []client.Object{
		&v1alpha1.MPTCPPath{ObjectMeta: wide}, &v1alpha1.ClusterMPTCPPolicy{ObjectMeta: wide}, &v1alpha1.MPTCPGuardrail{ObjectMeta: wide},
		&v1alpha1.MPTCPNode{ObjectMeta: wide}, &v1alpha1.MPTCPNodePlan{ObjectMeta: wide},
		&v1alpha1.MPTCPPolicy{ObjectMeta: metav1.ObjectMeta{Name: "mallory", Namespace: "shop"}},
		&corev1.ConfigMap{ObjectMeta: system}, &coordinationv1.Lease{ObjectMeta: system},
	} {
		s.refused(fmt.Sprintf("creating %T", object), s.asTenant.Create(t.Context(), object))
	}
	s.refused("changing the tenant's guardrail", s.asTenant.DeleteAllOf(t.Context(), &v1alpha1.MPTCPGuardrail{}))
	merge := func(patch string) client.Patch { return client.RawPatch("application/merge-patch+json", []byte(patch)) }
	s.refused("changing a pod's address", s.asTenant.Status().Patch(t.Context(), pod(tenant, "mallory"), merge(`{"status":{"podIP":"10.244.1.2"}}`)))
	s.refused("changing the namespace's labels", s.asTenant.Patch(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: tenant}}, merge(`{"metadata":{"labels":{"a":"b"}}}`)))
	own := &v1alpha1.MPTCPPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: meta.Namespace, Name: "spread"}}
	s.refused("changing the status of a policy", s.asTenant.Status().Patch(t.Context(), own, merge(`{"status":{"podsSelected":7}}`)))
	for _, list := range []client.ObjectList{&v1alpha1.MPTCPNodePlanList{}, &v1alpha1.MPTCPNodeList{}, &v1alpha1.MPTCPGuardrailList{}} {
		s.refused(fmt.Sprintf("listing %T", list), s.asTenant.List(t.Context(), list))
	}
	s.wait()
}

// annotate sets annotations of mallory's, which are taken away at the end.
func (s *scene) annotate(t *testing.T, annotations map[string]string) error {
	object := pod(tenant, "mallory")
	if err := s.asTenant.Get(t.Context(), client.ObjectKeyFromObject(object), object); err != nil {
		return err
	}
	before := client.MergeFrom(object.DeepCopy())
	object.Annotations = annotations
	return s.asTenant.Patch(t.Context(), object, before)
}

func flapHints(t *testing.T, s *scene) {
	t.Cleanup(func() { s.restore(t, pod(tenant, "mallory"), app("client")) })
	hints := []string{"blue", "green", "red", "none", "blue,green,red", ""}
	for i := 0; s.going(); i++ {
		err := s.annotate(t, map[string]string{v1alpha1.AnnotationPreferredPaths: hints[i%len(hints)], v1alpha1.AnnotationMaxRate: fmt.Sprint(i, "G")})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(pace)
	}
	s.expectFewEvents(t)
}

// mostEvents is more than a pod gets before they come one in five minutes.
const mostEvents = 30

func (s *scene) expectFewEvents(t *testing.T) {
	t.Helper()
	var events eventsv1.EventList
	if err := s.Client.List(t.Context(), &events, client.InNamespace(tenant)); err != nil {
		t.Fatal(err)
	}
	about := 0
	for _, event := range events.Items {
		if event.Regarding.Name == "mallory" {
			about++
		}
	}
	if about > mostEvents {
		s.escaped("the controller wrote %d Events about one pod", about)
	}
}

func annotateMuch(t *testing.T, s *scene) {
	t.Cleanup(func() { s.restore(t, pod(tenant, "mallory"), app("client")) })
	for s.going() {
		err := s.annotate(t, map[string]string{
			v1alpha1.AnnotationPreferredPaths: strings.Repeat("blue,", 30_000) + fmt.Sprint(rand.Int()),
			v1alpha1.AnnotationMaxRate:        strings.Repeat("9", 50_000) + "\n\x01\u202e",
		})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * pace)
	}
}

func flapLabels(t *testing.T, s *scene) {
	object := pod(tenant, "mallory")
	t.Cleanup(func() { s.restore(t, object, app("client")) })
	for i := 0; s.going(); i++ {
		labels := fmt.Sprintf(`{"metadata":{"labels":{"app":%q}}}`, []string{"client", "other"}[i%2])
		if err := s.asTenant.Patch(t.Context(), object, client.RawPatch("application/merge-patch+json", []byte(labels))); err != nil {
			t.Fatal(err)
		}
		time.Sleep(pace)
	}
}

// tenantPolicy is a further policy of the tenant's, with the priority to win.
func tenantPolicy(name string) *v1alpha1.MPTCPPolicy {
	policy := testlab.NewPolicy(tenant, "client", "server")
	policy.Name, policy.Spec.Priority = name, 100
	return policy
}

// deletePolicies deletes the tenant's policies but its first one.
func (s *scene) deletePolicies(t *testing.T) {
	t.Helper()
	var policies v1alpha1.MPTCPPolicyList
	if err := s.Client.List(s.background(), &policies, client.InNamespace(tenant)); err != nil {
		t.Fatal(err)
	}
	for _, policy := range policies.Items {
		if policy.Name == "spread" {
			continue
		}
		if err := s.Client.Delete(s.background(), &policy); err != nil {
			t.Error(err)
		}
	}
}

func (*scene) background() context.Context { return context.Background() }

func manyPolicies(t *testing.T, s *scene) {
	t.Cleanup(func() { s.deletePolicies(t) })
	var values []string
	for i := range 500 {
		values = append(values, fmt.Sprint("value-", i))
	}
	for i := 0; s.going(); i++ {
		policy := tenantPolicy(fmt.Sprint("many-", i))
		policy.Spec.PodSelector.MatchExpressions = append(policy.Spec.PodSelector.MatchExpressions,
			metav1.LabelSelectorRequirement{Key: "app", Operator: metav1.LabelSelectorOpNotIn, Values: values})
		if err := s.asTenant.Create(t.Context(), policy); err != nil {
			t.Fatal(err)
		}
		time.Sleep(pace)
	}
}

func manyRules(t *testing.T, s *scene) {
	t.Cleanup(func() { s.deletePolicies(t) })
	policy := tenantPolicy("rules")
	for i := range 500 {
		policy.Spec.Rules = append(policy.Spec.Rules, v1alpha1.Rule{Name: fmt.Sprint("rule-", i), Actions: []v1alpha1.Action{{Type: v1alpha1.ActionRecord}}})
	}
	if err := s.asTenant.Create(t.Context(), policy); err == nil {
		s.escaped("a policy of 500 rules is allowed")
	}
	policy.Spec.Rules = policy.Spec.Rules[:8]
	if err := s.asTenant.Create(t.Context(), policy); err != nil {
		t.Fatal(err)
	}
	for i := 0; s.going(); i++ {
		change := fmt.Sprintf(`[{"op":"replace","path":"/spec/rules/0/name","value":"again-%d"}]`, i)
		if err := s.asTenant.Patch(t.Context(), policy, client.RawPatch("application/json-patch+json", []byte(change))); err != nil {
			t.Fatal(err)
		}
		time.Sleep(pace)
	}
}

// firstRule is the first attempt: no agent has loaded what rules need.
func firstRule(t *testing.T, s *scene) {
	t.Cleanup(func() { s.deletePolicies(t) })
	policy := tenantPolicy("first")
	policy.Spec.Rules = []v1alpha1.Rule{{Name: "record", Actions: []v1alpha1.Action{{Type: v1alpha1.ActionRecord}}}}
	if err := s.asTenant.Create(t.Context(), policy); err != nil {
		t.Fatal(err)
	}
	s.wait()
}

func churnPods(t *testing.T, s *scene) {
	for i := 0; s.going(); i++ {
		object := pod(tenant, fmt.Sprint("churn-", i))
		object.Labels = app("client")
		object.Spec = corev1.PodSpec{NodeName: "node1", Containers: []corev1.Container{{Name: "one", Image: "none"}}}
		if err := s.asTenant.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
		if err := s.asTenant.Delete(t.Context(), object, client.GracePeriodSeconds(0)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(pace)
	}
}

func floodEvents(t *testing.T, s *scene) {
	for s.going() {
		event := &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{Namespace: tenant, GenerateName: "flood-"},
			InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: tenant, Name: "mallory"},
			Reason:         "HintNotAllowed", Message: strings.Repeat("x", 1000), Type: corev1.EventTypeWarning,
		}
		// Not every cluster lets those who edit write events.
		if err := s.asTenant.Create(t.Context(), event); err != nil && !apierrors.IsForbidden(err) {
			t.Fatal(err)
		}
		time.Sleep(pace)
	}
}

// ruleTheHost has a pod with its node's own address, as a kubelet reports one of the host's
// network.
func ruleTheHost(t *testing.T, s *scene) {
	t.Cleanup(func() { s.deletePolicies(t) })
	object := pod(tenant, "host")
	object.Labels = app("host")
	object.Spec = corev1.PodSpec{NodeName: "node1", HostNetwork: true, Containers: []corev1.Container{{Name: "one", Image: "none"}}}
	if err := s.asTenant.Create(t.Context(), object); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Client.Delete(s.background(), object, client.GracePeriodSeconds(0)); err != nil {
			t.Error(err)
		}
	})
	address := s.mallory.Node.Address(0, 4)
	object.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: address, PodIPs: []corev1.PodIP{{IP: address}}}
	if err := s.Client.Status().Update(t.Context(), object); err != nil {
		t.Fatal(err)
	}
	policy := tenantPolicy("host")
	policy.Spec.PodSelector = metav1.LabelSelector{MatchLabels: app("host")}
	policy.Spec.Rules = []v1alpha1.Rule{{Name: "drop", Actions: []v1alpha1.Action{{Type: v1alpha1.ActionDrop}}}}
	if err := s.asTenant.Create(t.Context(), policy); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Until(s.until))
	plan := &v1alpha1.MPTCPNodePlan{ObjectMeta: metav1.ObjectMeta{Name: "node1"}}
	if err := s.Get(t.Context(), plan); err != nil {
		t.Fatal(err)
	}
	for _, endpoint := range plan.Spec.Endpoints {
		if endpoint.Name == "host" {
			s.escaped("the plan has an endpoint with the node's address")
		}
	}
}
