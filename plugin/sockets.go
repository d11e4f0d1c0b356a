// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"fmt"

	"braid.dev/braid/api/v1alpha1"
)

// Sockets counts pods by what the sockets speak that move most of their bytes, as the agents
// saw it last.
type Sockets struct {
	MPTCP    int `json:"mptcp"`
	PlainTCP int `json:"plainTCP"`
	// NotKnown are pods that send nothing to other nodes, or of which no agent has told.
	NotKnown int `json:"notKnown"`
	// Plain names those with plain TCP, the first of them.
	Plain []string `json:"plain,omitempty"`
}

// spoken is what sockets speak where traffic has this reason; nothing where that does not
// tell. What is found first decides: see docs/spreading.md.
var spoken = map[string]string{
	v1alpha1.ReasonPlainTCP: "TCP", v1alpha1.ReasonUpgradeUnsupported: "TCP",
	v1alpha1.ReasonSpread: "MPTCP", v1alpha1.ReasonOnePathUsed: "MPTCP", v1alpha1.ReasonNoSecondPath: "MPTCP", v1alpha1.ReasonLittleSent: "MPTCP",
}

// addSockets counts one pod.
func (s *Status) addSockets(silence string, pod *v1alpha1.PlanEndpoint, result *v1alpha1.EndpointStatus) {
	if s.Sockets == nil {
		s.Sockets = &Sockets{}
	}
	speaks := ""
	if silence == "" && result != nil && result.Spreading != nil {
		speaks = spoken[result.Spreading.Reason]
	}
	switch speaks {
	case "MPTCP":
		s.Sockets.MPTCP++
	case "TCP":
		s.Sockets.PlainTCP++
		if len(s.Sockets.Plain) < maxEnumerated {
			s.Sockets.Plain = append(s.Sockets.Plain, pod.Namespace+"/"+pod.Name)
		}
	default:
		s.Sockets.NotKnown++
	}
}

func (s *Sockets) text() string {
	plain := ""
	if s.PlainTCP > 0 {
		names := enumerate(s.Plain)
		if more := s.PlainTCP - len(s.Plain); more > 0 {
			names += fmt.Sprintf(" and %d more", more)
		}
		plain = " (" + names + ")"
	}
	return fmt.Sprintf("MPTCP in %d pods, plain TCP in %d%s, not known of %d", s.MPTCP, s.PlainTCP, plain, s.NotKnown)
}
