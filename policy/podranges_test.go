// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"braid.dev/braid/api/v1alpha1"
)

func rangeNode(name string, ranges ...string) corev1.Node {
	node := addressNode(name)
	node.Spec.PodCIDRs = ranges
	return node
}

func podOn(node string, ips ...string) (pod corev1.Pod) {
	pod.Spec.NodeName = node
	for _, ip := range ips {
		pod.Status.PodIPs = append(pod.Status.PodIPs, corev1.PodIP{IP: ip})
	}
	return pod
}

// podsOn have addresses of ever another block.
func podsOn(node string, count int) (pods []corev1.Pod) {
	for i := range count {
		pods = append(pods, podOn(node, fmt.Sprintf("10.250.%d.%d", i/4, i%4*64)))
	}
	return pods
}

func routedClaims(nodes []corev1.Node, pods []corev1.Pod, ranges ...string) Claims {
	routed := addressedPath("blue", "192.0.2.0/24")
	routed.Spec.Underlay = v1alpha1.UnderlayRouted
	claims := Claims{Nodes: nodes, Paths: []v1alpha1.MPTCPPath{routed}, Pods: pods, PodRanges: parsePrefixes(ranges)}
	for _, node := range nodes {
		claims.Members = append(claims.Members, reporting(node.Name))
	}
	return claims
}

type told = map[string][]string

func TestPodsRangesAreToldWhereTheyAreTrueAndNeeded(t *testing.T) {
	onHost := podOn("a", "192.0.2.1")
	onHost.Spec.HostNetwork = true
	a, b := rangeNode("a", "10.244.1.0/24", "fd00:244:1::/64"), rangeNode("b", "10.244.2.0/24")
	without := []corev1.Node{rangeNode("a"), rangeNode("b")}
	cidrs := told{"a": {"10.244.1.0/24", "fd00:244:1::/64"}, "b": {"10.244.2.0/24"}}
	const pool, pool6 = "10.250.0.0/16", "fd00:250::/48"
	for name, c := range map[string]struct {
		nodes   []corev1.Node
		pods    []corev1.Pod
		ranges  []string
		want    told
		leftOut map[string]int32
	}{
		"pods of the Nodes' ranges":       {[]corev1.Node{a, b}, []corev1.Pod{podOn("a", "10.244.1.7", "fd00:244:1::7"), podOn("b", "10.244.2.7")}, nil, cidrs, nil},
		"pods of the host's network":      {[]corev1.Node{a, b}, []corev1.Pod{onHost, podOn("b")}, nil, cidrs, nil},
		"a pod of a node that is gone":    {[]corev1.Node{a, b}, []corev1.Pod{podOn("c", "203.0.113.7")}, nil, cidrs, nil},
		"a block of another node's range": {[]corev1.Node{a, b}, []corev1.Pod{podOn("a", "10.244.2.7")}, nil, told{"a": append(cidrs["a"][:2:2], "10.244.2.0/26"), "b": cidrs["b"]}, nil},
		"a pod beside that node's own": {
			[]corev1.Node{a, b}, []corev1.Pod{podOn("a", "10.244.2.7"), podOn("b", "10.244.2.8")}, nil,
			told{"a": append(cidrs["a"][:2:2], "10.244.2.7/32"), "b": cidrs["b"]}, nil,
		},
		"an address of which nobody says that it is a pod's": {[]corev1.Node{a, b}, []corev1.Pod{podOn("a", "10.244.1.7"), podOn("b", "172.16.0.7")}, nil, cidrs, map[string]int32{"b": 1}},
		"blocks of a pool": {
			without, []corev1.Pod{podOn("a", "10.250.0.1", "fd00:250::1"), podOn("a", "10.250.0.63"), podOn("b", "10.250.0.64", "fd00:250::47")},
			[]string{pool, pool6}, told{"a": {"10.250.0.0/26", "fd00:250::/122"}, "b": {"10.250.0.64/26", "fd00:250::40/122"}}, nil,
		},
		"addresses that one node borrowed of another one's block": {
			without, []corev1.Pod{podOn("a", "10.250.0.1"), podOn("a", "10.250.0.2"), podOn("b", "10.250.0.3"), podOn("b", "10.250.1.3")},
			[]string{pool}, told{"a": {"10.250.0.1/32", "10.250.0.2/32"}, "b": {"10.250.0.3/32", "10.250.1.0/26"}}, nil,
		},
		"an address that two nodes say to have": {
			without, []corev1.Pod{podOn("a", "10.250.0.1"), podOn("b", "10.250.0.1"), podOn("b", "10.250.0.2")}, []string{pool}, told{"b": {"10.250.0.2/32"}}, nil,
		},
		"a block with a node's own address in it": {
			[]corev1.Node{addressNode("a", "10.250.0.9"), rangeNode("b")}, []corev1.Pod{podOn("a", "10.250.0.1")}, []string{pool}, told{"a": {"10.250.0.1/32"}}, nil,
		},
		"a block of which the Nodes' ranges say more": {
			[]corev1.Node{rangeNode("a", "10.250.0.32/27"), rangeNode("b")}, []corev1.Pod{podOn("b", "10.250.0.1"), podOn("b", "10.250.0.40")}, []string{pool},
			told{"a": {"10.250.0.32/27"}, "b": {"10.250.0.1/32", "10.250.0.40/32"}}, nil,
		},
		"a block that is only in part pods'": {without, []corev1.Pod{podOn("a", "10.250.0.1"), podOn("a", "10.250.0.20")}, []string{"10.250.0.0/28"}, told{"a": {"10.250.0.1/32"}}, map[string]int32{"a": 1}},
		"a range of pods that cannot be one": {[]corev1.Node{rangeNode("a", "nonsense"), b}, nil, nil, told{"a": {"nonsense"}, "b": cidrs["b"]}, nil},
		"more ranges than there is room":     {[]corev1.Node{a, rangeNode("b", make([]string, maxPodRanges+1)...)}, nil, nil, told{"a": cidrs["a"]}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			decided := ConfirmAddresses(routedClaims(c.nodes, c.pods, c.ranges...))
			for _, node := range []string{"a", "b"} {
				require.ElementsMatch(t, c.want[node], decided[node].PodRanges, node)
				require.Equal(t, c.leftOut[node], decided[node].PodsLeftOut, node)
			}
		})
	}
}

