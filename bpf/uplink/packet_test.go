// SPDX-License-Identifier: Apache-2.0

package uplink_test

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"

	"braid.dev/braid/bpf/packettest"
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

// answerNumber is that of the SYN/ACKs.
const answerNumber = 5000

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
	// extensions of IPv6.
	extensions []packettest.Extension
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

// frame is the segment as it is on the wire.
func (s segment) frame() []byte {
	return packettest.Segment{
		From: s.from, To: s.to, Sequence: s.sequence, Acknowledge: cmp.Or(s.answer, firstSYN+1), Flags: s.flags, Window: 0xffff,
		Options: s.options, Payload: s.payload, VLAN: s.vlan, Protocol: s.protocol, IPOptions: s.ipOptions,
		Fragment: s.fragment, Extensions: s.extensions, HeaderLength: s.ihl, DataOffset: s.doff,
	}.Frame()
}

// headers is the length of everything before the payload.
func (s segment) headers() int { return len(s.frame()) - len(s.payload) }

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
