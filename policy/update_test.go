// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"braid.dev/braid/api/v1alpha1"
)

// follow updates to another input, and compiles the nodes that are said to need it.
func (i *Incremental) follow(in Input) (compiled []string) {
	change, pods := i.Update(in), podsByNode(in.Pods)
	compiled = change.Nodes
	for j := range in.Pods {
		pod := &in.Pods[j]
		if slices.Contains(change.Namespaces(), pod.Namespace) && change.Concerns(pod) {
			compiled = append(compiled, pod.Spec.NodeName)
		}
	}
	slices.Sort(compiled)
	compiled = slices.Compact(compiled)
	for _, node := range compiled {
		i.CompileNode(node, pods[node])
	}
	return compiled
}

func compiledAll(in Input) *Incremental {
	i, pods := NewIncremental(in), podsByNode(in.Pods)
	for j := range in.Nodes {
		i.CompileNode(in.Nodes[j].Name, pods[in.Nodes[j].Name])
	}
	return i
}

func TestUpdatesComeToTheSameAsCompilingAllAnew(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawInput(t)
		incremental := compiledAll(in)
		for i := range rapid.IntRange(1, 5).Draw(t, "changes") {
			in = in.deepCopy()
			before, want := incremental.Result(), compiledAll(in.deepCopy()).Result()
			what := changeInput(t, &in, i)
			incremental.follow(in)
			after := Compile(in)
			after.Decisions = nil
			if diff := cmp.Diff(after, incremental.Result()); diff != "" {
				t.Fatalf("after %s:\n%s", what, diff)
			}
			if diff := cmp.Diff(want, before); diff != "" {
				t.Fatalf("%s changed the result from before it:\n%s", what, diff)
			}
		}
	})
}

// changeInput changes one thing of an input, and says which.
func changeInput(t *rapid.T, in *Input, i int) string {
	what := rapid.SampledFrom([]string{
		"a policy", "a cluster policy", "a policy's end", "a cluster policy's end", "a new policy", "a new cluster policy",
		"a guardrail", "a guardrail's end", "a new guardrail",
		"a namespace", "a namespace's end", "a node", "a node's end", "a new node", "a path", "the objects of programs", "nothing",
	}).Draw(t, "what changes")
	switch what {
	case "a policy":
		change(t, in.Policies, func(p *v1alpha1.MPTCPPolicy) { p.Spec = drawPolicy(t, p.Name).Spec })
	case "a cluster policy":
		change(t, in.ClusterPolicies, func(p *v1alpha1.ClusterMPTCPPolicy) { p.Spec = drawClusterSpec(t) })
	case "a guardrail":
		change(t, in.Guardrails, func(p *v1alpha1.MPTCPGuardrail) { p.Spec = drawGuardrailSpec(t) })
	case "a guardrail's end":
		in.Guardrails = withoutOne(t, in.Guardrails)
	case "a new guardrail":
		in.Guardrails = append(in.Guardrails, v1alpha1.MPTCPGuardrail{ObjectMeta: drawMeta(t, "", fmt.Sprint("new-", i)), Spec: drawGuardrailSpec(t)})
	case "a policy's end":
		in.Policies = withoutOne(t, in.Policies)
	case "a cluster policy's end":
		in.ClusterPolicies = withoutOne(t, in.ClusterPolicies)
	case "a new policy":
		in.Policies = append(in.Policies, drawPolicy(t, fmt.Sprint("new-", i)))
	case "a new cluster policy":
		in.ClusterPolicies = append(in.ClusterPolicies, v1alpha1.ClusterMPTCPPolicy{ObjectMeta: drawMeta(t, "", fmt.Sprint("new-", i)), Spec: drawClusterSpec(t)})
	case "a namespace":
		change(t, in.Namespaces, func(n *corev1.Namespace) { n.Labels = drawLabels(t) })
	case "a namespace's end":
		in.Namespaces = withoutOne(t, in.Namespaces)
	case "a node":
		change(t, in.Nodes, func(n *corev1.Node) { n.Labels = drawLabels(t) })
	case "a node's end":
		in.Nodes = withoutOne(t, in.Nodes)
	case "a new node":
		in.Nodes = append(withoutNode(in.Nodes, "gone"), corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "gone", Labels: drawLabels(t)}})
	case "a path":
		change(t, in.Paths, func(p *v1alpha1.MPTCPPath) { p.Spec = drawPath(t, p.Name).Spec })
	case "the objects of programs":
		in.ProgramObjects = map[ProgramObject]string{{ConfigMap: "programs", Key: "known.o"}: fmt.Sprint("changed-", i)}
	}
	return what
}

