// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"braid.dev/braid/api/v1alpha1"
)

// maxPodRanges is that of v1alpha1.MPTCPNodeSpec.podRanges.
const maxPodRanges = 16

// podRanges are the ranges of the nodes' pods by the nodes' names, for packets that cross
// routers. Cluster networks that give pods other addresses than the Nodes' podCIDRs, as
// Calico's own IPAM does, would have them go to the wrong nodes: one such pod shows it.
func podRanges(in *Claims) map[string][]string {
	if !AnyRouted(in.Paths) {
		return nil
	}
	ranges, nodes := map[string][]string{}, map[string]*corev1.Node{}
	for i := range in.Nodes {
		node := &in.Nodes[i]
		nodes[node.Name] = node
		if len(node.Spec.PodCIDRs) <= maxPodRanges {
			ranges[node.Name] = node.Spec.PodCIDRs
		}
	}
	for i := range in.Pods {
		pod := &in.Pods[i]
		if node := nodes[pod.Spec.NodeName]; node != nil && IsOutsideItsNode(pod, node) {
			return nil
		}
	}
	return ranges
}

// AnyRouted is true where packets cross routers on a path.
func AnyRouted(paths []v1alpha1.MPTCPPath) bool {
	return slices.ContainsFunc(paths, func(path v1alpha1.MPTCPPath) bool { return path.Spec.Underlay == v1alpha1.UnderlayRouted })
}

// IsOutsideItsNode tells of a pod that it has an address that is in none of its Node's podCIDRs.
func IsOutsideItsNode(pod *corev1.Pod, node *corev1.Node) bool {
	if pod.Spec.HostNetwork {
		return false
	}
	var ranges []netip.Prefix
	for _, text := range node.Spec.PodCIDRs {
		if prefix, err := netip.ParsePrefix(text); err == nil {
			ranges = append(ranges, prefix)
		}
	}
	return slices.ContainsFunc(pod.Status.PodIPs, func(ip corev1.PodIP) bool {
		address, err := netip.ParseAddr(ip.IP)
		return err == nil && !slices.ContainsFunc(ranges, func(within netip.Prefix) bool { return within.Contains(address.Unmap()) })
	})
}
