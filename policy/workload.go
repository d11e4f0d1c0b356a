// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"braid.dev/braid/api/v1alpha1"
)

// KindEndpoint is that of a VM's object, as PodRef.Kind gives it.
const KindEndpoint = "MPTCPEndpoint"

// workload is what policies select, a pod or a VM, in the form that the compile works with.
type workload struct {
	ref                 PodRef
	labels, annotations map[string]string
	addresses           []string
	cgroupUID           types.UID
	// ignored says why no policy can apply to it, on whichever node; empty when one can.
	ignored string
	// hasInterface: it has an interface of its own, or may get one.
	hasInterface bool
	// guest is where a VM's interface is; nil of a pod.
	guest *v1alpha1.EndpointInterface
	// agentSocket is that of the VM's guest agent; empty where it gives none.
	agentSocket string
	agentDomain string // of libvirt, whose socket it is
	// machine is what a pod's annotation or label says of a VM in it.
	machine machine
}

func workloadOf(pod *corev1.Pod) *workload {
	return &workload{
		ref: podRef(pod), labels: pod.Labels, annotations: pod.Annotations,
		addresses: podAddresses(pod), cgroupUID: cgroupUID(pod), ignored: whyIgnored(pod), hasInterface: hasInterface(pod),
		machine: machineOf(pod.Labels, pod.Annotations),
	}
}

// whyIgnored says why no policy can apply to it; empty when one can. n is its node, nil
// when there is none.
func (w *workload) whyIgnored(n *node) string {
	if w.ignored == "" && n == nil {
		return "its node " + w.ref.Node + " does not exist"
	}
	return w.ignored
}

func sortedWorkloads(pods []*corev1.Pod, guests []*workload) []*workload {
	all := make([]*workload, 0, len(pods)+len(guests))
	for _, pod := range pods {
		all = append(all, workloadOf(pod))
	}
	all = append(all, guests...)
	slices.SortFunc(all, func(a, b *workload) int { return comparePods(a.ref, b.ref) })
	return all
}

// whyIgnored says why no policy can apply to a pod, wherever it runs; empty when one can.
func whyIgnored(pod *corev1.Pod) string {
	switch {
	case pod.Spec.HostNetwork:
		return "it uses its host's network and has no interface of its own"
	case pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed:
		return "it has ended: its phase is " + string(pod.Status.Phase)
	case pod.Spec.NodeName == "":
		return "it is not placed on a node yet"
	case len(pod.Status.PodIPs) == 0:
		return "it has no address yet"
	}
	return ""
}

// cgroupUID is the UID that a pod's cgroups have, where it is not the pod's own.
func cgroupUID(pod *corev1.Pod) types.UID {
	if hash := pod.Annotations[corev1.MirrorPodAnnotationKey]; hash != string(pod.UID) && len(hash) <= maxCgroupUID {
		return types.UID(hash)
	}
	return ""
}

// maxCgroupUID is more than any UID has: the rest of a plan needs its room.
const maxCgroupUID = 64

func podRef(pod *corev1.Pod) PodRef {
	return PodRef{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, Node: pod.Spec.NodeName}
}

// maxAddresses is how many addresses the plan's schema allows an endpoint.
const maxAddresses = 8

// podAddresses lists a pod's addresses, each once, as the plan's schema wants it.
func podAddresses(pod *corev1.Pod) []string {
	addresses := make([]string, 0, len(pod.Status.PodIPs))
	for _, ip := range pod.Status.PodIPs {
		if !slices.Contains(addresses, ip.IP) && len(addresses) < maxAddresses {
			addresses = append(addresses, ip.IP)
		}
	}
	return addresses
}
