// SPDX-License-Identifier: Apache-2.0

package program_test

import (
	"net/netip"
	"slices"
	"testing"

	"braid.dev/braid/bpf/packettest"
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
	pair := addresses[s.version]
	made := packettest.Segment{
		From: netip.AddrPortFrom(pair[0], 40000), To: netip.AddrPortFrom(pair[1], 80), Sequence: 1, Acknowledge: 2,
		Flags: s.flags, Window: s.window, Options: s.options, Payload: s.payload, DSCP: s.dscp,
	}
	if s.vlan {
		made.VLAN = 7
	}
	return made.Frame()
}

// expect compares a frame with the one that this segment makes, checksums included.
func (s segment) expect(t *testing.T, got []byte) {
	t.Helper()
	if want := s.frame(); !slices.Equal(got, want) {
		t.Errorf("the packet is\n%x, wanted\n%x", got, want)
	}
}
