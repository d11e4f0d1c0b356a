// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"braid.dev/braid/internal/agentapi"
)

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
func (m *Meter) Read(at time.Time, subflows []agentapi.Subflow, limit int) (agentapi.Reading, bool) {
	elapsed, first := at.Sub(m.at), m.before == nil
	reading := agentapi.Reading{Time: at, Busy: []agentapi.Rate{}}
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
	reading.Total, reading.Paths = len(reading.Busy), byPath(reading.Busy)
	slices.SortStableFunc(reading.Busy, func(a, b agentapi.Rate) int { return cmp.Compare(b.BitsPerSecond(), a.BitsPerSecond()) })
	if limit > 0 && limit < reading.Total {
		reading.Busy = reading.Busy[:limit]
	}
	return reading, !first
}

func rateOf(s *agentapi.Subflow, before carried, elapsed time.Duration) agentapi.Rate {
	return agentapi.Rate{
		Endpoint: s.Endpoint, Token: cmp.Or(s.Token, s.InitiatorToken), Local: s.Local, Remote: s.Remote,
		Path: s.Path, StandIn: s.StandIn, Incoming: s.Incoming, Backup: s.Backup, RTTMicroseconds: s.RTTMicroseconds,
		SentBitsPerSecond:     agentapi.BitsPerSecond(s.Sent.Bytes, before.sent, elapsed),
		ReceivedBitsPerSecond: agentapi.BitsPerSecond(s.Received.Bytes, before.received, elapsed),
	}
}

// byPath sums up what subflows carry on each path.
func byPath(rates []agentapi.Rate) (paths []agentapi.PathRate) {
	sums := map[string]*agentapi.PathRate{}
	of := func(path string) *agentapi.PathRate {
		if sums[path] == nil {
			sums[path] = &agentapi.PathRate{Path: path}
		}
		return sums[path]
	}
	for i := range rates {
		if rates[i].Carrier() == "" {
			continue
		}
		sends, receives := of(rates[i].Carrier()), of(rates[i].Bringer())
		sends.Subflows++
		sends.SentBitsPerSecond += rates[i].SentBitsPerSecond
		receives.ReceivedBitsPerSecond += rates[i].ReceivedBitsPerSecond
	}
	for _, path := range slices.Sorted(maps.Keys(sums)) {
		paths = append(paths, *sums[path])
	}
	return paths
}
