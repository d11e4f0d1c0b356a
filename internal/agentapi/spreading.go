// SPDX-License-Identifier: Apache-2.0

package agentapi

import (
	"fmt"
	"strings"
	"time"

	"braid.dev/braid/api/v1alpha1"
)

// Spreading is what the connections of a pod to other nodes did in an interval.
type Spreading struct {
	// Endpoint is the pod as namespace/name.
	Endpoint string `json:"endpoint"`
	// SpreadingStatus is what the plan's status says.
	v1alpha1.SpreadingStatus
	// Time is the end of the interval, Seconds its length.
	Time    time.Time `json:"time"`
	Seconds float64   `json:"seconds"`
	// Connections and PlainConnections moved bytes in it: those of MPTCP, and of TCP.
	Connections      int `json:"connections"`
	PlainConnections int `json:"plainConnections"`
	// Paths lists what was on each path, sorted; last and without a name, what went by
	// the cluster network's route.
	Paths []PathTraffic `json:"paths,omitempty"`
}

// PathTraffic is what a pod had on one path in an interval.
type PathTraffic struct {
	Path string `json:"path,omitempty"`
	// Subflows of MPTCP, or connections of TCP, established at its end.
	Subflows int `json:"subflows"`
	// SentBytes and ReceivedBytes are payload, repetitions left out.
	SentBytes     uint64 `json:"sentBytes"`
	ReceivedBytes uint64 `json:"receivedBytes"`
}

// Text tells it in some lines, each with this at its beginning.
func (s *Spreading) Text(indent string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%straffic: %s\n", indent, Told(&s.SpreadingStatus))
	if s.Seconds == 0 {
		return b.String()
	}
	fmt.Fprintf(&b, "%sin the last %.0f s: connections of MPTCP that moved bytes %d, of plain TCP %d\n", indent, s.Seconds, s.Connections, s.PlainConnections)
	for _, path := range s.Paths {
		what, where := "subflows", "path "+path.Path
		if path.Path == "" {
			what, where = "sockets", "by the cluster network's route"
		}
		fmt.Fprintf(&b, "%s  %s: %s %d, bytes sent %d, received %d\n", indent, where, what, path.Subflows, path.SentBytes, path.ReceivedBytes)
	}
	return b.String()
}

// Told is what a status says of a pod's traffic, in one line.
func Told(status *v1alpha1.SpreadingStatus) string {
	text := string(status.State)
	switch {
	case status.State == "":
		return "not looked at yet"
	case status.State == v1alpha1.SpreadingSpread:
		return "spread over several paths"
	case status.State == v1alpha1.SpreadingNotSpread:
		text = "not spread"
	case status.State == v1alpha1.SpreadingUnknown:
		text = "unknown"
	}
	text += ": " + status.Reason
	if status.Message != "" {
		text += ": " + status.Message
	}
	return text
}
