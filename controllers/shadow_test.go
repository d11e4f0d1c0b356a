// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/policy"
)

func TestWhatAnotherPolicyKeepsFromWorkingIsNamed(t *testing.T) {
	pod := policy.PodRef{Namespace: "shop", Name: "web"}
	by := v1alpha1.PolicyReference{Kind: policy.KindClusterPolicy, Name: "ground"}
	blocks := []string{"spec.paths", "spec.rules"}
	tests := map[string]struct {
		result  policy.PolicyResult
		reason  string
		message string
	}{
		"all of a policy for which another one decides": {
			policy.PolicyResult{Blocks: blocks, Overridden: []policy.Override{{Pod: pod, By: by}}}, v1alpha1.ReasonOverridden,
			"another policy takes precedence for 1 of 1 selected pods: ClusterMPTCPPolicy ground decides for shop/web; without effect there: spec.paths, spec.rules",
		},
		"all but the rules of one of the cluster": {
			policy.PolicyResult{Blocks: blocks, Overridden: []policy.Override{{Pod: pod, By: by}}, RulesOnly: []policy.PodRef{pod}}, v1alpha1.ReasonOverridden,
			"another policy takes precedence for 1 of 1 selected pods: ClusterMPTCPPolicy ground decides for shop/web; without effect there: spec.paths; the rules run for 1 of them all the same",
		},
		"rules behind one that lets nothing through": {
			policy.PolicyResult{Blocks: blocks, Decides: []policy.PodRef{pod}, RulesShadowed: []policy.RulesShadowed{{Pod: pod, Rule: "joins", Rules: 2, By: by, ByRule: "refuse"}}}, v1alpha1.ReasonRulesShadowed,
			"for 1 of 1 pods 2 rules never run; shop/web: rule refuse of ClusterMPTCPPolicy ground drops or resets everything that rule joins matches",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			c := effective(&test.result, 3)
			require.Equal(t, metav1.ConditionFalse, c.Status)
			require.Equal(t, test.reason, c.Reason)
			require.Equal(t, test.message, c.Message)
		})
	}
}
