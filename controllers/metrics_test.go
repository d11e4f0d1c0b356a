// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/policy"
)

func TestTheStateOfPathsIsCountedWhateverFails(t *testing.T) {
	s, nodes := newScene(), []string{"n0", "n1", "n2", "n3"}
	s.result.Paths = []policy.PathResult{{Name: "blue", Nodes: nodes}}
	for _, node := range nodes {
		s.nodes[node] = &v1alpha1.MPTCPNode{Status: v1alpha1.MPTCPNodeStatus{Paths: []v1alpha1.NodePath{
			{Name: "blue", Interface: "eth1", State: v1alpha1.LinkUp, PeersProbed: 3, PeersAlive: 3}, {Name: "green", Interface: "eth2", State: v1alpha1.LinkUp, PeersProbed: 3, PeersAlive: 3},
		}}}
	}
	expect := func(change string, want map[string]int, silent int) {
		t.Helper()
		state := stateOf(s.observation, nil)
		for _, problem := range pathProblemWords {
			if _, given := want[problem.reason]; !given {
				want[problem.reason] = 0
			}
		}
		if diff := cmp.Diff(map[string]map[string]int{"blue": want}, state.paths); diff != "" || state.silent != silent || state.reporting != 4-silent {
			t.Errorf("%s: %d are silent, %d report, and the paths are otherwise:\n%s", change, state.silent, state.reporting, diff)
		}
	}
	expect("all is well", map[string]int{v1alpha1.ReasonReady: 4}, 0)
	s.nodes["n1"].Status.Paths[0].State = v1alpha1.LinkDown
	expect("a NIC is down", map[string]int{v1alpha1.ReasonReady: 3, v1alpha1.ReasonInterfaceDown: 1}, 0)
	s.nodes["n2"].Status.Paths[0].Unreachable = []string{"n3"}
	expect("a path is dead by probes", map[string]int{v1alpha1.ReasonReady: 2, v1alpha1.ReasonInterfaceDown: 1, v1alpha1.ReasonPeersUnreachable: 1}, 0)
	s.nodes["n3"].Status.Paths[0].Message = "eth1 has no global address"
	expect("a NIC cannot be used", map[string]int{
		v1alpha1.ReasonReady: 1, v1alpha1.ReasonInterfaceDown: 1, v1alpha1.ReasonPeersUnreachable: 1, v1alpha1.ReasonInterfaceNotUsable: 1,
	}, 0)
	s.nodes["n3"].Status.Paths[0].Message = ""
	s.silent["n0"] = "quiet"
	expect("an agent is silent", map[string]int{
		v1alpha1.ReasonReady: 1, v1alpha1.ReasonInterfaceDown: 1, v1alpha1.ReasonPeersUnreachable: 1, v1alpha1.ReasonAgentNotReporting: 1,
	}, 1)
}

func TestAPolicyIsProgrammedOrHasNothingToBe(t *testing.T) {
	s := newScene()
	for reason, want := range map[string]bool{
		v1alpha1.ReasonProgrammed: true, v1alpha1.ReasonNoPodsSelected: true, v1alpha1.ReasonOverridden: true,
		v1alpha1.ReasonPending: false, v1alpha1.ReasonPathNotFound: false, v1alpha1.ReasonEndpointFailed: false,
	} {
		status := metav1.ConditionFalse
		if reason == v1alpha1.ReasonProgrammed {
			status = metav1.ConditionTrue
		}
		of := v1alpha1.PolicyReference{Kind: policy.KindPolicy, Namespace: "shop", Name: "spread", Generation: 3}
		told := verdicts{of: {status: &v1alpha1.PolicyStatus{Conditions: []metav1.Condition{condition(v1alpha1.ConditionProgrammed, status, reason, "", 3)}}}}
		of.Generation = 0
		if got := stateOf(s.observation, told).programmed; len(got) != 1 || got[of] != want {
			t.Errorf("%s: %v", reason, got)
		}
	}
}
