// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"
)

func TestCompilingChangedNodesAnewComesToTheSameAsCompilingAll(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawInput(t)
		incremental := NewIncremental(in)
		for _, name := range nodeNames {
			incremental.CompileNode(name, podsByNode(in.Pods)[name])
		}
		for range rapid.IntRange(1, 4).Draw(t, "changes") {
			node := rapid.SampledFrom(nodeNames).Draw(t, "node")
			in.Pods = withNewPods(t, in.Pods, node)
			incremental.CompileNode(node, podsByNode(in.Pods)[node])
			after := Compile(in)
			after.Decisions = nil
			if diff := cmp.Diff(after, incremental.Result()); diff != "" {
				t.Fatalf("after a change of the pods of %s:\n%s", node, diff)
			}
		}
	})
}

// withNewPods draws the pods of a node anew.
func withNewPods(t *rapid.T, pods []corev1.Pod, node string) []corev1.Pod {
	var changed []corev1.Pod
	for i := range pods {
		if pods[i].Spec.NodeName != node {
			changed = append(changed, pods[i])
		}
	}
	for i := range rapid.IntRange(0, 3).Draw(t, "pods") {
		pod := drawPod(t, 100+i)
		pod.Spec.NodeName = node
		changed = append(changed, pod)
	}
	return changed
}

func TestAResultStaysAsItIsWhenNodesAreCompiledAnew(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawInput(t)
		incremental := NewIncremental(in)
		for _, name := range nodeNames {
			incremental.CompileNode(name, podsByNode(in.Pods)[name])
		}
		result, want := incremental.Result(), Compile(in)
		want.Decisions = nil
		node := rapid.SampledFrom(nodeNames).Draw(t, "node")
		incremental.CompileNode(node, podsByNode(withNewPods(t, in.Pods, node))[node])
		incremental.Result()
		if diff := cmp.Diff(want, result); diff != "" {
			t.Fatalf("the earlier result changed:\n%s", diff)
		}
	})
}

func TestANodeThatDoesNotExistIsNotCompiled(t *testing.T) {
	incremental := NewIncremental(Input{})
	pod := &corev1.Pod{}
	pod.Spec.NodeName = "nowhere"
	if decisions := incremental.CompileNode("nowhere", []*corev1.Pod{pod}); len(decisions) != 0 || len(incremental.Result().Plans) != 0 {
		t.Errorf("decided %v, with the plans %v", decisions, incremental.Result().Plans)
	}
}
