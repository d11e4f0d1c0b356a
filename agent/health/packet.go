// SPDX-License-Identifier: Apache-2.0

package health

import (
	"encoding/binary"
	"math"
	"time"
)

// Probes and answers have the same form and length, in network byte order:
//
//	0   4  magic, "BRDP"
//	4   1  version, 1
//	5   1  kind: 1 request, 2 reply, 3 large request
//	6   2  reply: milliseconds that the responder wants between probes, at least
//	8   8  nonce, chosen at random by the prober
//	16  4  reply: nanoseconds between the request's coming and the reply's going
//	20  4  reply: of these, what it may wait in front of the NIC; 0 where that is not known, as of older agents
//
// A large request is longer: what follows finds out whether packets of that size get there,
// and is not read. A packet of another length, magic, version or kind is none of ours.
const (
	packetLength  = 24
	packetMagic   = 0x42524450
	packetVersion = 1
	kindRequest   = 1
	kindReply     = 2
	kindLarge     = 3
)

type packet struct {
	kind     uint8
	nonce    uint64
	interval time.Duration
	held     time.Duration
	queued   time.Duration // part of held
}

func (p packet) bytes() (wire [packetLength]byte) {
	binary.BigEndian.PutUint32(wire[0:], packetMagic)
	wire[4], wire[5] = packetVersion, p.kind
	binary.BigEndian.PutUint16(wire[6:], uint16(min(max(0, p.interval.Milliseconds()), math.MaxUint16)))
	binary.BigEndian.PutUint64(wire[8:], p.nonce)
	putNanoseconds(wire[16:], p.held)
	putNanoseconds(wire[20:], p.queued)
	return wire
}

// putNanoseconds writes a time, or what is nearest to it that fits.
func putNanoseconds(to []byte, d time.Duration) {
	binary.BigEndian.PutUint32(to, uint32(min(max(0, d.Nanoseconds()), math.MaxUint32)))
}

func nanoseconds(of []byte) time.Duration { return time.Duration(binary.BigEndian.Uint32(of)) }

// parse reads a packet; false for one that is none of ours.
func parse(wire []byte) (packet, bool) {
	if len(wire) < packetLength || binary.BigEndian.Uint32(wire) != packetMagic || wire[4] != packetVersion {
		return packet{}, false
	}
	switch kind := wire[5]; {
	case kind == kindLarge && len(wire) > packetLength:
	case (kind == kindRequest || kind == kindReply) && len(wire) == packetLength:
	default:
		return packet{}, false
	}
	return packet{
		kind:     wire[5],
		nonce:    binary.BigEndian.Uint64(wire[8:]),
		interval: time.Duration(binary.BigEndian.Uint16(wire[6:])) * time.Millisecond,
		held:     nanoseconds(wire[16:]),
		queued:   nanoseconds(wire[20:]),
	}, true
}
