// SPDX-License-Identifier: Apache-2.0

package agentapi

import (
	"cmp"
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
	// Incoming is the path by which the other end's packets come, where they do not come by
	// the one by which the endpoint's leave; empty otherwise.
	Incoming string `json:"incoming,omitempty"`
	Backup   bool   `json:"backup"`
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
	// Paths are what all of them carry by the path that their packets take, sorted by
	// name; those of which it is not known are left out.
	Paths []PathRate `json:"paths,omitempty"`
	// NICs are those that were asked for by `--nic`; one that is not there is left out.
	NICs []NICRate `json:"nics,omitempty"`
}

// PathRate is what subflows carry on a path, in payload.
type PathRate struct {
	Path                  string `json:"path"`
	Subflows              int    `json:"subflows"`
	SentBitsPerSecond     uint64 `json:"sentBitsPerSecond"`
	ReceivedBitsPerSecond uint64 `json:"receivedBitsPerSecond"`
}

// NICRate is what a NIC carries, of whomever, as its own counters tell.
type NICRate struct {
	Name string `json:"name"`
	// Up: it is set up, and something is at the other end.
	Up bool `json:"up"`
	// SpeedMbit is the rate of the link; 0 where the driver does not know it.
	SpeedMbit             int64  `json:"speedMbit,omitempty"`
	SentBitsPerSecond     uint64 `json:"sentBitsPerSecond"`
	ReceivedBitsPerSecond uint64 `json:"receivedBitsPerSecond"`
}

// BitsPerSecond sums both directions up.
func (r *Rate) BitsPerSecond() uint64 { return r.SentBitsPerSecond + r.ReceivedBitsPerSecond }

// Carrier is the path that the endpoint's packets take; empty while it is not known.
func (r *Rate) Carrier() string { return cmp.Or(r.StandIn, r.Path) }

// Bringer is the path by which the other end's packets come.
func (r *Rate) Bringer() string { return cmp.Or(r.Incoming, r.Carrier()) }

// BitsPerSecond is the rate of a count of bytes. One that went back began anew.
func BitsPerSecond(now, before uint64, elapsed time.Duration) uint64 {
	if now < before {
		before = 0
	}
	if elapsed <= 0 {
		return 0
	}
	return uint64(float64(now-before) * 8 / elapsed.Seconds())
}
