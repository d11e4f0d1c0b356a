// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/agentapi"
)

// remedies say what to do about traffic that is not spread.
var remedies = map[string]string{
	v1alpha1.ReasonPlainTCP: "have both ends open MPTCP sockets: spec.sockets.upgrade (Linux 6.7 and later), " +
		"the label braid.dev/preload, GODEBUG=multipathtcp=1 for Go, or the program's own setting (docs/sockets.md)",
	v1alpha1.ReasonUpgradeUnsupported: "take another way to MPTCP sockets, such as the label braid.dev/preload or GODEBUG=multipathtcp=1 (docs/sockets.md), " +
		"or a kernel that can upgrade them (docs/requirements.md)",
	v1alpha1.ReasonPeerNotSelected: "select the pods at the other end by a policy too, on nodes with an agent; " +
		"for servers that none can select, subflows.manager: Agent (docs/subflows.md)",
	v1alpha1.ReasonOverlayNotSteered: "use VXLAN, Geneve, IP in IP or a cluster network that routes natively, between the nodes' own addresses (docs/cni.md)",
	v1alpha1.ReasonEncryptedOverlay:  "turn the cluster network's encryption off, or use one path: what is encrypted keeps the route of its outer addresses (docs/cni.md)",
	v1alpha1.ReasonNoSecondPath:      "see that a second path exists, is up and is allowed: kubectl braid paths, spec.paths, guardrails and the pod's annotations",
	v1alpha1.ReasonOnePathUsed: "see that no firewall or NetworkPolicy drops further subflows, and that the peer's node is reached on several paths: " +
		"kubectl braid top POD, docs/troubleshooting.md",
	v1alpha1.ReasonNotAnswered: "see that the other end runs, that the node has a route to it (ip route get ADDRESS; the cluster network's own pods put it there), " +
		"and that no firewall between the nodes drops it, such as UDP 8472 of VXLAN or 6081 of Geneve (docs/troubleshooting.md#a-connection-stalls)",
}

// Traffic is what the traffic of a policy's pods does.
type Traffic struct {
	Object string                 `json:"object"`
	Status metav1.ConditionStatus `json:"status"`
	Reason string                 `json:"reason"`
	// Message explains the reason, Remedy says what to do.
	Message string `json:"message"`
	Remedy  string `json:"remedy,omitempty"`
}

// addTraffic notes what a policy's condition Spreading says. Traffic that is not spread is
// no fault of Braid's parts: it leaves Fine as it is.
func (s *Status) addTraffic(object string, conditions []metav1.Condition) {
	if is := meta.FindStatusCondition(conditions, v1alpha1.ConditionSpreading); is != nil {
		s.Traffic = append(s.Traffic, Traffic{object, is.Status, is.Reason, is.Message, remedies[is.Reason]})
	}
}

// trafficText leads the status.
func (s *Status) trafficText() (summary, list string) {
	counts := map[metav1.ConditionStatus]int{}
	for _, traffic := range s.Traffic {
		counts[traffic.Status]++
		if traffic.Status != metav1.ConditionFalse {
			continue
		}
		list += fmt.Sprintf("  %s: %s\n    %s\n", traffic.Object, traffic.Reason, traffic.Message)
		if traffic.Remedy != "" {
			list += "    " + traffic.Remedy + "\n"
		}
	}
	if list != "" {
		list = "\nTraffic that is not spread:\n" + list
	}
	if len(s.Traffic) > 0 {
		summary = fmt.Sprintf("spread for %d of %d policies, not for %d, unknown for %d",
			counts[metav1.ConditionTrue], len(s.Traffic), counts[metav1.ConditionFalse], counts[metav1.ConditionUnknown])
	}
	return summary, list
}

// trafficOf asks the agent of a pod's node what the pod's connections do; nil where it has
// not looked at them yet.
func (s *system) trafficOf(ctx context.Context, pod *corev1.Pod) (*agentapi.Spreading, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	agents, err := s.agents(ctx)
	if err != nil {
		return nil, err
	}
	agent := agents[pod.Spec.NodeName]
	if agent == nil {
		return nil, fmt.Errorf("no agent runs on node %s", pod.Spec.NodeName)
	}
	answer := &beginning{limit: 1 << 20}
	if err := s.ask(ctx, agent, answer, "spreading", pod.Namespace+"/"+pod.Name, "--output=json"); err != nil {
		return nil, err
	}
	var all []agentapi.Spreading
	if err := json.Unmarshal(answer.Bytes(), &all); err != nil {
		return nil, fmt.Errorf("failed to parse the agent's output: %w", err)
	}
	if len(all) == 0 {
		return nil, nil
	}
	return &all[0], nil
}
