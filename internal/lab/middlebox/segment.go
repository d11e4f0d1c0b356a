// SPDX-License-Identifier: Apache-2.0

package middlebox

import (
	"encoding/binary"
	"net/netip"
	"slices"
)

const (
	virtioHeader   = 10
	ethernetHeader = 14
	tcpHeader      = 20
	ipv6Header     = 40
	mtu            = 1500

	etherIPv4, etherIPv6 = 0x0800, 0x86dd
	protocolTCP          = 6
)

// Flags of TCP.
const (
	fin = 1 << iota
	syn
	rst
	psh
	ack
)

// ends are the addresses and ports of a segment.
type ends struct{ from, to netip.AddrPort }

func (e ends) reversed() ends { return ends{e.to, e.from} }

// segment is one of TCP, which may be longer than the link's MTU.
type segment struct {
	ends
	port     int // at which it came in
	ethernet []byte
	ip       []byte
	tcp      []byte // without options
	options  []option
	payload  []byte
}

// option is one of TCP with its kind and length.
type option []byte

const (
	optionEnd   = 0
	optionNOP   = 1
	optionSACK  = 5
	optionMPTCP = 30
)

// Subtypes of MPTCP's option.
const (
	mpJoin        = 1
	addAddress    = 3
	smallestMPTCP = 3
)

func (o option) mptcp() bool { return o[0] == optionMPTCP && len(o) >= smallestMPTCP }

func (o option) subtype() byte { return o[2] >> 4 }

func (s *segment) flags() byte           { return s.tcp[13] }
func (s *segment) is(mask, as byte) bool { return s.flags()&mask == as }
func (s *segment) sequence() uint32      { return binary.BigEndian.Uint32(s.tcp[4:]) }
func (s *segment) acknowledged() uint32  { return binary.BigEndian.Uint32(s.tcp[8:]) }

func (s *segment) setSequence(to uint32)     { binary.BigEndian.PutUint32(s.tcp[4:], to) }
func (s *segment) setAcknowledged(to uint32) { binary.BigEndian.PutUint32(s.tcp[8:], to) }

// after is the sequence number of what follows the payload.
func (s *segment) after() uint32 { return s.sequence() + uint32(len(s.payload)) }

func (s *segment) hasMPTCP() bool { return slices.ContainsFunc(s.options, option.mptcp) }

// clone has headers of its own, and the same payload.
func (s *segment) clone() *segment {
	c := *s
	c.ip, c.tcp, c.options = slices.Clone(s.ip), slices.Clone(s.tcp), slices.Clone(s.options)
	for i := range c.options {
		c.options[i] = slices.Clone(c.options[i])
	}
	return &c
}

// decode reads a frame with a header of virtio. What is no whole segment of TCP right
// behind an IP header is none.
func decode(port int, frame []byte) (*segment, bool) {
	if len(frame) < virtioHeader+ethernetHeader+tcpHeader {
		return nil, false
	}
	s := &segment{port: port, ethernet: frame[virtioHeader:][:ethernetHeader]}
	packet := frame[virtioHeader+ethernetHeader:]
	var inner []byte
	switch binary.BigEndian.Uint16(s.ethernet[12:]) {
	case etherIPv4:
		inner = s.decodeIPv4(packet)
	case etherIPv6:
		inner = s.decodeIPv6(packet)
	}
	return s, s.decodeTCP(inner)
}

func (s *segment) decodeIPv4(packet []byte) []byte {
	header, total := int(packet[0]&0xf)*4, int(binary.BigEndian.Uint16(packet[2:]))
	const moreOrOffset = 0x3fff
	fragment := binary.BigEndian.Uint16(packet[6:]) & moreOrOffset
	if header < 20 || total < header || total > len(packet) || packet[9] != protocolTCP || fragment != 0 {
		return nil
	}
	s.ip = packet[:header]
	return packet[header:total]
}

func (s *segment) decodeIPv6(packet []byte) []byte {
	if len(packet) < ipv6Header || packet[6] != protocolTCP {
		return nil
	}
	total := ipv6Header + int(binary.BigEndian.Uint16(packet[4:]))
	if total > len(packet) {
		return nil
	}
	s.ip = packet[:ipv6Header]
	return packet[ipv6Header:total]
}

func (s *segment) decodeTCP(inner []byte) bool {
	if len(inner) < tcpHeader {
		return false
	}
	offset := int(inner[12]>>4) * 4
	if offset < tcpHeader || offset > len(inner) {
		return false
	}
	s.tcp, s.payload = inner[:tcpHeader], inner[offset:]
	from, to := s.addresses()
	s.ends = ends{
		netip.AddrPortFrom(from, binary.BigEndian.Uint16(s.tcp)),
		netip.AddrPortFrom(to, binary.BigEndian.Uint16(s.tcp[2:])),
	}
	var ok bool
	s.options, ok = decodeOptions(inner[tcpHeader:offset])
	return ok
}

