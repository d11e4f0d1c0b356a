// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/policy"
)

// twoPods have a policy each, on the scene's node.
func twoPods() *scene {
	s := newScene()
	other := s.result.Plans["n"].Endpoints[0]
	other.UID, other.Name, other.Policy.Name = "v", "other", "q"
	compiled := s.result.Plans["n"]
	compiled.Endpoints = append(compiled.Endpoints, other)
	s.result.Plans["n"] = compiled
	s.plans["n"].Spec = *compiled.DeepCopy()
	for _, e := range compiled.Endpoints {
		s.result.Policies = append(s.result.Policies, policy.PolicyResult{
			Policy: e.Policy, Decides: []policy.PodRef{{Namespace: e.Namespace, Name: e.Name, UID: e.UID, Node: "n"}},
		})
	}
	s.report(map[types.UID]v1alpha1.EndpointState{"u": v1alpha1.EndpointProgrammed, "v": v1alpha1.EndpointProgrammed})
	return s
}

// report is a new one of the node's agent.
func (s *scene) report(states map[types.UID]v1alpha1.EndpointState) {
	plan := s.plans["n"].DeepCopy()
	plan.ResourceVersion += "x"
	plan.Status.Endpoints = nil
	for pod, state := range states {
		plan.Status.Endpoints = append(plan.Status.Endpoints, v1alpha1.EndpointStatus{UID: pod, PolicyGeneration: 3, State: state})
	}
	s.plans["n"] = plan
}

func TestAReportIsToldOfThePoliciesWhosePodsItChangesAlone(t *testing.T) {
	s, judged := twoPods(), judgements{}
	var told verdicts
	look := func() verdicts {
		s.history.observe(s.plans)
		s.pods = judgePods(s.observation, s.history, judged)
		told = told.next(s.observation)
		return told
	}
	p, q := s.result.Policies[0].Policy, s.result.Policies[1].Policy
	first := look()
	s.report(map[types.UID]v1alpha1.EndpointState{"u": v1alpha1.EndpointProgrammed, "v": v1alpha1.EndpointProgrammed})
	if again := look(); again[p].status != first[p].status || again[q].status != first[q].status {
		t.Error("a report that says the same is told anew")
	}
	s.report(map[types.UID]v1alpha1.EndpointState{"u": v1alpha1.EndpointProgrammed, "v": v1alpha1.EndpointFailed})
	failed := look()
	if failed[p].status != first[p].status {
		t.Error("one pod's failure is told of the other one's policy")
	}
	if got := failed[q].status; got.PodsProgrammed != 0 || len(got.FailingNodes) != 1 {
		t.Errorf("the policy of the pod that failed has the status %+v", got)
	}
	s.silent["n"] = "gone quiet"
	if silent := look(); silent[p].status.PodsProgrammed != 0 || silent[q].status.PodsProgrammed != 0 {
		t.Error("a silent agent's pods count as programmed")
	}
}
