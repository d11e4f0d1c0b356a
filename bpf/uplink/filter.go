// SPDX-License-Identifier: Apache-2.0

package uplink

// FilterBit is the bit of an address in the filter of local addresses: filter_bit of
// bpf/include/uplink/maps.h, of which the packet tests are the proof.
func FilterBit(address [4]uint32) uint32 {
	folded := address[0] ^ address[1] ^ address[2] ^ address[3]
	return (folded ^ folded>>16) & (FilterBits - 1)
}

// PortBit is a port's bit in the filter of tunnels' ports: port_bit() of bpf/include/tunnel.h.
// The port is in the order of bytes of packets.
func PortBit(port uint16) uint64 { return 1 << ((port ^ port>>8) & 63) }
