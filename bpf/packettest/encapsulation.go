// SPDX-License-Identifier: Apache-2.0

package packettest

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"net/netip"
)

// EncapsulationPort is that of packets that Braid encapsulates.
const EncapsulationPort = 8478

// Encapsulated are the headers by which Braid does it, between the addresses of two nodes; zero fields stand for
// what is usual.
type Encapsulated struct {
	From, To netip.Addr
	// Key of the node that decapsulates.
	Key  uint64
	Port uint16
	// Fragment is IPv4's field of flags and offset.
	Fragment uint16
}

// Frame is another one that is encapsulated. The source's port is the first one.
func (w Encapsulated) Frame(inner []byte) []byte {
	payload := append(binary.BigEndian.AppendUint64(nil, w.Key), inner[14:]...)
	udp := binary.BigEndian.AppendUint16([]byte{0xc0, 0}, cmp.Or(w.Port, EncapsulationPort))
	udp = binary.BigEndian.AppendUint16(udp, uint16(8+len(payload)))
	udp = append(append(udp, 0, 0), payload...)
	if w.From.Is6() {
		header := binary.BigEndian.AppendUint16([]byte{0x60, 0, 0, 0}, uint16(len(udp)))
		header = append(append(append(header, 17, 64), w.From.AsSlice()...), w.To.AsSlice()...)
		return append(append(bytes.Clone(inner[:12]), 0x86, 0xdd), append(header, udp...)...)
	}
	header := binary.BigEndian.AppendUint16([]byte{0x45, 0}, uint16(20+len(udp)))
	header = binary.BigEndian.AppendUint16(append(header, 0, 0), cmp.Or(w.Fragment, 0x4000))
	header = append(append(append(header, 64, 17, 0, 0), w.From.AsSlice()...), w.To.AsSlice()...)
	binary.BigEndian.PutUint16(header[10:], ^Sum(header))
	return append(append(bytes.Clone(inner[:12]), 0x08, 0), append(header, udp...)...)
}
