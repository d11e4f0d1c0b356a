// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/policy"
)

func TestAPolicySaysWhatItsPodsTrafficDoes(t *testing.T) {
	pod := policy.PodRef{Namespace: "ns", Name: "pod", UID: "u", Node: "n"}
	decides := &policy.PolicyResult{Policy: v1alpha1.PolicyReference{Kind: policy.KindPolicy, Namespace: "ns", Name: "p", Generation: 3}, Decides: []policy.PodRef{pod}}
	told := func(s *scene, result *policy.PolicyResult) *metav1.Condition {
		s.judge()
		return meta.FindStatusCondition(newVerdict(s.observation, result).status.Conditions, v1alpha1.ConditionSpreading)
	}
	s := newScene()
	c := told(s, decides)
	require.Equal(t, v1alpha1.ReasonNotReported, c.Reason, "an agent of an earlier version tells nothing")
	require.Equal(t, int64(3), c.ObservedGeneration)

	s.plans["n"].Status.Endpoints[0].Spreading = &v1alpha1.SpreadingStatus{State: v1alpha1.SpreadingNotSpread, Reason: v1alpha1.ReasonPlainTCP, Message: "its sockets are plain TCP"}
	c = told(s, decides)
	require.Equal(t, metav1.ConditionFalse, c.Status)
	require.Equal(t, v1alpha1.ReasonPlainTCP, c.Reason)
	require.Contains(t, c.Message, "ns/pod: PlainTCP: its sockets are plain TCP")

	s.silent["n"] = "gone quiet"
	require.Equal(t, v1alpha1.ReasonNotReported, told(s, decides).Reason, "what a silent agent told last counts for nothing")

	rulesOnly := &policy.PolicyResult{Policy: decides.Policy, RulesOnly: decides.Decides}
	require.Nil(t, told(s, rulesOnly), "a policy that decides for no pod spreads no traffic")
}

func TestPodsOfAPolicyAreCountedByWhatTheirTrafficDoes(t *testing.T) {
	counted := &trafficCollector{description: policyPods.description}
	require.Zero(t, collect(counted), "nothing was told yet")
	told := verdicts{
		{Kind: policy.KindPolicy, Namespace: "shop", Name: "spread", Generation: 2}: {traffic: map[string]int{v1alpha1.ReasonSpread: 3, v1alpha1.ReasonPlainTCP: 1}},
		{Kind: policy.KindClusterPolicy, Name: "idle"}:                              {},
	}
	counted.told.Store(&told)
	require.Equal(t, 2, collect(counted))
}

// collect counts the series of a collector.
func collect(c prometheus.Collector) int {
	metrics := make(chan prometheus.Metric, 10)
	c.Collect(metrics)
	return len(metrics)
}