func TestNoPodsRangesAreToldWhereNoPathIsRouted(t *testing.T) {
	claims := routedClaims([]corev1.Node{rangeNode("a", "10.244.1.0/24")}, []corev1.Pod{podOn("a", "172.16.0.7")})
	claims.Paths[0].Spec.Underlay = ""
	require.Equal(t, nodeRanges{}, nodeRanges{ConfirmAddresses(claims)["a"].PodRanges, ConfirmAddresses(claims)["a"].PodsLeftOut})
}

// What is too much for a node is nobody's: not even that node's in whose range it is.
func TestPodsInMorePiecesThanThereIsRoomAreLeftOut(t *testing.T) {
	nodes := []corev1.Node{rangeNode("a", "10.250.0.0/20"), rangeNode("b", "10.251.0.0/24"), rangeNode("c", "10.250.64.0/20")}
	pods := append(podsOn("b", maxPodRanges+7), podOn("a", "10.250.0.1"), podOn("c", "10.250.64.1"))
	decided := ConfirmAddresses(routedClaims(nodes, pods))
	require.Len(t, decided["b"].PodRanges, maxPodRanges)
	require.EqualValues(t, 8, decided["b"].PodsLeftOut, "as one is its Node's podCIDR")
	require.Empty(t, decided["a"].PodRanges)
	require.EqualValues(t, 1, decided["a"].PodsLeftOut)
	require.Equal(t, []string{"10.250.64.0/20"}, decided["c"].PodRanges)
}

// Whatever addresses pods have: none is taken for one of a node that has it not, and each that is
// not left out is found.
func TestPodsAreFoundAtTheirOwnNodesAlone(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // not for secrets
		nodes := []corev1.Node{rangeNode("a", "10.0.0.0/25"), rangeNode("b", "10.0.1.0/27", "10.0.1.64/26"), rangeNode("c")}
		var pods []corev1.Pod
		owners, used := map[string]int{"a": 0, "b": 0, "c": 0}, map[int]bool{}
		for range 1 + r.IntN(200) {
			host := r.IntN(1 << (4 + r.IntN(6)))
			if !used[host] {
				used[host] = true
				name := string(rune('a' + r.IntN(3)))
				pods = append(pods, podOn(name, fmt.Sprintf("10.0.%d.%d", host/256, host%256)))
				owners[name]++
			}
		}
		decided := ConfirmAddresses(routedClaims(nodes, pods, "10.0.0.0/23"))
		found := OwnersOf(decided)
		for i := range pods {
			address := netip.MustParseAddr(pods[i].Status.PodIPs[0].IP)
			_, owner := found.of(address)
			require.Contains(t, []string{"", pods[i].Spec.NodeName}, owner, "seed %d: %s", seed, address)
			require.Equal(t, owner == "", found.Misses(&pods[i]))
			if owner != "" {
				owners[owner]--
			}
		}
		for name, left := range owners {
			require.EqualValues(t, left, decided[name].PodsLeftOut, "seed %d: %s", seed, name)
			require.LessOrEqual(t, len(decided[name].PodRanges), maxPodRanges)
		}
	}
}

// An agent does not get an address that the admin gives pods.
func TestAnAddressOfThePodsRangesIsNoNodes(t *testing.T) {
	claims := routedClaims([]corev1.Node{rangeNode("a")}, nil, "192.0.2.0/28")
	claims.Members = []v1alpha1.MPTCPNode{reporting("a", "blue:192.0.2.7")}
	require.Equal(t, v1alpha1.ReasonPodRange, ConfirmAddresses(claims)["a"].Refused[0].Reason)
}
