// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"encoding/binary"
	"slices"
)

// samples are the packets that a program is tried with: an ACK, full segments of
// data and a SYN, of both IP versions.
func samples() [][]byte {
	timestamps := []byte{1, 1, 8, 10, 0, 0, 1, 0, 0, 0, 2, 0}
	dataACK := []byte{30, 8, 0x20, 0x01, 0, 0, 0, 9}
	mapping := []byte{30, 20, 0x20, 0x05, 0, 0, 0, 9, 0, 0, 0, 7, 0, 0, 0, 1, 0x05, 0x64, 0, 0}
	capable := []byte{2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 0, 1, 0, 0, 0, 0, 0, 1, 3, 3, 7, 30, 4, 1, 1}
	const ack, syn = 0x10, 0x02
	return [][]byte{
		frameIPv4(tcp(ack, slices.Concat(timestamps, dataACK), 0)),
		frameIPv4(tcp(ack, slices.Concat(timestamps, mapping), 1380)),
		frameIPv6(tcp(ack, slices.Concat(timestamps, mapping), 1360)),
		frameIPv6(tcp(syn, capable, 0)),
	}
}

// tcp is a segment of the subflow that all samples belong to. Its checksum is
// left out: nothing looks at it.
func tcp(flags byte, options []byte, payload int) []byte {
	header := []byte{0x9c, 0x40, 0, 80, 0, 0, 0x10, 0, 0, 0, 0x20, 0, byte(20+len(options)) / 4 << 4, flags, 1, 0, 0, 0, 0, 0}
	return slices.Concat(header, options, make([]byte, payload))
}

func ethernet(protocol uint16, inner []byte) []byte {
	addresses := []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2}
	return append(binary.BigEndian.AppendUint16(addresses, protocol), inner...)
}

func frameIPv4(segment []byte) []byte {
	header := []byte{0x45, 0, 0, 0, 0, 1, 0, 0, 64, 6, 0, 0, 192, 0, 2, 1, 198, 51, 100, 1}
	binary.BigEndian.PutUint16(header[2:], uint16(len(header)+len(segment)))
	return ethernet(0x0800, append(header, segment...))
}

func frameIPv6(segment []byte) []byte {
	header := make([]byte, 40)
	header[0], header[6], header[7] = 0x60, 6, 64
	binary.BigEndian.PutUint16(header[4:], uint16(len(segment)))
	copy(header[8:], []byte{0x20, 0x01, 0x0d, 0xb8, 15: 1})
	copy(header[24:], []byte{0x20, 0x01, 0x0d, 0xb8, 15: 2})
	return ethernet(0x86dd, append(header, segment...))
}
