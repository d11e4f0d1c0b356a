// SPDX-License-Identifier: Apache-2.0

package agentapi

import (
	"cmp"
	"net/netip"
	"time"

	"braid.dev/braid/api/v1alpha1"
)

// Subflow is one subflow that an endpoint's rules concern.
type Subflow struct {
	// Endpoint is the pod as namespace/name or, where only the pinned maps were
	// read, the host's interface.
	Endpoint string `json:"endpoint"`
	// Token is the responder's, InitiatorToken the initiator's; 0 while unknown.
	Token          Token          `json:"token,omitempty"`
	InitiatorToken Token          `json:"initiatorToken,omitempty"`
	Local          netip.AddrPort `json:"local"`
	Remote         netip.AddrPort `json:"remote"`
	// Path is its name; empty until a packet of the peer told which it is.
	Path string `json:"path,omitempty"`
	// StandIn is the path by which the endpoint's packets leave now, because Path does not
	// answer them; empty otherwise.
	StandIn string `json:"standIn,omitempty"`
	// Incoming is the path by which the other end's packets come, where they do not come by
	// the one by which the endpoint's leave; empty otherwise.
	Incoming string `json:"incoming,omitempty"`
	// Backup is true for a subflow that is used when no other works.
	Backup bool `json:"backup"`
	// Ended is true for a subflow that is over, and not forgotten yet.
	Ended bool `json:"ended,omitempty"`
	// RTTMicroseconds is the smoothed round-trip time; 0 while not measured.
	RTTMicroseconds uint64 `json:"rttMicroseconds,omitempty"`
	// Sent and Received are as the endpoint sees it.
	Sent     Traffic `json:"sent"`
	Received Traffic `json:"received"`
	Limits   []Limit `json:"limits,omitempty"`
}

// Traffic is what a subflow carried in one direction.
type Traffic struct {
	// Bytes of payload, those sent again included.
	Bytes   uint64 `json:"bytes"`
	Packets uint64 `json:"packets"`
	// Retransmissions and Reordered count packets.
	Retransmissions uint64 `json:"retransmissions"`
	Reordered       uint64 `json:"reordered"`
}

// Limit is a rate that a rule set for one direction of a subflow.
type Limit struct {
	// Policy and Rule that asked for it; empty where only the maps were read.
	Policy    string             `json:"policy,omitempty"`
	Rule      string             `json:"rule,omitempty"`
	Direction v1alpha1.Direction `json:"direction"`
	// BitsPerSecond of payload.
	BitsPerSecond uint64 `json:"bitsPerSecond"`
	// Per says what shares the rate.
	Per v1alpha1.RateLimitScope `json:"per"`
	// Asked is the mechanism that the rule asks for, InUse the one that holds now;
	// empty while nothing is enforced.
	Asked v1alpha1.RateLimitMechanism `json:"asked"`
	InUse v1alpha1.RateLimitMechanism `json:"inUse,omitempty"`
	Why   Why                         `json:"why,omitempty"`
}

// Why is the reason for a mechanism, or for none.
type Why string

// Reasons.
const (
	WhyAsked     Why = "Asked"
	WhyOwnSocket Why = "OwnSocket"
	WhyNoSocket  Why = "NoSocket"
	WhyNoSYN     Why = "NoSYN"
	WhyShortRTT  Why = "ShortRTT"
	WhyNoRTT     Why = "NoRTT"
)

// whyTexts say the reasons in words.
var whyTexts = map[Why]string{
	WhyAsked:     "the rule insists on it",
	WhyOwnSocket: "the pod's own sockets",
	WhyNoSocket:  "the sender is not on this node",
	WhyNoSYN:     "the SYN was not seen",
	WhyShortRTT:  "the RTT is too short for a window",
	WhyNoRTT:     "the RTT is not measured yet",
}

// Text says the reason in words; it is empty for a reason that is not known.
func (w Why) Text() string { return whyTexts[w] }

// Rule is what one rule did for one endpoint.
type Rule struct {
	Endpoint string `json:"endpoint"`
	// Policy and Name of the rule. Where only the pinned maps were read, Policy is
	// empty and Name is the rule's place in its chain, as in #1.
	Policy string `json:"policy,omitempty"`
	Name   string `json:"name"`
	// Hits are packets that it matched, Bytes their payload, Acted those that its
	// actions changed, dropped or answered.
	Hits  uint64 `json:"hits"`
	Bytes uint64 `json:"bytes"`
	Acted uint64 `json:"acted"`
}

// Carrier is the path by which the endpoint's packets leave; empty while it is not known.
func (s *Subflow) Carrier() string { return cmp.Or(s.StandIn, s.Path) }

// RTT is the smoothed round-trip time; 0 while not measured.
func (s *Subflow) RTT() time.Duration { return time.Duration(s.RTTMicroseconds) * time.Microsecond }
