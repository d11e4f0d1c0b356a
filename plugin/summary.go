// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// podSummary is what of a pod matters to Braid: nothing that its owner wrote into its
// containers.
type podSummary struct {
	Namespace   string             `json:"namespace"`
	Name        string             `json:"name"`
	UID         types.UID          `json:"uid"`
	Created     metav1.Time        `json:"created"`
	Deleted     *metav1.Time       `json:"deleted,omitempty"`
	Labels      map[string]string  `json:"labels,omitempty"`
	Annotations map[string]string  `json:"annotations,omitempty"`
	Node        string             `json:"node,omitempty"`
	HostNetwork bool               `json:"hostNetwork,omitempty"`
	Runtime     *string            `json:"runtimeClass,omitempty"`
	Phase       corev1.PodPhase    `json:"phase"`
	Reason      string             `json:"reason,omitempty"`
	Addresses   []corev1.PodIP     `json:"addresses,omitempty"`
	Conditions  []conditionSummary `json:"conditions,omitempty"`
	Containers  []containerSummary `json:"containers,omitempty"`
}

// containerSummary has what the kubelet says, without what the program itself left as
// its last words.
type containerSummary struct {
	Name     string `json:"name"`
	Image    string `json:"image"`
	Ready    bool   `json:"ready"`
	Restarts int32  `json:"restarts"`
	State    string `json:"state"`
	Last     string `json:"last,omitempty"`
}

type conditionSummary struct {
	Type   string                 `json:"type"`
	Status corev1.ConditionStatus `json:"status"`
	Reason string                 `json:"reason,omitempty"`
	Since  metav1.Time            `json:"since"`
}

func summaryOfPod(pod *corev1.Pod) podSummary {
	s := podSummary{
		Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, Created: pod.CreationTimestamp, Deleted: pod.DeletionTimestamp,
		Labels: pod.Labels, Annotations: ownAnnotations(pod.Annotations),
		Node: pod.Spec.NodeName, HostNetwork: pod.Spec.HostNetwork, Runtime: pod.Spec.RuntimeClassName,
		Phase: pod.Status.Phase, Reason: pod.Status.Reason, Addresses: pod.Status.PodIPs,
	}
	for _, c := range pod.Status.Conditions {
		s.Conditions = append(s.Conditions, conditionSummary{string(c.Type), c.Status, c.Reason, c.LastTransitionTime})
	}
	for i := range pod.Status.ContainerStatuses {
		c := &pod.Status.ContainerStatuses[i]
		s.Containers = append(s.Containers, containerSummary{
			Name: c.Name, Image: c.Image, Ready: c.Ready, Restarts: c.RestartCount, State: stateOf(c.State), Last: stateOf(c.LastTerminationState),
		})
	}
	return s
}

func stateOf(state corev1.ContainerState) string {
	switch {
	case state.Running != nil:
		return "running since " + state.Running.StartedAt.UTC().Format(metav1.RFC3339Micro)
	case state.Waiting != nil:
		return "waiting: " + state.Waiting.Reason
	case state.Terminated != nil:
		return fmt.Sprintf("ended with %d: %s at %s", state.Terminated.ExitCode, state.Terminated.Reason, state.Terminated.FinishedAt.UTC().Format(metav1.RFC3339Micro))
	}
	return ""
}

// nodeSummary is what of a Node matters to Braid.
type nodeSummary struct {
	Name        string                `json:"name"`
	UID         types.UID             `json:"uid"`
	Created     metav1.Time           `json:"created"`
	Labels      map[string]string     `json:"labels,omitempty"`
	Unusable    bool                  `json:"unschedulable,omitempty"`
	Taints      []corev1.Taint        `json:"taints,omitempty"`
	PodNetworks []string              `json:"podCIDRs,omitempty"`
	Addresses   []corev1.NodeAddress  `json:"addresses,omitempty"`
	Conditions  []conditionSummary    `json:"conditions,omitempty"`
	Info        corev1.NodeSystemInfo `json:"nodeInfo"`
}

func summaryOfNode(node *corev1.Node) nodeSummary {
	s := nodeSummary{
		Name: node.Name, UID: node.UID, Created: node.CreationTimestamp, Labels: node.Labels,
		Unusable: node.Spec.Unschedulable, Taints: node.Spec.Taints, PodNetworks: node.Spec.PodCIDRs,
		Addresses: node.Status.Addresses, Info: node.Status.NodeInfo,
	}
	for _, c := range node.Status.Conditions {
		s.Conditions = append(s.Conditions, conditionSummary{string(c.Type), c.Status, c.Reason, c.LastTransitionTime})
	}
	return s
}

// cleanWorkload leaves out annotations, and of environment variables all but names.
func cleanWorkload(about *metav1.ObjectMeta, template *corev1.PodTemplateSpec) {
	for _, m := range []*metav1.ObjectMeta{about, &template.ObjectMeta} {
		m.ManagedFields, m.Annotations = nil, ownAnnotations(m.Annotations)
	}
	for _, containers := range [][]corev1.Container{template.Spec.InitContainers, template.Spec.Containers} {
		for i := range containers {
			containers[i].EnvFrom = nil
			for j := range containers[i].Env {
				containers[i].Env[j] = corev1.EnvVar{Name: containers[i].Env[j].Name}
			}
		}
	}
}
