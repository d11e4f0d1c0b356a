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

// addSockets counts one pod.
func (s *Status) addSockets(silence string, pod *v1alpha1.PlanEndpoint, result *v1alpha1.EndpointStatus) {
	if s.Sockets == nil {
		s.Sockets = &Sockets{}
	}
	var speak v1alpha1.SocketsSpeak
	if silence == "" {
		speak = result.Speak()
	}
	switch speak {
	case v1alpha1.SocketsSpeakMPTCP:
		s.Sockets.MPTCP++
	case v1alpha1.SocketsSpeakTCP:
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
