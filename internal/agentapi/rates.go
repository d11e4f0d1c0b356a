// SPDX-License-Identifier: Apache-2.0

package agentapi

import (
	"net/netip"
	"time"
)

// Rate is what a living subflow carries.
type Rate struct {
	// Endpoint is the pod as namespace/name.
	Endpoint string `json:"endpoint"`
	// Token is the responder's or, where that is not known, the initiator's.
	Token  Token          `json:"token,omitempty"`
	Local  netip.AddrPort `json:"local"`
	Remote netip.AddrPort `json:"remote"`
	// Path is its name; empty while it is not known.
	Path string `json:"path,omitempty"`
	// StandIn is the path by which the endpoint's packets leave now, because Path does not
	// answer them; empty otherwise.
	StandIn string `json:"standIn,omitempty"`
	Backup  bool   `json:"backup"`
	// RTTMicroseconds is the smoothed round-trip time; 0 while not measured.
	RTTMicroseconds uint64 `json:"rttMicroseconds,omitempty"`
	// SentBitsPerSecond and ReceivedBitsPerSecond are of payload, since the reading
	// before.
	SentBitsPerSecond     uint64 `json:"sentBitsPerSecond"`
	ReceivedBitsPerSecond uint64 `json:"receivedBitsPerSecond"`
}

// Reading is what a node's subflows carry at one time, a line of `braid-agent rates`.
type Reading struct {
	Time time.Time `json:"time"`
	// Total is how many subflows live, Busy those of them that carry most, the
	// busiest first.
	Total int    `json:"total"`
	Busy  []Rate `json:"busy"`
}

// BitsPerSecond sums both directions up.
func (r *Rate) BitsPerSecond() uint64 { return r.SentBitsPerSecond + r.ReceivedBitsPerSecond }
