// SPDX-License-Identifier: Apache-2.0

package packettest

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"
)

const (
	etherIPv4 = 0x0800
	etherIPv6 = 0x86dd
	etherVLAN = 0x8100

	protocolTCP = 6
)

// Segment describes a TCP segment in an Ethernet frame. Beyond addresses and TCP's
// own fields, zero stands for what is usual.
type Segment struct {
	From, To              netip.AddrPort
	Sequence, Acknowledge uint32
	Flags                 uint8
	Window                uint16
	// Options of TCP, filled up with NOPs to whole words.
	Options []byte
	Payload []byte

	// VLAN puts an 802.1Q tag into the frame.
	VLAN uint16
	// DSCP is that of the IP header.
	DSCP uint8
	// Protocol other than TCP.
	Protocol uint8
	// IPOptions of IPv4, in whole words.
	IPOptions []byte
	// Fragment is IPv4's field of flags and offset.
	Fragment uint16
	// Extensions of IPv6.
	Extensions []Extension
	// HeaderLength and DataOffset are other lengths than the true ones, in words.
	HeaderLength, DataOffset *uint8
	// Trailer follows the packet in its frame.
	Trailer []byte
}

// Frame is the segment as it is on the wire, with right checksums.
func (s Segment) Frame() []byte { return s.frameOf(s.tcp()) }

// frameOf is a frame with the segment's addresses and another payload of IP.
func (s Segment) frameOf(payload []byte) []byte {
	frame := []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2}
	if s.VLAN != 0 {
		frame = binary.BigEndian.AppendUint16(frame, etherVLAN)
		frame = binary.BigEndian.AppendUint16(frame, s.VLAN)
	}
	if s.From.Addr().Is6() {
		frame = binary.BigEndian.AppendUint16(frame, etherIPv6)
		return slices.Concat(frame, s.ipv6(payload), s.Trailer)
	}
	frame = binary.BigEndian.AppendUint16(frame, etherIPv4)
	return slices.Concat(frame, s.ipv4(payload), s.Trailer)
}

func (s Segment) tcp() []byte {
	options := slices.Clone(s.Options)
	for len(options)%4 != 0 {
		options = append(options, 1)
	}
	offset := or(s.DataOffset, 5+len(options)/4)
	header := binary.BigEndian.AppendUint16(nil, s.From.Port())
	header = binary.BigEndian.AppendUint16(header, s.To.Port())
	header = binary.BigEndian.AppendUint32(header, s.Sequence)
	header = binary.BigEndian.AppendUint32(header, s.Acknowledge)
	header = append(header, offset<<4, s.Flags)
	header = binary.BigEndian.AppendUint16(header, s.Window)
	header = append(header, 0, 0, 0, 0)
	tcp := slices.Concat(header, options, s.Payload)
	pseudo := s.addresses()
	pseudo = binary.BigEndian.AppendUint32(pseudo, uint32(len(tcp)+protocolTCP))
	binary.BigEndian.PutUint16(tcp[16:], ^Sum(append(pseudo, tcp...)))
	return tcp
}

func (s Segment) addresses() []byte {
	return append(s.From.Addr().AsSlice(), s.To.Addr().AsSlice()...)
}

func (s Segment) ipv4(inner []byte) []byte {
	length := 20 + len(s.IPOptions)
	header := []byte{4<<4 | or(s.HeaderLength, length/4)&0xf, s.DSCP << 2}
	header = binary.BigEndian.AppendUint16(header, uint16(length+len(inner)))
	header = append(header, 0, 1)
	header = binary.BigEndian.AppendUint16(header, s.Fragment)
	header = append(header, 64, cmp.Or(s.Protocol, protocolTCP), 0, 0)
	header = slices.Concat(header, s.addresses(), s.IPOptions)
	binary.BigEndian.PutUint16(header[10:], ^Sum(header))
	return append(header, inner...)
}

func (s Segment) ipv6(inner []byte) []byte {
	next, inner := withExtensions(s.Extensions, cmp.Or(s.Protocol, protocolTCP), inner)
	header := binary.BigEndian.AppendUint16([]byte{6<<4 | s.DSCP>>2, s.DSCP << 6, 0, 0}, uint16(len(inner)))
	header = append(header, next, 64)
	return slices.Concat(header, s.addresses(), inner)
}

func or(given *uint8, length int) uint8 {
	if given != nil {
		return *given
	}
	return uint8(length)
}

// Sum is the ones' complement sum of the bytes: 0xffff over what has a right
// checksum, and the complement of a checksum over what has none yet.
func Sum(of []byte) uint16 {
	var sum uint64
	for i, b := range of {
		sum += uint64(b) << (8 * (1 - i%2))
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return uint16(sum)
}
