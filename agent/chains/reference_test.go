// SPDX-License-Identifier: Apache-2.0

package chains

import (
	"net/netip"
	"slices"
	"strconv"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/bpf/endpoint"
)

// facts are what is known of a packet. A nil pointer, an empty path and a token
// of 0 are not known.
type facts struct {
	direction                   v1alpha1.Direction
	local, remote               netip.AddrPort
	token, initiatorToken       uint32
	path                        string
	types                       []v1alpha1.PacketType
	dataSequence, subflowSeq    *uint64
	subflowSent, connectionSent uint64
	backup                      bool
	// answers are those of programs for the packet; one that is not there is not loaded.
	answers map[string]bool
	asked   []string // when a chain runs, in their order
}

func (f *facts) source() netip.AddrPort {
	if f.direction == v1alpha1.DirectionFromEndpoint {
		return f.local
	}
	return f.remote
}

func (f *facts) destination() netip.AddrPort {
	if f.direction == v1alpha1.DirectionFromEndpoint {
		return f.remote
	}
	return f.local
}

// What follows says what matches mean, in the words of the API alone.

func matches(m *v1alpha1.Match, f *facts) bool {
	if m == nil {
		return true
	}
	return selected(&m.Selectors, f) && every(m.All, f, matchesNested) &&
		(len(m.Any) == 0 || atLeastOne(m.Any, f, matchesNested)) && (m.Not == nil || !matchesNested(m.Not, f))
}

func matchesNested(m *v1alpha1.NestedMatch, f *facts) bool {
	return selected(&m.Selectors, f) && every(m.All, f, selected) &&
		(len(m.Any) == 0 || atLeastOne(m.Any, f, selected)) && (m.Not == nil || !selected(m.Not, f))
}

func every[T any](conditions []T, f *facts, holds func(*T, *facts) bool) bool {
	return !slices.ContainsFunc(conditions, func(c T) bool { return !holds(&c, f) })
}

func atLeastOne[T any](conditions []T, f *facts, holds func(*T, *facts) bool) bool {
	return slices.ContainsFunc(conditions, func(c T) bool { return holds(&c, f) })
}

func selected(s *v1alpha1.Selectors, f *facts) bool {
	return tokenIs(s.Token, f) && ofSubflow(s.Subflow, f) && ofPair(s.AddressPair, f) &&
		onSide(s.Source, f.source()) && onSide(s.Destination, f.destination()) &&
		(s.Direction == "" || s.Direction == f.direction) &&
		(len(s.PacketTypes) == 0 || slices.ContainsFunc(s.PacketTypes, func(p v1alpha1.PacketType) bool { return slices.Contains(f.types, p) })) &&
		(len(s.Paths) == 0 || f.path != "" && slices.Contains(s.Paths, v1alpha1.PathName(f.path))) &&
		(s.Sequence == nil || inRange(s.Sequence.Data, f.dataSequence) && inRange(s.Sequence.Subflow, f.subflowSeq)) &&
		(s.Sent == nil || inRange(s.Sent.Subflow, &f.subflowSent) && inRange(s.Sent.Connection, &f.connectionSent)) &&
		(s.Backup == nil || *s.Backup == f.backup) &&
		(s.Program == nil || f.answers[s.Program.Name])
}

func tokenIs(text string, f *facts) bool {
	if text == "" {
		return true
	}
	value, err := strconv.ParseUint(text[2:], 16, 32)
	if err != nil {
		panic(err)
	}
	return value != 0 && (uint32(value) == f.token || uint32(value) == f.initiatorToken)
}

func ofSubflow(s *v1alpha1.SubflowTuple, f *facts) bool {
	if s == nil {
		return true
	}
	a := netip.AddrPortFrom(netip.MustParseAddr(string(s.SourceAddress)), uint16(s.SourcePort))
	b := netip.AddrPortFrom(netip.MustParseAddr(string(s.DestinationAddress)), uint16(s.DestinationPort))
	return a == f.local && b == f.remote || a == f.remote && b == f.local
}

func ofPair(pair []v1alpha1.IPAddress, f *facts) bool {
	if len(pair) == 0 {
		return true
	}
	a, b := netip.MustParseAddr(string(pair[0])), netip.MustParseAddr(string(pair[1]))
	local, remote := f.local.Addr(), f.remote.Addr()
	return a == local && b == remote || a == remote && b == local
}

