// SPDX-License-Identifier: Apache-2.0

package block_test

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"
)

// Flags of TCP.
const (
	syn = 0x02
	ack = 0x10
)

var timestamps = []byte{1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2}

// segment is a TCP segment of one of two pairs of addresses.
type segment struct {
	version int
	flags   byte
	options []byte
	payload []byte
	window  uint16
	dscp    byte
	vlan    bool // a tag in the frame
}

var addresses = map[int][2]netip.Addr{
	4: {netip.MustParseAddr("10.1.0.1"), netip.MustParseAddr("10.2.0.2")},
	6: {netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2")},
}

func (s segment) frame() []byte {
	frame := []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2}
	if s.vlan {
		frame = append(frame, 0x81, 0, 0, 7)
	}
	if s.version == 4 {
		return slices.Concat(frame, []byte{0x08, 0}, s.ipv4())
	}
	return slices.Concat(frame, []byte{0x86, 0xdd}, s.ipv6())
}

func (s segment) tcp() []byte {
	header := []byte{0x9c, 0x40, 0, 80, 0, 0, 0, 1, 0, 0, 0, 2, byte(20+len(s.options)) / 4 << 4, s.flags, 0, 0, 0, 0, 0, 0}
	binary.BigEndian.PutUint16(header[14:], s.window)
	tcp := slices.Concat(header, s.options, s.payload)
	binary.BigEndian.PutUint16(tcp[16:], ^sum(slices.Concat(s.pseudoHeader(len(tcp)), tcp)))
	return tcp
}

func (s segment) pseudoHeader(length int) []byte {
	pair := addresses[s.version]
	header := slices.Concat(pair[0].AsSlice(), pair[1].AsSlice())
	return binary.BigEndian.AppendUint32(header, uint32(length+6))
}

func (s segment) ipv4() []byte {
	tcp, pair := s.tcp(), addresses[4]
	header := slices.Concat([]byte{0x45, s.dscp << 2, 0, 0, 0, 1, 0, 0, 64, 6, 0, 0}, pair[0].AsSlice(), pair[1].AsSlice())
	binary.BigEndian.PutUint16(header[2:], uint16(20+len(tcp)))
	binary.BigEndian.PutUint16(header[10:], ^sum(header))
	return append(header, tcp...)
}

func (s segment) ipv6() []byte {
	tcp, pair := s.tcp(), addresses[6]
	header := slices.Concat([]byte{0x60 | s.dscp>>2, s.dscp << 6, 0, 0, 0, 0, 6, 64}, pair[0].AsSlice(), pair[1].AsSlice())
	binary.BigEndian.PutUint16(header[4:], uint16(len(tcp)))
	return append(header, tcp...)
}

// sum is the one's complement sum of the bytes; 0xffff where a checksum is right.
func sum(data []byte) uint16 {
	total := uint32(0)
	for i, b := range data {
		total += uint32(b) << (8 * (1 - i%2))
	}
	for total > 0xffff {
		total = total>>16 + total&0xffff
	}
	return uint16(total)
}

// expect compares a frame with the one that this segment makes, checksums included.
func (s segment) expect(t *testing.T, got []byte) {
	t.Helper()
	if want := s.frame(); !slices.Equal(got, want) {
		t.Errorf("the packet is\n%x, wanted\n%x", got, want)
	}
}