func decodeOptions(bytes []byte) (options []option, ok bool) {
	for len(bytes) > 0 && bytes[0] != optionEnd {
		length := 1
		if bytes[0] != optionNOP {
			if len(bytes) < 2 || bytes[1] < 2 || int(bytes[1]) > len(bytes) {
				return nil, false
			}
			length = int(bytes[1])
		}
		options = append(options, bytes[:length])
		bytes = bytes[length:]
	}
	return options, true
}

func (s *segment) isIPv6() bool { return len(s.ip) == ipv6Header && s.ip[0]>>4 == 6 }

func (s *segment) addressFields() (from, to []byte) {
	if s.isIPv6() {
		return s.ip[8:24], s.ip[24:40]
	}
	return s.ip[12:16], s.ip[16:20]
}

func (s *segment) addresses() (from, to netip.Addr) {
	first, second := s.addressFields()
	from, _ = netip.AddrFromSlice(first)
	to, _ = netip.AddrFromSlice(second)
	return from, to
}

// setEnds changes addresses and ports.
func (s *segment) setEnds(to ends) {
	s.ends = to
	first, second := s.addressFields()
	copy(first, to.from.Addr().AsSlice())
	copy(second, to.to.Addr().AsSlice())
	binary.BigEndian.PutUint16(s.tcp, to.from.Port())
	binary.BigEndian.PutUint16(s.tcp[2:], to.to.Port())
}

// headers is the length of the headers of IP and TCP.
func (s *segment) headers() int { return len(s.ip) + tcpHeader + len(s.encodeOptions()) }

func (s *segment) encodeOptions() (bytes []byte) {
	for _, option := range s.options {
		bytes = append(bytes, option...)
	}
	for len(bytes)%4 != 0 {
		bytes = append(bytes, optionNOP)
	}
	return bytes
}

// encode is the segment as a frame with a header of virtio: with a right checksum, or as
// one of segmentation offload where it is longer than the MTU.
func (s *segment) encode() []byte {
	options := s.encodeOptions()
	s.tcp[12] = byte((tcpHeader+len(options))/4) << 4
	length := tcpHeader + len(options) + len(s.payload)
	s.setLength(length)
	copy(s.tcp[16:18], []byte{0, 0})
	pseudo := s.pseudoHeader(length)
	frame := slices.Concat(make([]byte, virtioHeader), s.ethernet, s.ip, s.tcp, options, s.payload)
	start := virtioHeader + ethernetHeader + len(s.ip)
	check := frame[start+16:]
	if len(s.ip)+length <= mtu {
		binary.BigEndian.PutUint16(check, ^sum(pseudo, frame[start:]))
		return frame
	}
	binary.BigEndian.PutUint16(check, sum(pseudo))
	s.offload(frame, start-virtioHeader, len(options))
	return frame
}

// offload writes the header of virtio that has the receiver cut the frame, and finish
// its checksums.
func (s *segment) offload(frame []byte, start, options int) {
	const needsChecksum, ipv4, ipv6, checksumOffset = 1, 1, 4, 16
	frame[0], frame[1] = needsChecksum, ipv4
	if s.isIPv6() {
		frame[1] = ipv6
	}
	for i, value := range []int{start + tcpHeader + options, mtu - len(s.ip) - tcpHeader - options, start, checksumOffset} {
		binary.NativeEndian.PutUint16(frame[2+2*i:], uint16(value))
	}
}

func (s *segment) setLength(inner int) {
	if s.isIPv6() {
		binary.BigEndian.PutUint16(s.ip[4:], uint16(inner))
		return
	}
	binary.BigEndian.PutUint16(s.ip[2:], uint16(len(s.ip)+inner))
	copy(s.ip[10:12], []byte{0, 0})
	binary.BigEndian.PutUint16(s.ip[10:], ^sum(s.ip))
}

func (s *segment) pseudoHeader(length int) []byte {
	from, to := s.addressFields()
	return binary.BigEndian.AppendUint32(slices.Concat(from, to), uint32(length+protocolTCP))
}

// sum is the ones' complement sum; only the last part may have an odd length.
func sum(parts ...[]byte) uint16 {
	var total uint64
	for _, part := range parts {
		for ; len(part) > 1; part = part[2:] {
			total += uint64(part[0])<<8 | uint64(part[1])
		}
		if len(part) == 1 {
			total += uint64(part[0]) << 8
		}
	}
	for total > 0xffff {
		total = total&0xffff + total>>16
	}
	return uint16(total)
}
