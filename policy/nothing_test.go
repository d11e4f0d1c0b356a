// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"braid.dev/braid/api/v1alpha1"
)

func TestTheSelectorThatMatchesNothingIsNamed(t *testing.T) {
	labelled := func(value string) metav1.LabelSelector {
		return metav1.LabelSelector{MatchLabels: map[string]string{"is": value}}
	}
	for _, test := range []struct {
		name             string
		namespaces, pods metav1.LabelSelector
		cluster, own     string
	}{
		{
			"a pod selector with a typo, beside a namespace selector that matches", labelled("shop"), labelled("wbe"),
			"no running pod is selected: spec.namespaceSelector matches 1 namespace, and spec.podSelector no pod there",
			"no running pod is selected: spec.podSelector matches none of its namespace",
		},
		{
			"a namespace selector with a typo, beside a pod selector that would match", labelled("shpo"), labelled("web"),
			"no running pod is selected: spec.namespaceSelector matches no namespace", "",
		},
		{
			"namespaces without pods", labelled("empty"), metav1.LabelSelector{},
			"no running pod is selected: spec.namespaceSelector matches 1 namespace without a running pod", "",
		},
		{
			"an operator that does not exist", metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Like"}}}, metav1.LabelSelector{},
			"no running pod is selected", "",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			in := Input{
				Namespaces: []corev1.Namespace{
					{ObjectMeta: metav1.ObjectMeta{Name: "shop", Labels: map[string]string{"is": "shop"}}},
					{ObjectMeta: metav1.ObjectMeta{Name: "empty", Labels: map[string]string{"is": "empty"}}},
				},
				ClusterPolicies: []v1alpha1.ClusterMPTCPPolicy{{ObjectMeta: metav1.ObjectMeta{Name: "all"}, Spec: v1alpha1.ClusterMPTCPPolicySpec{
					NamespaceSelector: test.namespaces, PodSelector: test.pods,
				}}},
				Policies: []v1alpha1.MPTCPPolicy{{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "own"}, Spec: v1alpha1.MPTCPPolicySpec{PodSelector: test.pods}}},
			}
			for _, result := range Compile(in).Policies {
				switch {
				case result.Policy.Name == "all":
					require.Equal(t, test.cluster, result.NothingSelected())
				case test.own != "":
					require.Equal(t, test.own, result.NothingSelected())
				}
			}
		})
	}
	alone := Compile(Input{Policies: []v1alpha1.MPTCPPolicy{{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "own"}}}}).Policies[0]
	require.Equal(t, "no running pod is selected: its namespace has none", alone.NothingSelected())
}