func change[T any](t *rapid.T, items []T, f func(*T)) {
	if len(items) > 0 {
		f(&items[rapid.IntRange(0, len(items)-1).Draw(t, "which")])
	}
}

func withoutOne[T any](t *rapid.T, items []T) []T {
	if len(items) == 0 {
		return nil
	}
	i := rapid.IntRange(0, len(items)-1).Draw(t, "which")
	return slices.Delete(items, i, i+1)
}

func withoutNode(nodes []corev1.Node, name string) []corev1.Node {
	return slices.DeleteFunc(nodes, func(n corev1.Node) bool { return n.Name == name })
}

// threeNodes have a pod each, of which shop/web selects the first.
func threeNodes() Input {
	in := Input{
		Paths:           []v1alpha1.MPTCPPath{{ObjectMeta: metav1.ObjectMeta{Name: "blue"}}, {ObjectMeta: metav1.ObjectMeta{Name: "green"}}},
		Policies:        []v1alpha1.MPTCPPolicy{policyFor("shop", "web", map[string]string{"app": "web"})},
		ClusterPolicies: []v1alpha1.ClusterMPTCPPolicy{{ObjectMeta: metav1.ObjectMeta{Name: "gold"}}},
	}
	in.ClusterPolicies[0].Spec.NamespaceSelector.MatchLabels = map[string]string{"tier": "gold"}
	for _, name := range []string{"shop", "bank", "empty"} {
		in.Namespaces = append(in.Namespaces, corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	for i, where := range []struct{ namespace, app string }{{"shop", "web"}, {"shop", "db"}, {"bank", "web"}} {
		pod := runningPod(where.app, fmt.Sprint("10.0.0.", i+1))
		pod.Namespace, pod.Labels, pod.Spec.NodeName = where.namespace, map[string]string{"app": where.app}, fmt.Sprint("n", i+1)
		in.Pods = append(in.Pods, pod)
		in.Nodes = append(in.Nodes, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: pod.Spec.NodeName}})
	}
	return in
}

func policyFor(namespace, name string, pods map[string]string) v1alpha1.MPTCPPolicy {
	p := v1alpha1.MPTCPPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	p.Spec.PodSelector.MatchLabels = pods
	return p
}

func TestAnUpdateCompilesTheNodesThatItConcernsAndNoOther(t *testing.T) {
	base := threeNodes()
	for _, test := range []struct {
		name   string
		change func(*Input)
		want   []string
	}{
		{"nothing", func(*Input) {}, nil},
		{"a policy's spec", func(in *Input) { in.Policies[0].Spec.Subflows.Count = new(int32(3)) }, []string{"n1"}},
		{"a policy's generation", func(in *Input) { in.Policies[0].Generation++ }, []string{"n1"}},
		{"a policy that selects others", func(in *Input) { in.Policies[0].Spec.PodSelector.MatchLabels["app"] = "db" }, []string{"n1", "n2"}},
		{"a policy's end", func(in *Input) { in.Policies = nil }, []string{"n1"}},
		{"a policy for nobody", func(in *Input) {
			in.Policies = append(in.Policies, policyFor("empty", "all", nil))
		}, nil},
		{"a policy for a namespace", func(in *Input) { in.Policies = append(in.Policies, policyFor("bank", "all", nil)) }, []string{"n3"}},
		{"the labels of a namespace", func(in *Input) { in.Namespaces[1].Labels = map[string]string{"tier": "gold"} }, []string{"n3"}},
		{"labels of a namespace that nobody selects by", func(in *Input) { in.Namespaces[1].Labels = map[string]string{"owner": "x"} }, nil},
		{"labels of a node that nobody selects by", func(in *Input) { in.Nodes[0].Labels = map[string]string{"zone": "x"} }, nil},
		{"a new node", func(in *Input) { in.Nodes = append(in.Nodes, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n4"}}) }, []string{"n4"}},
		{"a node's end", func(in *Input) { in.Nodes = in.Nodes[:2] }, []string{"n3"}},
		{"a path", func(in *Input) { in.Paths[0].Spec.Interfaces = []v1alpha1.InterfacePattern{"eth9"} }, []string{"n1", "n2", "n3"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			incremental, in := compiledAll(base), base.deepCopy()
			test.change(&in)
			if diff := cmp.Diff(test.want, incremental.follow(in)); diff != "" {
				t.Errorf("compiled were other nodes:\n%s", diff)
			}
		})
	}
}
