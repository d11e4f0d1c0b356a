// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"braid.dev/braid/agent/events"
)

// Rate is what a living subflow carries.
type Rate struct {
	// Endpoint is the pod as namespace/name.
	Endpoint string `json:"endpoint"`
	// Token is the responder's or, where that is not known, the initiator's.
	Token  events.Token   `json:"token,omitempty"`
	Local  netip.AddrPort `json:"local"`
	Remote netip.AddrPort `json:"remote"`
	// Path is its name; empty while it is not known.
	Path   string `json:"path,omitempty"`
	Backup bool   `json:"backup"`
	// RTTMicroseconds is the smoothed round-trip time; 0 while not measured.
	RTTMicroseconds uint64 `json:"rttMicroseconds,omitempty"`
	// SentBitsPerSecond and ReceivedBitsPerSecond are of payload, since the reading
	// before.
	SentBitsPerSecond     uint64 `json:"sentBitsPerSecond"`
	ReceivedBitsPerSecond uint64 `json:"receivedBitsPerSecond"`
}

// Reading is what a node's subflows carry at one time.
type Reading struct {
	Time time.Time `json:"time"`
	// Total is how many subflows live, Busy those of them that carry most, the
	// busiest first.
	Total int    `json:"total"`
	Busy  []Rate `json:"busy"`
}

// Meter makes rates of counts, from one reading to the next. The zero value has
// read nothing.
type Meter struct {
	before map[subflowEnds]carried
	at     time.Time
}

type subflowEnds struct {
	endpoint string
	ends
}

type carried struct{ sent, received uint64 }

// Read takes a reading in, and returns what changed since the one before: of the
// most busy subflows, as many as limit, or all with 0. The first reading has no
// rates, and false is returned.
func (m *Meter) Read(at time.Time, subflows []Subflow, limit int) (Reading, bool) {
	elapsed, first := at.Sub(m.at), m.before == nil
	reading := Reading{Time: at, Busy: []Rate{}}
	now := make(map[subflowEnds]carried, len(subflows))
	for i := range subflows {
		s := &subflows[i]
		if s.Ended {
			continue
		}
		key := subflowEnds{s.Endpoint, ends{s.Local, s.Remote}}
		now[key] = carried{s.Sent.Bytes, s.Received.Bytes}
		reading.Busy = append(reading.Busy, rateOf(s, m.before[key], elapsed))
	}
	m.before, m.at = now, at
	reading.Total = len(reading.Busy)
	slices.SortStableFunc(reading.Busy, func(a, b Rate) int { return cmp.Compare(b.total(), a.total()) })
	if limit > 0 && limit < reading.Total {
		reading.Busy = reading.Busy[:limit]
	}
	return reading, !first
}

func (r *Rate) total() uint64 { return r.SentBitsPerSecond + r.ReceivedBitsPerSecond }

func rateOf(s *Subflow, before carried, elapsed time.Duration) Rate {
	return Rate{
		Endpoint: s.Endpoint, Token: cmp.Or(s.Token, s.InitiatorToken), Local: s.Local, Remote: s.Remote,
		Path: s.Path, Backup: s.Backup, RTTMicroseconds: s.RTTMicroseconds,
		SentBitsPerSecond:     bitsPerSecond(s.Sent.Bytes, before.sent, elapsed),
		ReceivedBitsPerSecond: bitsPerSecond(s.Received.Bytes, before.received, elapsed),
	}
}

// bitsPerSecond takes a count that went back for that of another subflow with the
// same ends.
func bitsPerSecond(now, before uint64, elapsed time.Duration) uint64 {
	if now < before {
		before = 0
	}
	if elapsed <= 0 {
		return 0
	}
	return uint64(float64(now-before) * 8 / elapsed.Seconds())
}
