// SPDX-License-Identifier: Apache-2.0

package actiontest_test

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"braid.dev/braid/bpf/packettest"
)

const (
	etherIPv4 = 0x0800
	etherVLAN = 0x8100
	etherIPv6 = 0x86dd

	protocolTCP = 6

	fin = 0x01
	syn = 0x02
	rst = 0x04
	psh = 0x08
	ack = 0x10

	tcpHeader = 20
)

// segment describes a TCP segment in an Ethernet frame.
type segment struct {
	from, to        netip.AddrPort
	sequence, acked uint32
	flags           uint8
	window          uint16
	options         []byte
	payload         []byte

	vlan      uint16
	ipOptions []byte
	// extensions of IPv6.
	extensions []packettest.Extension
	// trailer is what follows the packet in its frame.
	trailer []byte
}

// The two ends of the subflow under test, and what an ACK of it looks like.
var ends = map[int][2]netip.AddrPort{
	4: {netip.MustParseAddrPort("10.244.1.2:40000"), netip.MustParseAddrPort("10.244.2.2:80")},
	6: {netip.MustParseAddrPort("[fd00:244:1::2]:40000"), netip.MustParseAddrPort("[fd00:244:2::2]:80")},
}

// pureACK goes from the endpoint to its peer.
func pureACK(version int) segment {
	return segment{
		from: ends[version][0], to: ends[version][1], sequence: 1000, acked: 5000, flags: ack, window: 8000,
		options: slices.Concat(timestampsOf(77, 66), dataACK),
	}
}

func (s segment) with(change func(*segment)) segment {
	change(&s)
	return s
}

// flip goes the other way.
func (s segment) flip() segment {
	s.from, s.to = s.to, s.from
	return s
}

func (s segment) isIPv6() bool { return s.from.Addr().Is6() }

func (s segment) frame() []byte {
	return packettest.Segment{
		From: s.from, To: s.to, Sequence: s.sequence, Acknowledge: s.acked, Flags: s.flags, Window: s.window,
		Options: s.options, Payload: s.payload, VLAN: s.vlan, IPOptions: s.ipOptions, Extensions: s.extensions, Trailer: s.trailer,
	}.Frame()
}

// layout is where the parts of a frame are; an independent reading of what the
// programs parse.
type layout struct {
	version      int
	network, tcp int
	options, end int // of the options
	packetEnd    int // of the IP packet
}

// lay returns the layout of a frame with a whole TCP segment.
func lay(frame []byte) (l layout, ok bool) {
	if len(frame) < 14 {
		return l, false
	}
	l.network = 14
	protocol := binary.BigEndian.Uint16(frame[12:])
	for range 2 {
		if protocol != etherVLAN && protocol != 0x88a8 {
			break
		}
		if len(frame) < l.network+4 {
			return l, false
		}
		protocol = binary.BigEndian.Uint16(frame[l.network+2:])
		l.network += 4
	}
	packet := frame[l.network:]
	switch {
	case protocol == etherIPv4 && len(packet) >= 20:
		header := int(packet[0]&0xf) * 4
		if header < 20 || packet[9] != protocolTCP || binary.BigEndian.Uint16(packet[6:])&0x3fff != 0 {
			return l, false
		}
		l.version, l.tcp = 4, l.network+header
		l.packetEnd = l.network + int(binary.BigEndian.Uint16(packet[2:]))
		if binary.BigEndian.Uint16(packet[2:]) == 0 {
			l.packetEnd = len(frame)
		}
	case protocol == etherIPv6 && len(packet) >= 40:
		extensions, ok := skip(packet[40:], packet[6])
		if !ok {
			return l, false
		}
		l.version, l.tcp = 6, l.network+40+extensions
		l.packetEnd = l.network + 40 + int(binary.BigEndian.Uint16(packet[4:]))
		if binary.BigEndian.Uint16(packet[4:]) == 0 {
			l.packetEnd = len(frame)
		}
	default:
		return l, false
	}
	if l.tcp+tcpHeader > len(frame) || l.packetEnd > len(frame) {
		return l, false
	}
	l.options = l.tcp + tcpHeader
	l.end = l.tcp + int(frame[l.tcp+12]>>4)*4
	return l, l.end >= l.options && l.end <= l.packetEnd
}

