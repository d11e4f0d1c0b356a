// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"braid.dev/braid/api/v1alpha1"
)

func TestPodsRangesAreToldWhereTheyAreTrueAndNeeded(t *testing.T) {
	nodeOf := func(name string, ranges ...string) corev1.Node {
		node := addressNode(name)
		node.Spec.PodCIDRs = ranges
		return node
	}
	podOn := func(node, ip string) (pod corev1.Pod) {
		pod.Spec.NodeName = node
		if ip != "" {
			pod.Status.PodIPs = []corev1.PodIP{{IP: ip}}
		}
		return pod
	}
	routed := addressedPath("blue", "192.0.2.0/24")
	routed.Spec.Underlay = v1alpha1.UnderlayRouted
	onHost := podOn("a", "192.0.2.1")
	onHost.Spec.HostNetwork = true
	many := make([]string, maxPodRanges+1)
	a, b := nodeOf("a", "10.244.1.0/24", "fd00:244:1::/64"), nodeOf("b", "10.244.2.0/24")
	told := map[string][]string{"a": {"10.244.1.0/24", "fd00:244:1::/64"}, "b": {"10.244.2.0/24"}}
	for name, c := range map[string]struct {
		path  v1alpha1.MPTCPPath
		nodes []corev1.Node
		pods  []corev1.Pod
		want  map[string][]string
	}{
		"pods of the Nodes' ranges":         {routed, []corev1.Node{a, b}, []corev1.Pod{podOn("a", "10.244.1.7"), podOn("a", "fd00:244:1::7"), podOn("b", "10.244.2.7")}, told},
		"pods of the host's network":        {routed, []corev1.Node{a, b}, []corev1.Pod{onHost, podOn("b", "")}, told},
		"a pod of a node that is gone":      {routed, []corev1.Node{a, b}, []corev1.Pod{podOn("c", "203.0.113.7")}, told},
		"a pod with another node's address": {routed, []corev1.Node{a, b}, []corev1.Pod{podOn("a", "10.244.2.7")}, nil},
		"a pod with an address of its own":  {routed, []corev1.Node{a, b}, []corev1.Pod{podOn("a", "10.244.1.7"), podOn("b", "172.16.0.7")}, nil},
		"no path over routers":              {addressedPath("blue"), []corev1.Node{a, b}, nil, nil},
		"more ranges than there is room":    {routed, []corev1.Node{a, nodeOf("b", many...)}, nil, map[string][]string{"a": told["a"]}},
	} {
		t.Run(name, func(t *testing.T) {
			decided := ConfirmAddresses(Claims{
				Nodes: c.nodes, Paths: []v1alpha1.MPTCPPath{c.path}, Pods: c.pods, Members: []v1alpha1.MPTCPNode{reporting("a"), reporting("b")},
			})
			for _, node := range []string{"a", "b"} {
				require.Equal(t, c.want[node], decided[node].PodRanges, node)
			}
		})
	}
}
