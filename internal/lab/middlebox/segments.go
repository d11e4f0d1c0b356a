// SPDX-License-Identifier: Apache-2.0

package middlebox

import (
	"bytes"
	"slices"
	"time"
)

// cut makes pieces of at most so many bytes, each with all the options.
func cut(s *segment, most int) (pieces []*segment) {
	for len(s.payload) > most {
		piece := s.clone()
		piece.payload = s.payload[:most]
		piece.tcp[13] &^= fin | psh
		pieces = append(pieces, piece)
		s.setSequence(s.sequence() + uint32(most))
		s.payload = s.payload[most:]
	}
	return append(pieces, s)
}

// split cuts each segment into two at least.
func split(s *segment) (pieces []passed) {
	for _, piece := range cut(s, max(1, min((len(s.payload)+1)/2, (mtu-s.headers())/2))) {
		pieces = append(pieces, passed{segment: piece})
	}
	return pieces
}

// joiner makes one segment of several that follow each other, with the options of the
// first alone: those of the others are lost.
type joiner struct{ held map[ends]*heldSegment }

type heldSegment struct {
	*segment
	since time.Time
}

const (
	// longestJoined is what the lab's links pass without cutting it.
	longestJoined = 14_000
	longestHeld   = 2 * time.Millisecond
)

func (j *joiner) pass(s *segment) (out []passed) {
	for _, piece := range cut(s, mtu-s.headers()) {
		out = append(out, j.add(piece)...)
	}
	return out
}

func (j *joiner) add(s *segment) (out []passed) {
	held := j.held[s.ends]
	plain := len(s.payload) > 0 && s.is(syn|rst|fin, 0)
	if held != nil && plain && held.after() == s.sequence() && len(held.payload)+len(s.payload) <= longestJoined {
		held.payload = slices.Concat(held.payload, s.payload)
		held.tcp[13] |= s.flags()
		held.setAcknowledged(s.acknowledged())
		return nil
	}
	if held != nil {
		delete(j.held, s.ends)
		out = on(held.segment)
	}
	if !plain {
		return append(out, passed{segment: s})
	}
	j.held[s.ends] = &heldSegment{s, time.Now()}
	return out
}

func (j *joiner) due(now time.Time) (out []passed) {
	for flow, held := range j.held {
		if now.Sub(held.since) >= longestHeld {
			delete(j.held, flow)
			out = append(out, passed{segment: held.segment})
		}
	}
	return out
}

// everyNth does something to one segment of so many that have payload.
type everyNth struct {
	n, seen int
	do      func(*segment) []passed
}

func (e *everyNth) pass(s *segment) (out []passed) {
	for _, piece := range cut(s, mtu-s.headers()) {
		if e.seen++; len(piece.payload) > 0 && e.seen%e.n == 0 {
			out = append(out, e.do(piece)...)
			continue
		}
		out = append(out, passed{segment: piece})
	}
	return out
}

func (*everyNth) due(time.Time) []passed { return nil }

// later has others overtake it.
func later(s *segment) []passed { return []passed{{segment: s, later: 2 * time.Millisecond}} }

func twice(s *segment) []passed { return []passed{{segment: s}, {segment: s.clone()}} }

// payloadChange changes bytes at places of a flow's own stream, the same ones when they
// are sent again.
type payloadChange struct {
	began  map[ends]uint32 // sequence number of the first byte
	change func(p *payloadChange, s *segment)
}

// Every is how far apart the bytes are that boxes change.
const Every = 40_009

func newPayload(change func(*payloadChange, *segment)) *payloadChange {
	return &payloadChange{began: map[ends]uint32{}, change: change}
}

func (p *payloadChange) pass(s *segment) []passed {
	if s.is(syn, syn) {
		p.began[s.ends] = s.sequence() + 1
	}
	p.change(p, s)
	return on(s)
}

func (*payloadChange) due(time.Time) []passed { return nil }

// changed tells which of the segment's bytes are changed.
func (p *payloadChange) changed(s *segment) (places []int) {
	began, known := p.began[s.ends]
	if !known {
		return nil
	}
	offset := int(s.sequence() - began)
	for at := (offset/Every+1)*Every - 1 - offset; at < len(s.payload); at += Every {
		places = append(places, at)
	}
	return places
}

func flipBytes(p *payloadChange, s *segment) {
	if places := p.changed(s); len(places) > 0 {
		s.payload = bytes.Clone(s.payload)
		for _, at := range places {
			s.payload[at] ^= 0xff
		}
	}
}

// takeBytes takes the bytes out, and has the sequence numbers fit.
func takeBytes(p *payloadChange, s *segment) {
	places := p.changed(s)
	if began, known := p.began[s.ends]; known && !s.is(syn, syn) {
		offset := s.sequence() - began
		s.setSequence(s.sequence() - offset/Every)
	}
	for _, at := range slices.Backward(places) {
		s.payload = slices.Concat(s.payload[:at], s.payload[at+1:])
	}
	began, known := p.began[s.reversed()]
	if !known || s.is(ack, 0) {
		return
	}
	s.mapAcknowledged(func(to uint32) uint32 {
		if to == began-1 { // nothing but the SYN was sent
			return to
		}
		return to + (to-began)/(Every-1)
	})
}
