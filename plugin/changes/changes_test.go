// SPDX-License-Identifier: Apache-2.0

package changes

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/policy"
)

func cluster(policies ...v1alpha1.MPTCPPolicy) policy.Result {
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "a"}, Spec: corev1.PodSpec{NodeName: "node1"}}
	pod.Status.Phase, pod.Status.PodIPs = corev1.PodRunning, []corev1.PodIP{{IP: "10.0.0.1"}}
	blue := v1alpha1.MPTCPPath{ObjectMeta: metav1.ObjectMeta{Name: "blue"}}
	blue.Spec.Interfaces = []v1alpha1.InterfacePattern{"ens1"}
	return policy.Compile(policy.Input{
		Paths: []v1alpha1.MPTCPPath{blue}, Policies: policies, Pods: []corev1.Pod{pod},
		Namespaces: []corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}}, Nodes: []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "node1"}}},
	})
}

func named(name string, change func(*v1alpha1.MPTCPPolicySpec)) v1alpha1.MPTCPPolicy {
	made := v1alpha1.MPTCPPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}}
	change(&made.Spec)
	return made
}

func TestPodsThatAreTreatedOtherwiseAreNamed(t *testing.T) {
	all := func(*v1alpha1.MPTCPPolicySpec) {}
	none := func(s *v1alpha1.MPTCPPolicySpec) { s.Paths.Spread = v1alpha1.SpreadNone }
	for name, test := range map[string]struct {
		before, after policy.Result
		then          string
	}{
		"one that a policy selects":         {cluster(), cluster(named("a", all)), "MPTCPPolicy shop/a; over blue (1); subflows: 1"},
		"one that none selects any more":    {cluster(named("a", all)), cluster(), "left alone"},
		"one that is spread over no path":   {cluster(named("a", all)), cluster(named("a", none)), "MPTCPPolicy shop/a; over no path"},
		"one that prefers a path":           {cluster(named("a", all)), cluster(named("a", func(s *v1alpha1.MPTCPPolicySpec) { s.Paths.Preferred = []v1alpha1.PathName{"blue"} })), "MPTCPPolicy shop/a; over blue (1); subflows: 1; preferring blue"},
		"none where all stays as it was":    {cluster(named("a", all)), cluster(named("a", all)), ""},
		"none where another policy goes on": {cluster(named("a", all)), cluster(named("a", all), named("b", all)), ""},
	} {
		t.Run(name, func(t *testing.T) {
			changed := Pods(&test.before, &test.after)
			if test.then == "" {
				require.Empty(t, changed)
				return
			}
			require.Len(t, changed, 1)
			require.Equal(t, test.then, changed[0].After)
		})
	}
}

func TestAPolicyThatHasNoEffectSaysWhy(t *testing.T) {
	after := cluster(named("a", func(*v1alpha1.MPTCPPolicySpec) {}), named("b", func(s *v1alpha1.MPTCPPolicySpec) { s.Paths.Allowed = []v1alpha1.PathName{"grren"} }))
	b := Of(&after, "MPTCPPolicy", "shop", "b")
	require.Equal(t, 1, b.Overridden)
	require.Equal(t, []string{"there is no path grren", "MPTCPPolicy shop/a decides for shop/web"}, b.Remarks)
	require.Nil(t, Of(&after, "MPTCPPolicy", "shop", "c"))
}

// A typo in a selector shows, also where another policy selects all pods.
func TestASelectorThatMatchesNothingBesideAnotherThatDoesIsTold(t *testing.T) {
	some, typo := map[string]string{"app": "web"}, metav1.LabelSelector{MatchLabels: map[string]string{"app": "wbe"}}
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "a", Labels: some}, Spec: corev1.PodSpec{NodeName: "node1"}}
	pod.Status.Phase, pod.Status.PodIPs = corev1.PodRunning, []corev1.PodIP{{IP: "10.0.0.1"}}
	wide := v1alpha1.ClusterMPTCPPolicy{ObjectMeta: metav1.ObjectMeta{Name: "wide"}}
	wide.Spec.NamespaceSelector = typo
	tenants, guarded := v1alpha1.MPTCPGuardrail{ObjectMeta: metav1.ObjectMeta{Name: "tenants"}}, v1alpha1.MPTCPGuardrail{ObjectMeta: metav1.ObjectMeta{Name: "guarded"}}
	tenants.Spec.PodSelector = typo
	after := policy.Compile(policy.Input{
		Policies: []v1alpha1.MPTCPPolicy{
			named("all", func(*v1alpha1.MPTCPPolicySpec) {}), named("typo", func(s *v1alpha1.MPTCPPolicySpec) { s.PodSelector = typo }),
		},
		ClusterPolicies: []v1alpha1.ClusterMPTCPPolicy{wide}, Guardrails: []v1alpha1.MPTCPGuardrail{tenants, guarded}, Pods: []corev1.Pod{pod},
		Namespaces: []corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}}, Nodes: []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "node1"}}},
	})
	for _, test := range []struct {
		kind, namespace, name string
		remark                string
	}{
		{"MPTCPPolicy", "shop", "all", ""},
		{"MPTCPPolicy", "shop", "typo", "no running pod is selected: spec.podSelector matches none of its namespace"},
		{"ClusterMPTCPPolicy", "", "wide", "no running pod is selected: spec.namespaceSelector matches no namespace"},
		{"MPTCPGuardrail", "", "tenants", "no running pod is selected: spec.namespaceSelector matches 1 namespace, and spec.podSelector no pod there"},
		{"MPTCPGuardrail", "", "guarded", ""},
	} {
		found := Of(&after, test.kind, test.namespace, test.name)
		require.NotNil(t, found, test.name)
		if test.remark != "" {
			require.Equal(t, []string{test.remark}, found.Remarks, test.name)
		} else {
			require.Empty(t, found.Remarks, test.name)
		}
	}
}
