// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"braid.dev/braid/api/v1alpha1"
)

// guestAgentSetting is the field that asks for the use of guest agents.
const guestAgentSetting = "spec.sockets.guestAgent"

// Why a guest's agent is not used.
const (
	agentUnknown   = "the MPTCPEndpoint gives no guestAgentSocket"
	agentUnallowed = "an MPTCPPolicy may use guest agents where a guardrail that holds for the VM has guestAgent: Allow, and none does: ask an admin for one, or for a ClusterMPTCPPolicy"
	agentDenied    = " does not allow it: it has guestAgent: Deny"
)

// useGuestAgent has the node use a guest's agent, or notes why not.
func (w *workload) useGuestAgent(e *v1alpha1.PlanEndpoint, winner *compiledPolicy, g *guardrails) {
	if !winner.spec.Sockets.GuestAgent {
		return
	}
	why := w.whyNoAgent(winner, g)
	settings := []v1alpha1.NotAppliedSetting{{Setting: guestAgentSetting, Message: why}}
	switch inPod := e.Guest == nil; {
	case why != "" && inPod:
		e.VirtualMachine.NotApplied = append(e.VirtualMachine.NotApplied, settings...)
	case why != "":
		e.Guest.NotApplied = append(e.Guest.NotApplied, settings...)
	case inPod:
		e.VirtualMachine.GuestAgent = true
	default:
		e.Guest.AgentSocket, e.Guest.AgentDomain = w.agentSocket, w.agentDomain
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
	if w.guest != nil && w.agentSocket == "" {
		return agentUnknown
	}
	return ""
}
