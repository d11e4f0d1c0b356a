// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"braid.dev/braid/api/v1alpha1"
)

// newPodRails selects the pods of the tenant's namespace, and guards new ones.
func newPodRails(name string, change func(*v1alpha1.MPTCPGuardrailSpec)) v1alpha1.MPTCPGuardrail {
	g := v1alpha1.MPTCPGuardrail{ObjectMeta: metav1.ObjectMeta{Name: name}}
	g.Spec.NamespaceSelector.MatchLabels = map[string]string{"tenant": "yes"}
	g.Spec.NewPods = v1alpha1.NewPodsGuard
	change(&g.Spec)
	return g
}

func rate(text string) *resource.Quantity { return new(resource.MustParse(text)) }

// tenants are two namespaces, of which guardrails select one, with a pod each.
func tenants(rails ...v1alpha1.MPTCPGuardrail) Input {
	guarded, free := runningPod("guarded", "10.0.0.1"), runningPod("free", "10.0.0.2")
	guarded.Namespace, free.Namespace = "tenant", "other"
	return Input{
		Guardrails: rails,
		Paths:      []v1alpha1.MPTCPPath{{ObjectMeta: metav1.ObjectMeta{Name: "blue"}}},
		Nodes:      []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "node"}}},
		Namespaces: []corev1.Namespace{
			{ObjectMeta: metav1.ObjectMeta{Name: "tenant", Labels: map[string]string{"tenant": "yes"}}}, {ObjectMeta: metav1.ObjectMeta{Name: "other"}},
		},
		Pods: []corev1.Pod{guarded, free},
	}
}

