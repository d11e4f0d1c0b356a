// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"fmt"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"braid.dev/braid/api/v1alpha1"
)

// Reasons of nodes that are in a state that pods, and Braid with them, suffer from.
const (
	reasonNodeNotReady = "NodeNotReady"
	reasonClockOff     = "ClockOff"
)

// mostClockOff is by how much a node's clock may differ from the API server's. Leases are
// renewed within that time, so a request that took long is not taken for it.
const mostClockOff = 30 * time.Second

// pressures are the conditions of a Node that are bad when they are True, and what to do.
var pressures = map[corev1.NodeConditionType]string{
	corev1.NodeDiskPressure:       "its disk is full: kubelet evicts pods, and agents cannot save what they would start from without the API server. Make room (df -h, crictl rmi --prune)",
	corev1.NodeMemoryPressure:     "its memory is full: kubelet evicts pods. Move pods away, or give them requests",
	corev1.NodePIDPressure:        "it has no process numbers left: programs cannot be started. Find what makes so many (ps -eLf)",
	corev1.NodeNetworkUnavailable: "its cluster network is not set up: its pods reach nobody. Look at the pods of the cluster network there",
}

// kubeletProblem is why kubelet does not take care of a node's pods; empty where it does, or
// where nobody has said.
func kubeletProblem(node *corev1.Node) string {
	for i := range node.Status.Conditions {
		ready := &node.Status.Conditions[i]
		switch {
		case ready.Type != corev1.NodeReady || ready.Status == corev1.ConditionTrue:
		case ready.Status == corev1.ConditionUnknown:
			return "its kubelet has not reported since " + ready.LastHeartbeatTime.UTC().Format(time.RFC3339) +
				": pods that come, go or die there are not known. Check that the node is up, and kubelet with it (systemctl status kubelet)"
		default:
			return fmt.Sprintf("its kubelet says that it is not ready: %s: %s (journalctl -u kubelet)", ready.Reason, ready.Message)
		}
	}
	return ""
}

// pressed lists what a node has too little of.
func pressed(node *corev1.Node) (troubles []Problem) {
	for i := range node.Status.Conditions {
		is := &node.Status.Conditions[i]
		if text, bad := pressures[is.Type]; bad && is.Status == corev1.ConditionTrue {
			troubles = append(troubles, Problem{"node " + node.Name, string(is.Type), text})
		}
	}
	return troubles
}

// nodeRemarks are what is worth knowing of a node, beside the problem that it may have.
func (c *cluster) nodeRemarks(node *corev1.Node) []Problem {
	remarks := append(pressed(node), c.agentRemarks(node.Name)...)
	if text := c.own.clockOff(node.Name); text != "" {
		remarks = append(remarks, Problem{"node " + node.Name, reasonClockOff, text})
	}
	return remarks
}

// agentRemarks are what a node's agent says of it that hinders nothing now.
func (c *cluster) agentRemarks(node string) (remarks []Problem) {
	member := c.member(node)
	if member == nil {
		return nil
	}
	for _, condition := range member.Status.Conditions {
		switch {
		case condition.Status != metav1.ConditionTrue:
		case condition.Type == v1alpha1.ConditionPlanNotSaved:
			remarks = append(remarks, Problem{"node " + node, condition.Type, condition.Message + ". See that the node's disk has room (df -h) and can be written"})
		case condition.Type == v1alpha1.ConditionPeersLimited:
			remarks = append(remarks, Problem{"node " + node, condition.Type, condition.Message})
		}
	}
	return remarks
}

// clockOff says by how much a node's clock is wrong; empty where it is right. Its agent notes
// when it renews its Lease, and the API server when that arrived.
func (c *components) clockOff(node string) string {
	if c == nil {
		return ""
	}
	lease := c.leases[v1alpha1.AgentLeasePrefix+node]
	ahead := aheadBy(lease)
	if ahead.Abs() <= mostClockOff {
		return ""
	}
	word := "ahead of"
	if ahead < 0 {
		word = "behind"
	}
	return fmt.Sprintf("its clock is %s %s the API server's: certificates and tokens may not be valid for it, and the times of its logs are wrong. Set it by NTP (timedatectl, chronyc tracking)",
		ahead.Abs().Round(time.Second), word)
}

// aheadBy is by how much the clock of a Lease's holder is ahead of the API server's.
func aheadBy(lease *coordinationv1.Lease) time.Duration {
	if lease == nil || lease.Spec.RenewTime == nil {
		return 0
	}
	return lease.Spec.RenewTime.Sub(renewed(lease))
}

// node is one of Kubernetes' own; one of which nothing is known where there is none.
func (c *cluster) node(name string) *corev1.Node {
	for i := range c.nodes.Items {
		if c.nodes.Items[i].Name == name {
			return &c.nodes.Items[i]
		}
	}
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// nodeNotes are for whoever asks about one of a node's pods.
func (c *cluster) nodeNotes(name string) (notes []string) {
	node := c.node(name)
	if text := kubeletProblem(node); text != "" {
		notes = append(notes, reasonNodeNotReady+": "+text)
	}
	for _, remark := range c.nodeRemarks(node) {
		notes = append(notes, remark.Reason+": "+remark.Message)
	}
	return notes
}

// notesText has a line for each note on the node.
func notesText(node string, notes []string) string {
	var b strings.Builder
	for _, note := range notes {
		fmt.Fprintf(&b, "  node %s: %s\n", node, note)
	}
	return b.String()
}