func onSide(s *v1alpha1.Side, end netip.AddrPort) bool {
	if s == nil {
		return true
	}
	if s.CIDR != "" && !netip.MustParsePrefix(string(s.CIDR)).Masked().Contains(end.Addr()) {
		return false
	}
	return len(s.Ports) == 0 || slices.ContainsFunc(s.Ports, func(r v1alpha1.PortRange) bool {
		port := int32(end.Port())
		return port == r.Port || r.EndPort != 0 && r.Port <= port && port <= r.EndPort
	})
}

func inRange(r *v1alpha1.ByteRange, value *uint64) bool {
	if r == nil {
		return true
	}
	if value == nil {
		return false
	}
	return (r.From == nil || *value >= uint64(r.From.Value())) && (r.To == nil || *value < uint64(r.To.Value()))
}

// What follows runs a chain as the endpoint half does.

// run tells which rules of a chain match the packet.
func run(chain *Chain, f *facts, paths map[string]uint8) (hits []int) {
	for i := range chain.Rules {
		rule := &chain.Rule[i]
		if rule.Directions&directionBit(f) == 0 {
			continue
		}
		at := rule.FirstSelector
		for at < endpoint.NotMatched {
			selector := &chain.Selector[at]
			if selector.Kind == endpoint.SelectProgram {
				at = f.ask(selector, at)
			} else if holds(selector, f, paths) != (selector.Negated == 1) {
				at = selector.IfTrue
			} else {
				at = selector.IfFalse
			}
		}
		if at == endpoint.Matched {
			hits = append(hits, int(i))
		}
	}
	return hits
}

// ask is where the answer of a program leads.
func (f *facts) ask(s *Selector, at uint16) uint16 {
	if s.Index != at {
		panic("a selector of a program that does not know its place")
	}
	name := programNames[s.Mask-firstSlot]
	f.asked = append(f.asked, name)
	if answer, loaded := f.answers[name]; !loaded || answer == (s.Negated == 1) {
		return s.IfFalse
	}
	return s.IfTrue
}

func directionBit(f *facts) uint8 {
	if f.direction == v1alpha1.DirectionFromEndpoint {
		return 1
	}
	return 2
}

func holds(s *Selector, f *facts, paths map[string]uint8) bool {
	in := func(value uint64) bool { return s.From <= value && value <= s.To }
	known := func(value *uint64) bool { return value != nil && in(*value) }
	masked := func(end netip.AddrPort) bool {
		a := toAddress(end.Addr().As16())
		for i := range a.Word {
			if a.Word[i]&s.Netmask.Word[i] != s.Address.Word[i] {
				return false
			}
		}
		return true
	}
	switch s.Kind {
	case endpoint.SelectToken:
		return s.Mask != 0 && (s.Mask == f.token || s.Mask == f.initiatorToken)
	case endpoint.SelectLocalAddress:
		return masked(f.local)
	case endpoint.SelectRemoteAddress:
		return masked(f.remote)
	case endpoint.SelectSourceAddress:
		return masked(f.source())
	case endpoint.SelectDestinationAddress:
		return masked(f.destination())
	case endpoint.SelectLocalPort:
		return in(uint64(f.local.Port()))
	case endpoint.SelectRemotePort:
		return in(uint64(f.remote.Port()))
	case endpoint.SelectSourcePort:
		return in(uint64(f.source().Port()))
	case endpoint.SelectDestinationPort:
		return in(uint64(f.destination().Port()))
	case endpoint.SelectDirection:
		return s.Mask&uint32(directionBit(f)) != 0
	case endpoint.SelectPath:
		slot, known := paths[f.path]
		return known && s.Mask>>slot&1 == 1
	case endpoint.SelectTypes:
		var types uint32
		for _, name := range f.types {
			types |= packetTypeBits[name]
		}
		return s.Mask&types != 0
	case endpoint.SelectDataSequence:
		return known(f.dataSequence)
	case endpoint.SelectSubflowSequence:
		return known(f.subflowSeq)
	case endpoint.SelectSubflowSent:
		return in(f.subflowSent)
	case endpoint.SelectConnectionSent:
		return in(f.connectionSent)
	case endpoint.SelectBackup:
		return f.backup == (s.Mask == 1)
	}
	panic("a selector that nobody knows: " + strconv.Itoa(int(s.Kind)))
}
