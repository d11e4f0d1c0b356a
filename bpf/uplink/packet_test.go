// SPDX-License-Identifier: Apache-2.0

package uplink_test

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"
)

const (
	etherIPv4 = 0x0800
	etherARP  = 0x0806
	etherVLAN = 0x8100
	etherIPv6 = 0x86dd

	protocolTCP = 6
	protocolUDP = 17

	fin = 0x01
	syn = 0x02
	rst = 0x04
	psh = 0x08
	ack = 0x10

	etherLength = 14
	ipv4Length  = 20
	ipv6Length  = 40
	tcpLength   = 20
)

// firstSYN is the number of the pods' SYNs.
const firstSYN = 999

// segment describes a TCP segment in an Ethernet frame; its zero fields stand
// for what is usual.
type segment struct {
	from, to netip.AddrPort
	sequence uint32
	// answer is the acknowledged number; 0 for that which answers the pod's SYN.
	answer uint32
	flags  uint8
	// options of TCP; filled up with NOPs to whole words.
	options []byte
	payload []byte

	// vlan puts an 802.1Q tag into the frame.
	vlan uint16
	// protocol other than TCP.
	protocol uint8
	// ipOptions of IPv4, in whole words.
	ipOptions []byte
	// fragment is IPv4's field of flags and offset.
	fragment uint16
	// extension puts an IPv6 header of this kind, eight bytes long, before TCP.
	extension *uint8
	// ihl and doff are other lengths than the true ones.
	ihl, doff *uint8
}

// flip is the next segment of the other side.
func (s segment) flip() segment {
	s.from, s.to = s.to, s.from
	return s
}

func (s segment) with(change func(*segment)) segment {
	change(&s)
	return s
}

func (s segment) isIPv6() bool { return s.from.Addr().Is6() }

// frame is the segment as it is on the wire.
func (s segment) frame() []byte {
	frame := []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2}
	if s.vlan != 0 {
		frame = binary.BigEndian.AppendUint16(frame, etherVLAN)
		frame = binary.BigEndian.AppendUint16(frame, s.vlan)
	}
	tcp := s.tcp()
	if s.isIPv6() {
		frame = binary.BigEndian.AppendUint16(frame, etherIPv6)
		return append(frame, s.ipv6(tcp)...)
	}
	frame = binary.BigEndian.AppendUint16(frame, etherIPv4)
	return append(frame, s.ipv4(tcp)...)
}

func (s segment) tcp() []byte {
	options := slices.Clone(s.options)
	for len(options)%4 != 0 {
		options = append(options, nop...)
	}
	doff := uint8(5 + len(options)/4)
	if s.doff != nil {
		doff = *s.doff
	}
	header := binary.BigEndian.AppendUint16(nil, s.from.Port())
	header = binary.BigEndian.AppendUint16(header, s.to.Port())
	header = binary.BigEndian.AppendUint32(header, s.sequence)
	header = binary.BigEndian.AppendUint32(header, cmp.Or(s.answer, firstSYN+1))
	header = append(header, doff<<4, s.flags, 0xff, 0xff, 0, 0, 0, 0)
	tcp := slices.Concat(header, options, s.payload)
	binary.BigEndian.PutUint16(tcp[16:], checksum(slices.Concat(s.pseudoHeader(len(tcp)), tcp)))
	return tcp
}

func (s segment) pseudoHeader(length int) []byte {
	header := append(s.from.Addr().AsSlice(), s.to.Addr().AsSlice()...)
	return binary.BigEndian.AppendUint32(header, uint32(length+protocolTCP))
}

func (s segment) ipv4(inner []byte) []byte {
	length := ipv4Length + len(s.ipOptions)
	ihl := uint8(length / 4)
	if s.ihl != nil {
		ihl = *s.ihl
	}
	header := []byte{4<<4 | ihl&0xf, 0}
	header = binary.BigEndian.AppendUint16(header, uint16(length+len(inner)))
	header = append(header, 0, 1)
	header = binary.BigEndian.AppendUint16(header, s.fragment)
	header = append(header, 64, s.inner(), 0, 0)
	header = append(header, s.from.Addr().AsSlice()...)
	header = append(header, s.to.Addr().AsSlice()...)
	header = append(header, s.ipOptions...)
	binary.BigEndian.PutUint16(header[10:], checksum(header))
	return append(header, inner...)
}

func (s segment) ipv6(inner []byte) []byte {
	next := s.inner()
	if s.extension != nil {
		inner = append([]byte{next, 0, 1, 4, 0, 0, 0, 0}, inner...)
		next = *s.extension
	}
	header := []byte{6 << 4, 0, 0, 0}
	header = binary.BigEndian.AppendUint16(header, uint16(len(inner)))
	header = append(header, next, 64)
	header = append(header, s.from.Addr().AsSlice()...)
	header = append(header, s.to.Addr().AsSlice()...)
	return append(header, inner...)
}

func (s segment) inner() uint8 {
	if s.protocol != 0 {
		return s.protocol
	}
	return protocolTCP
}

// headers is the length of everything before the payload.
func (s segment) headers() int { return len(s.frame()) - len(s.payload) }

func checksum(of []byte) uint16 {
	var sum uint32
	for len(of) > 1 {
		sum += uint32(binary.BigEndian.Uint16(of))
		of = of[2:]
	}
	if len(of) == 1 {
		sum += uint32(of[0]) << 8
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}

// The options of TCP that the tests use, and those of RFC 8684.
var (
	nop           = []byte{1}
	endOfOptions  = []byte{0}
	maximumSize   = []byte{2, 4, 5, 180}
	windowScale   = []byte{3, 3, 7}
	sackPermitted = []byte{4, 2}
	timestamps    = []byte{8, 10, 0, 0, 0, 1, 0, 0, 0, 0}
	sack          = []byte{5, 10, 0, 0, 0, 1, 0, 0, 0, 9}
)

// capable is MP_CAPABLE as in a SYN.
func capable(version uint8) []byte { return []byte{30, 4, version, 1} }

// capableWithKey is MP_CAPABLE as in a SYN/ACK.
func capableWithKey(key uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte{30, 12, 1, 1}, key)
}

// join is MP_JOIN as in a SYN.
func join(token uint32) []byte {
	option := binary.BigEndian.AppendUint32([]byte{30, 12, 1 << 4, 1}, token)
	return append(option, 9, 9, 9, 9)
}

// joinAnswer is MP_JOIN as in a SYN/ACK.
func joinAnswer() []byte { return append([]byte{30, 16, 1 << 4, 1}, make([]byte, 12)...) }

// dataSignal is the DSS option of a data segment.
func dataSignal() []byte { return append([]byte{30, 20, 2 << 4, 5}, make([]byte, 16)...) }

// usual puts an option where Linux puts it in a SYN: after the others.
func usual(option []byte) []byte {
	return slices.Concat(maximumSize, sackPermitted, timestamps, nop, windowScale, option)
}
