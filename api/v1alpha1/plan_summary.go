// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// SocketsSpeak is what the sockets of a pod speak.
type SocketsSpeak string

const (
	// SocketsSpeakMPTCP means: those that move most of the pod's bytes are MPTCP sockets.
	SocketsSpeakMPTCP SocketsSpeak = "MPTCP"
	// SocketsSpeakTCP means: they are plain TCP sockets.
	SocketsSpeakTCP SocketsSpeak = "TCP"
)

// spoken is what sockets speak where traffic has this reason; nothing where that does not
// tell. What is found first decides: see docs/spreading.md.
var spoken = map[string]SocketsSpeak{
	ReasonPlainTCP: SocketsSpeakTCP, ReasonUpgradeUnsupported: SocketsSpeakTCP,
	ReasonSpread: SocketsSpeakMPTCP, ReasonOnePathUsed: SocketsSpeakMPTCP, ReasonNoSecondPath: SocketsSpeakMPTCP, ReasonLittleSent: SocketsSpeakMPTCP,
}

// Speak is what the pod's sockets speak; empty where that is not known.
func (s *EndpointStatus) Speak() SocketsSpeak {
	if s == nil || s.Spreading == nil {
		return ""
	}
	return spoken[s.Spreading.Reason]
}

// Sends is true where the endpoint sends to other nodes.
func (s *EndpointStatus) Sends() bool {
	return s.Spreading != nil && s.Spreading.Reason != ReasonNothingSent
}

// Fulfils is true where what the plan asks for the endpoint is programmed.
func (s *EndpointStatus) Fulfils(asked *PlanEndpoint) bool {
	return s.State == EndpointProgrammed && s.PolicyGeneration == asked.Policy.Generation && s.Chain == asked.Chain
}

// Summarize counts the endpoints of a plan by what became of them.
func Summarize(asked []PlanEndpoint, results []EndpointStatus) *PlanSummary {
	byUID := make(map[string]*EndpointStatus, len(results))
	summary := &PlanSummary{}
	for i := range results {
		byUID[string(results[i].UID)] = &results[i]
		if results[i].Sends() {
			summary.Sending++
		}
	}
	for i := range asked {
		summary.add(&asked[i], byUID[string(asked[i].UID)])
	}
	return summary
}

func (s *PlanSummary) add(asked *PlanEndpoint, result *EndpointStatus) {
	noteworthy := result == nil || !result.Fulfils(asked)
	switch {
	case asked.Guest != nil:
		s.VirtualMachines++
	case asked.HoldsVirtualMachine():
		s.VirtualMachinePods++
		noteworthy = noteworthy || len(asked.NotApplied()) > 0 || result.GuestSubflows == GuestNotTaken ||
			result.GuestAgent != nil && result.GuestAgent.State != GuestAgentLimitsSet
	default:
		s.Pods++
		switch result.Speak() {
		case SocketsSpeakMPTCP:
			s.MPTCP++
		case SocketsSpeakTCP:
			s.PlainTCP++
		}
	}
	if noteworthy {
		s.Noteworthy++
	}
}
