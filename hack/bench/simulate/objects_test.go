// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

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

func BenchmarkCompileOfOneNodeOfAThousand(b *testing.B) {
	in := full.Objects().Input()
	pods := map[string][]*corev1.Pod{}
	for i := range in.Pods {
		pods[in.Pods[i].Spec.NodeName] = append(pods[in.Pods[i].Spec.NodeName], &in.Pods[i])
	}
	incremental := policy.NewIncremental(in)
	for node := range pods {
		incremental.CompileNode(node, pods[node])
	}
	b.ReportAllocs()
	for b.Loop() {
		incremental.CompileNode(Node(7), pods[Node(7)])
		incremental.Result()
	}
}
