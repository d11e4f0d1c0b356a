// SPDX-License-Identifier: Apache-2.0

package plugin_test

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"braid.dev/braid/api/v1alpha1"
)

// What the agent says is newer than the status; while it cannot be asked, that counts.
func TestAnExplanationBeginsWithWhatTheAgentSaw(t *testing.T) {
	const seen = `[{"endpoint":"default/web","state":"NotSpread","reason":"NoSecondPath","message":"path blue alone is left","time":"2026-11-22T01:00:00Z",` +
		`"seconds":30,"connections":2,"plainConnections":1,"paths":[{"path":"blue","subflows":2,"sentBytes":1000,"receivedBytes":20},{"subflows":1,"sentBytes":7,"receivedBytes":8}]}]`
	ill := false
	n := &nodes{agent: func(_ string, _ []string, _ io.Reader, out io.Writer) error {
		if ill {
			return errors.New("it is ill")
		}
		fmt.Fprintln(out, seen)
		return nil
	}}
	s := newNodeScene(t, n)
	s.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "braid-system"}}, nil)
	s.addKubelet("node1", "192.0.2.1")
	s.addSystemPod("agent", "agent-node1", "node1", "192.0.2.1")
	pod, policy := s.addPod("web", "node1"), s.addPolicy("spread", ready(v1alpha1.ConditionAccepted))
	result := resultOf(pod, policy)
	result.Spreading = &v1alpha1.SpreadingStatus{State: v1alpha1.SpreadingNotSpread, Reason: v1alpha1.ReasonPlainTCP, Message: "its sockets are plain TCP"}
	s.addPlan("node1", endpointOf(pod, policy), result)

	out, err := s.run("explain", "web")
	require.NoError(t, err)
	require.Equal(t, []string{"agent-node1 /braid-agent spreading default/web --output=json"}, n.asked())
	require.True(t, strings.HasPrefix(out, `traffic: not spread: NoSecondPath: path blue alone is left
in the last 30 s: connections of MPTCP that moved bytes 2, of plain TCP 1
  path blue: subflows 2, bytes sent 1000, received 20
  by the cluster network's route: sockets 1, bytes sent 7, received 8
what to do: see that a second path exists`), out)

	ill = true
	out, err = s.run("explain", "web")
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(out, "traffic: not spread: PlainTCP: its sockets are plain TCP\nwhat to do: have both ends open MPTCP sockets"), out)
	require.Contains(t, s.warnings.String(), "it is ill")
}

func TestAnExplanationNamesProgramsAndWhatTheyShare(t *testing.T) {
	s := newScene(t)
	s.addNode("node1")
	s.addPod("web", "node1")
	program := func(name string, shared ...v1alpha1.SharedState) v1alpha1.Program {
		return v1alpha1.Program{Name: name, Type: v1alpha1.ProgramAction, File: name + ".o", SharedState: shared}
	}
	run := func(name string) v1alpha1.Action {
		return v1alpha1.Action{Type: v1alpha1.ActionRunProgram, RunProgram: &v1alpha1.RunProgram{Program: name}}
	}
	policy := &v1alpha1.ClusterMPTCPPolicy{ObjectMeta: metav1.ObjectMeta{Name: "marked"}}
	policy.Spec.NamespaceSelector.MatchLabels = map[string]string{"kubernetes.io/metadata.name": "default"}
	policy.Spec.Programs = []v1alpha1.Program{
		program("count", v1alpha1.SharedState{Name: "marks"}, v1alpha1.SharedState{Name: "limits", Policy: "other"}), program("alone"),
	}
	policy.Spec.Rules = []v1alpha1.Rule{{Name: "all", Actions: []v1alpha1.Action{run("count"), run("alone")}}}
	s.create(policy, nil)

	out, err := s.run("explain", "web")
	require.NoError(t, err)
	require.Contains(t, out, `
  programs:
    alone (Action)
    count (Action), shares marks, reads limits of ClusterMPTCPPolicy/other
`)
}