func TestNewPodsAreHeldToTheStrictestOfTheGuardrailsThatGuardThem(t *testing.T) {
	two := newPodRails("two", func(s *v1alpha1.MPTCPGuardrailSpec) { s.MaxPodRate = rate("2M") })
	none := newPodRails("none", func(s *v1alpha1.MPTCPGuardrailSpec) { s.SpoofCheck = v1alpha1.SpoofCheckOff })
	pass := newPodRails("pass", func(s *v1alpha1.MPTCPGuardrailSpec) { s.NewPods, s.MaxPodRate = v1alpha1.NewPodsPass, rate("1M") })
	ceilings := newPodRails("ceilings", func(s *v1alpha1.MPTCPGuardrailSpec) {
		s.SpoofCheck = v1alpha1.SpoofCheckOff
		s.TenantPaths = []v1alpha1.TenantPath{{Path: "blue", MaxRate: rate("3M")}, {Path: "gone", MaxRate: rate("1M")}, {Path: "blue", Weight: new(int32(3))}}
	})
	invalid := newPodRails("invalid", func(s *v1alpha1.MPTCPGuardrailSpec) {
		s.MaxPodRate = rate("1M")
		s.PodSelector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "k", Operator: "Near"}}
	})
	for _, tc := range []struct {
		name  string
		rails []v1alpha1.MPTCPGuardrail
		want  *v1alpha1.PlanNewPods
	}{
		{"none", nil, nil},
		{"one that lets them pass", []v1alpha1.MPTCPGuardrail{pass}, nil},
		{"one that asks nothing", []v1alpha1.MPTCPGuardrail{none}, nil},
		{"one that cannot be compiled", []v1alpha1.MPTCPGuardrail{invalid}, nil},
		{"a rate, and the check", []v1alpha1.MPTCPGuardrail{two}, &v1alpha1.PlanNewPods{MaxRate: 2_000_000, SpoofCheck: true}},
		{"the lowest ceiling of paths that the node has", []v1alpha1.MPTCPGuardrail{ceilings}, &v1alpha1.PlanNewPods{MaxRate: 3_000_000}},
		{"all of them", []v1alpha1.MPTCPGuardrail{none, ceilings, two, pass}, &v1alpha1.PlanNewPods{MaxRate: 2_000_000, SpoofCheck: true}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			in := tenants(tc.rails...)
			in.Pods = nil // it need not have any
			got := Compile(in).Plans["node"].NewPods
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestPodsThatNoGuardrailForNewPodsSelectsAreExempt(t *testing.T) {
	rails := newPodRails("tenants", func(s *v1alpha1.MPTCPGuardrailSpec) { s.MaxPodRate = rate("2M") })
	exempt := func(uid types.UID, addresses ...string) []v1alpha1.PlanExemptPod {
		return []v1alpha1.PlanExemptPod{{UID: uid, Addresses: addresses}}
	}
	for _, tc := range []struct {
		name   string
		change func(in *Input, free *corev1.Pod)
		want   []v1alpha1.PlanExemptPod
	}{
		{"one of another namespace", func(*Input, *corev1.Pod) {}, exempt("shop/free", "10.0.0.2")},
		{"one without an address", func(_ *Input, free *corev1.Pod) { free.Status.PodIPs = nil }, exempt("shop/free")},
		{"one that its cgroups name otherwise", func(_ *Input, free *corev1.Pod) {
			free.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "hash"}
		}, []v1alpha1.PlanExemptPod{{UID: "shop/free", CgroupUID: "hash", Addresses: []string{"10.0.0.2"}}}},
		{"not one of the host's network", func(_ *Input, free *corev1.Pod) { free.Spec.HostNetwork = true }, nil},
		{"not one that has ended", func(_ *Input, free *corev1.Pod) { free.Status.Phase = corev1.PodSucceeded }, nil},
		{"not one of another node", func(_ *Input, free *corev1.Pod) { free.Spec.NodeName = "gone" }, nil},
		{"not one of a namespace that is not known yet", func(in *Input, _ *corev1.Pod) { in.Namespaces = in.Namespaces[:1] }, nil},
		{"not one that is an endpoint", func(in *Input, _ *corev1.Pod) {
			in.Policies = append(in.Policies, v1alpha1.MPTCPPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: "all"}})
		}, nil},
		{"not one that is selected and has no address", func(_ *Input, free *corev1.Pod) {
			free.Namespace, free.Status.PodIPs = "tenant", nil
		}, nil},
		{"one that the guardrail leaves out", func(in *Input, free *corev1.Pod) {
			free.Namespace, free.Status.PodIPs = "tenant", nil
			in.Guardrails[0].Spec.PodSelector.MatchLabels = map[string]string{"app": "guarded"}
			in.Pods[0].Labels = map[string]string{"app": "guarded"}
		}, exempt("shop/free")},
	} {
		t.Run(tc.name, func(t *testing.T) {
			in := tenants(*rails.DeepCopy())
			in.Pods[1].UID = "shop/free"
			tc.change(&in, &in.Pods[1])
			if diff := cmp.Diff(tc.want, Compile(in).Plans["node"].NewPods.Exempt, cmpopts.EquateEmpty()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestPodsBeyondWhatAPlanCanExemptAreGuarded(t *testing.T) {
	in := tenants(newPodRails("tenants", func(*v1alpha1.MPTCPGuardrailSpec) {}))
	in.Pods = nil
	for i := range MaxExemptPods + 1 {
		pod := runningPod(fmt.Sprintf("pod-%04d", i), "10.0.0.1")
		pod.Namespace, pod.UID = "other", types.UID(pod.Name)
		in.Pods = append(in.Pods, pod)
	}
	exempt := Compile(in).Plans["node"].NewPods.Exempt
	if len(exempt) != MaxExemptPods || exempt[len(exempt)-1].UID != types.UID(in.Pods[MaxExemptPods-1].Name) {
		t.Errorf("%d pods are exempt", len(exempt))
	}
}

// Nobody that a guardrail for new pods selects is exempt, and of the others all that may
// have an interface are endpoints or exempt.
func TestEveryPodIsGuardedOrExempt(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawInput(t)
		plans := Compile(in).Plans
		for i := range in.Pods {
			pod := &in.Pods[i]
			plan, here := plans[pod.Spec.NodeName]
			if !here || plan.NewPods == nil {
				continue
			}
			exempt := slices.ContainsFunc(plan.NewPods.Exempt, func(e v1alpha1.PlanExemptPod) bool { return e.UID == pod.UID })
			endpoint := slices.ContainsFunc(plan.Endpoints, func(e v1alpha1.PlanEndpoint) bool { return e.UID == pod.UID })
			guarded := slices.ContainsFunc(in.railsOf(pod), func(rails *v1alpha1.Guardrails) bool { return rails.NewPods == v1alpha1.NewPodsGuard })
			known := slices.ContainsFunc(in.Namespaces, func(n corev1.Namespace) bool { return n.Name == pod.Namespace })
			if want := hasInterface(pod) && known && !endpoint && !guarded; exempt != want {
				t.Fatalf("pod %s: exempt %t, an endpoint %t, guarded %t", pod.Name, exempt, endpoint, guarded)
			}
		}
	})
}
