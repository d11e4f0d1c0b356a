// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"braid.dev/braid/policy"
)

// full is the cluster that the project's figures are about.
var full = Size{Nodes: 1000, Pods: 20_000, Namespaces: 200, Policies: 500}

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
