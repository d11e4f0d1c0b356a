// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"braid.dev/braid/api/v1alpha1"
)

// guestAgentSetting is the field that asks for the use of guest agents.
const guestAgentSetting = "spec.sockets.guestAgent"

// Why a guest's agent is not used.
const (
	agentOfPod     = "the channel of the guest agent of a VM in a pod is open in the pod, to KubeVirt's libvirt, which serves nobody else: in the guest use cloud-init's bootcmd"
	agentUnknown   = "the MPTCPEndpoint gives no guestAgentSocket"
	agentUnallowed = "an MPTCPPolicy may use guest agents where a guardrail that holds for the VM has guestAgent: Allow, and none does: ask an admin for one, or for a ClusterMPTCPPolicy"
	agentDenied    = " does not allow it: it has guestAgent: Deny"
)

// useGuestAgent has the node use a guest's agent, or notes why not.
func (w *workload) useGuestAgent(e *v1alpha1.PlanEndpoint, winner *compiledPolicy, g *guardrails) {
	if !winner.spec.Sockets.GuestAgent {
		return
	}
	note := func(settings *[]v1alpha1.NotAppliedSetting, why string) {
		*settings = append(*settings, v1alpha1.NotAppliedSetting{Setting: guestAgentSetting, Message: why})
	}
	switch why := w.whyNoAgent(winner, g); {
	case e.Guest == nil:
		note(&e.VirtualMachine.NotApplied, agentOfPod)
	case why != "":
		note(&e.Guest.NotApplied, why)
	default:
		e.Guest.AgentSocket = w.agentSocket
	}
}

// whyNoAgent is empty where the agent is to be used.
func (w *workload) whyNoAgent(winner *compiledPolicy, g *guardrails) string {
	with := func(use v1alpha1.GuestAgentUse) *compiledPolicy {
		return g.find(func(rails *v1alpha1.Guardrails) bool { return rails.GuestAgent == use })
	}
	if by := with(v1alpha1.GuestAgentDeny); by != nil {
		return guardrailsString(by) + agentDenied
	}
	if winner.result.Policy.Kind == KindPolicy && with(v1alpha1.GuestAgentAllow) == nil {
		return agentUnallowed
	}
	if w.agentSocket == "" {
		return agentUnknown
	}
	return ""
}