// skip is the length of the extension headers before TCP; protocol is the first.
func skip(headers []byte, protocol byte) (length int, ok bool) {
	for range 8 {
		if protocol == protocolTCP || len(headers) < length+4 {
			break
		}
		header := headers[length:]
		switch protocol {
		case packettest.HopByHop, packettest.DestinationOptions:
			length += 8 + 8*int(header[1])
		case packettest.Routing:
			if header[3] != 0 {
				return 0, false
			}
			length += 8 + 8*int(header[1])
		case packettest.FragmentHeader:
			if binary.BigEndian.Uint16(header[2:])&0xfff9 != 0 {
				return 0, false
			}
			length += 8
		default:
			return 0, false
		}
		protocol = header[0]
	}
	return length, protocol == protocolTCP && length <= 256
}

// residues are what the IPv4 header's sum and that of TCP and its pseudo header
// come to: 0xffff when they are right. An edit that keeps checksums right keeps
// wrong ones as wrong as they were.
func residues(frame []byte, l layout) (ip, tcp uint16) {
	segment := frame[l.tcp:l.packetEnd]
	var pseudo []byte
	if l.version == 4 {
		ip = packettest.Sum(frame[l.network:l.tcp])
		pseudo = slices.Clone(frame[l.network+12 : l.network+20])
	} else {
		ip = 0xffff
		pseudo = slices.Clone(frame[l.network+8 : l.network+40])
	}
	pseudo = binary.BigEndian.AppendUint32(pseudo, uint32(len(segment)+protocolTCP))
	tcp = packettest.Sum(slices.Concat(pseudo, segment))
	return alike(ip), alike(tcp)
}

// alike makes one of the two forms of zero.
func alike(sum uint16) uint16 {
	if sum == 0 {
		return 0xffff
	}
	return sum
}

// Options of TCP and MPTCP.
var (
	dataACK   = slices.Concat([]byte{30, 12, 2 << 4, 3}, []byte{1, 2, 3, 4, 5, 6, 7, 8})
	dataACK4  = slices.Concat([]byte{30, 8, 2 << 4, 1}, []byte{1, 2, 3, 4})
	mapping   = slices.Concat([]byte{30, 20, 2 << 4, 5}, make([]byte, 16))
	finalDSS  = slices.Concat([]byte{30, 12, 2 << 4, 0x13}, []byte{1, 2, 3, 4, 5, 6, 7, 8})
	oneSACK   = slices.Concat([]byte{1, 1, 5, 10}, make([]byte, 8))
	twoSACKs  = slices.Concat([]byte{1, 1, 5, 18}, make([]byte, 16))
	joinSYN   = slices.Concat([]byte{30, 12, 1 << 4, 1}, []byte{9, 9, 9, 9, 8, 8, 8, 8})
	sayBackup = []byte{30, 3, 5<<4 | 1, 1}
	sayNormal = []byte{30, 3, 5 << 4, 1}
)

func timestampsOf(value, echo uint32) []byte {
	option := binary.BigEndian.AppendUint32([]byte{1, 1, 8, 10}, value)
	return binary.BigEndian.AppendUint32(option, echo)
}

// announcement is ADD_ADDR with an HMAC, or its echo.
func announcement(version int, id uint8, port uint16, echo bool) []byte {
	address := netip.MustParseAddr("10.1.2.3").AsSlice()
	if version == 6 {
		address = netip.MustParseAddr("fd00::77").AsSlice()
	}
	option := slices.Concat([]byte{30, 0, 3 << 4, id}, address)
	if port != 0 {
		option = binary.BigEndian.AppendUint16(option, port)
	}
	if echo {
		option[2] |= 1
	} else {
		option = append(option, 0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7, 0xa8)
	}
	option[1] = byte(len(option))
	return option
}

// fill adds NOPs up to whole words.
func fill(option []byte) []byte {
	option = slices.Clone(option)
	for len(option)%4 != 0 {
		option = append(option, 1)
	}
	return option
}
