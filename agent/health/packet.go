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
//	20  4  not used, 0
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
}

func (p packet) bytes() (wire [packetLength]byte) {
	binary.BigEndian.PutUint32(wire[0:], packetMagic)
	wire[4], wire[5] = packetVersion, p.kind
	binary.BigEndian.PutUint16(wire[6:], uint16(min(max(0, p.interval.Milliseconds()), math.MaxUint16)))
	binary.BigEndian.PutUint64(wire[8:], p.nonce)
	binary.BigEndian.PutUint32(wire[16:], uint32(min(max(0, p.held.Nanoseconds()), math.MaxUint32)))
	return wire
}

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
		held:     time.Duration(binary.BigEndian.Uint32(wire[16:])),
	}, true
}
