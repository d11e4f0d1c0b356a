// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/policy"
)

// full is the cluster that the project's figures are about.
var full = Size{Nodes: 1000, Pods: 20_000, Namespaces: 200, Policies: 500}

func TestEverySelectsAPodOfEachNodeAndOnlyASingleOne(t *testing.T) {
	size := Size{Nodes: 20, Pods: 400, Namespaces: 10, Policies: 50}
	objects := size.Objects()
	result := policy.Compile(objects.Input())
	decides := map[string]int{}
	for i := range result.Policies {
		p := &result.Policies[i]
		decides[p.Policy.Name] += len(p.Decides)
		if p.Error != "" || len(p.RuleProblems)+len(p.UnknownPaths) > 0 {
			t.Errorf("%s has problems: %+v", p.Policy.Name, p)
		}
	}
	if len(result.Policies) != size.Policies || decides[objects.Only.Name] != 1 || decides[objects.Everywhere.Name] != size.Nodes {
		t.Errorf("of %d policies %s decides for %d pods and %s for %d", len(result.Policies),
			objects.Only.Name, decides[objects.Only.Name], objects.Everywhere.Name, decides[objects.Everywhere.Name])
	}
	for node, plan := range result.Plans {
		if len(plan.Endpoints) != size.Pods/size.Nodes {
			t.Errorf("node %s has %d endpoints, want %d", node, len(plan.Endpoints), size.Pods/size.Nodes)
		}
	}
}

func BenchmarkCompileOfAThousandNodes(b *testing.B) {
	in := full.Objects().Input()
	b.ReportAllocs()
	for b.Loop() {
		policy.Compile(in)
	}
}

// compiled is a cluster of which every node is compiled.
func compiled(o *Objects) (incremental *policy.Incremental, pods map[string][]*corev1.Pod) {
	in := o.Input()
	incremental, pods = policy.NewIncremental(in), map[string][]*corev1.Pod{}
	for i := range in.Pods {
		pods[in.Pods[i].Spec.NodeName] = append(pods[in.Pods[i].Spec.NodeName], &in.Pods[i])
	}
	for node := range pods {
		incremental.CompileNode(node, pods[node])
	}
	incremental.Result()
	return incremental, pods
}

func BenchmarkCompileOfOneNodeOfAThousand(b *testing.B) {
	incremental, pods := compiled(full.Objects())
	node := Node(7)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		pods[node][3].Annotations = map[string]string{v1alpha1.AnnotationPreferredPaths: Paths[i%2]}
		incremental.CompileNode(node, pods[node])
		incremental.Result()
	}
}

func BenchmarkCompileAfterAPolicyOfOnePodOfAThousandNodes(b *testing.B) {
	objects := full.Objects()
	incremental, pods := compiled(objects)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		in := objects.Input()
		in.Policies = slices.Clone(in.Policies)
		in.Policies[len(in.Policies)-1].Spec.Subflows.Count = new(int32(2 + i%2))
		change := incremental.Update(in)
		nodes := 0
		for j := range in.Pods {
			if pod := &in.Pods[j]; change.Concerns(pod) {
				incremental.CompileNode(pod.Spec.NodeName, pods[pod.Spec.NodeName])
				nodes++
			}
		}
		if nodes != 1 {
			b.Fatalf("%d nodes were compiled", nodes)
		}
		incremental.Result()
	}
}
