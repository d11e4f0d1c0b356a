// SPDX-License-Identifier: Apache-2.0

package endpoint_test

import (
	"crypto/sha256"
	"encoding/binary"
	"net/netip"
	"slices"

	"braid.dev/braid/bpf/packettest"
)

const (
	etherIPv4 = 0x0800
	etherIPv6 = 0x86dd
	etherVLAN = 0x8100

	fin = 0x01
	syn = 0x02
	rst = 0x04
	ack = 0x10

	etherLength = 14
)

// segment describes a TCP segment in an Ethernet frame.
type segment struct {
	from, to         netip.AddrPort
	sequence, answer uint32
	flags            uint8
	window           uint16
	options          []byte // filled up with NOPs to whole words
	payload          []byte
	vlan             uint16 // of an 802.1Q tag in the frame
	protocol         uint8  // other than TCP
	ipOptions        []byte // of IPv4, in whole words
	fragment         uint16 // IPv4's field of flags and offset
	extensions       []packettest.Extension
	padding          int // bytes behind the packet
}

func (s segment) with(change func(*segment)) segment {
	change(&s)
	return s
}

func (s segment) carrying(options ...[]byte) segment {
	s.options = slices.Concat(options...)
	return s
}

func (s segment) data(length int) segment {
	s.payload = make([]byte, length)
	return s
}

func (s segment) at(sequence uint32) segment {
	s.sequence = sequence
	return s
}

// answering is the segment with the flag ACK and this acknowledgement.
func (s segment) answering(sequence uint32) segment {
	s.answer = sequence
	s.flags |= ack
	return s
}

func (s segment) flagged(flags uint8) segment {
	s.flags = flags
	return s
}

func (s segment) frame() []byte {
	return packettest.Segment{
		From: s.from, To: s.to, Sequence: s.sequence, Acknowledge: s.answer, Flags: s.flags, Window: s.window,
		Options: s.options, Payload: s.payload, VLAN: s.vlan, Protocol: s.protocol, IPOptions: s.ipOptions,
		Fragment: s.fragment, Extensions: s.extensions, Trailer: make([]byte, s.padding),
	}.Frame()
}

// The options of TCP, and those of RFC 8684.
var (
	nop           = []byte{1}
	endOfOptions  = []byte{0}
	maximumSize   = []byte{2, 4, 5, 180}
	sackPermitted = []byte{4, 2}
)

func scale(shift byte) []byte { return []byte{3, 3, shift} }

func timestamps(value, echoed uint32) []byte {
	option := binary.BigEndian.AppendUint32([]byte{1, 1, 8, 10}, value)
	return binary.BigEndian.AppendUint32(option, echoed)
}

func sack(blocks int) []byte {
	return append([]byte{1, 1, 5, byte(2 + 8*blocks)}, make([]byte, 8*blocks)...)
}

var capable = []byte{30, 4, 1, 1}

func capableWithKey(key uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte{30, 12, 1, 1}, key)
}

// capableWithBothKeys is MP_CAPABLE of the third segment: the sender's key first.
func capableWithBothKeys(sender, receiver uint64) []byte {
	option := binary.BigEndian.AppendUint64([]byte{30, 20, 1, 1}, sender)
	return binary.BigEndian.AppendUint64(option, receiver)
}

// capableWithData is MP_CAPABLE of the first segment with data.
func capableWithData(sender, receiver uint64, length uint16) []byte {
	option := capableWithBothKeys(sender, receiver)
	option[1] = 22
	return binary.BigEndian.AppendUint16(option, length)
}

func join(token uint32, backup byte) []byte {
	option := binary.BigEndian.AppendUint32([]byte{30, 12, 1<<4 | backup, 1}, token)
	return append(option, 9, 9, 9, 9)
}

func joinAnswer() []byte { return append([]byte{30, 16, 1 << 4, 1}, make([]byte, 12)...) }
func joinThird() []byte  { return append([]byte{30, 24, 1 << 4, 0}, make([]byte, 20)...) }

// dataAck is DSS with nothing but a data acknowledgement.
func dataAck() []byte { return append([]byte{30, 12, 2 << 4, 3}, make([]byte, 8)...) }

// mapping is DSS with an acknowledgement of 8 bytes and a mapping.
func mapping(data uint64, subflow uint32, length uint16) []byte {
	option := append([]byte{30, 26, 2 << 4, 0xf}, make([]byte, 8)...)
	option = binary.BigEndian.AppendUint64(option, data)
	option = binary.BigEndian.AppendUint32(option, subflow)
	return binary.BigEndian.AppendUint16(option, length)
}

// shortMapping is a mapping of 4 bytes without an acknowledgement.
func shortMapping(data, subflow uint32, length uint16) []byte {
	option := binary.BigEndian.AppendUint32([]byte{30, 14, 2 << 4, 4}, data)
	option = binary.BigEndian.AppendUint32(option, subflow)
	return binary.BigEndian.AppendUint16(option, length)
}

func addAddress(echo byte) []byte {
	if echo == 1 {
		return []byte{30, 8, 3<<4 | 1, 2, 10, 0, 0, 9}
	}
	return append([]byte{30, 16, 3 << 4, 2, 10, 0, 0, 9}, make([]byte, 8)...)
}

var (
	removeAddress = []byte{30, 4, 4 << 4, 2}
	failed        = append([]byte{30, 12, 6 << 4, 0}, make([]byte, 8)...)
	fastClose     = append([]byte{30, 12, 7 << 4, 0}, make([]byte, 8)...)
)

func priority(backup byte) []byte { return []byte{30, 3, 5<<4 | backup} }

// usual puts an option where Linux puts it in a SYN: after the others.
func usual(option []byte) []byte {
	return slices.Concat(maximumSize, sackPermitted, timestamps(1, 0)[2:], nop, scale(7), option)
}

func tokenOf(key uint64) uint32 { return binary.BigEndian.Uint32(hashOf(key)) }

// dataSequenceOf is the number of the first byte that the key's owner sends.
func dataSequenceOf(key uint64) uint64 { return binary.BigEndian.Uint64(hashOf(key)[24:]) + 1 }

func hashOf(key uint64) []byte {
	hash := sha256.Sum256(binary.BigEndian.AppendUint64(nil, key))
	return hash[:]
}
