// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"encoding/binary"
	"net/netip"
)

// Words is an address as the programs hold it: in network byte order, IPv4 in its
// mapped form.
func Words(address netip.Addr) (words [4]uint32) {
	bytes := address.As16()
	for i := range words {
		words[i] = binary.NativeEndian.Uint32(bytes[i*4:])
	}
	return words
}

// Address is the address that the programs hold so.
func Address(words [4]uint32) netip.Addr {
	var bytes [16]byte
	for i, word := range words {
		binary.NativeEndian.PutUint32(bytes[i*4:], word)
	}
	return netip.AddrFrom16(bytes).Unmap()
}

// Port turns a port into network byte order, or back.
func Port(port uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, port))
}

// AddrPort is the address and port that the programs hold so.
func AddrPort(words [4]uint32, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(Address(words), Port(port))
}
