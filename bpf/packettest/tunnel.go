// SPDX-License-Identifier: Apache-2.0

package packettest

import (
	"encoding/binary"
	"net/netip"
	"slices"
)

const etherEthernet = 0x6558 // in Geneve

// TunnelKind is how a packet is put into another.
type TunnelKind int

// The kinds. In IP the packet has no Ethernet header; in Geneve it may have none.
const (
	VXLAN TunnelKind = iota
	Geneve
	GeneveOfIP
	IPInIP
)

// Check is what the UDP header of a tunnel has for a checksum.
type Check int

// None; one of everything; or the sum of the pseudo-header alone, as the kernel has it
// while the rest is left to a NIC.
const (
	NoCheck Check = iota
	WholeCheck
	BareCheck
)

// Tunnel describes the headers around a packet. Beyond addresses and port, zero stands
// for what is usual.
type Tunnel struct {
	Kind     TunnelKind
	From, To netip.Addr
	// Port of UDP.
	Port uint16
	// Check of UDP.
	Check Check
	// Flags of VXLAN or Geneve other than the usual ones.
	Flags *uint8
	// Options of Geneve, in whole words.
	Options []byte
	// VLAN, IPOptions, Fragment and Extensions are those of the outer headers.
	VLAN       uint16
	IPOptions  []byte
	Fragment   uint16
	Extensions []Extension
}

// Frame is the tunnel's packet around a frame.
func (t Tunnel) Frame(inner []byte) []byte {
	outer := Segment{
		From: netip.AddrPortFrom(t.From, 0), To: netip.AddrPortFrom(t.To, 0),
		VLAN: t.VLAN, IPOptions: t.IPOptions, Fragment: t.Fragment, Extensions: t.Extensions, Protocol: UDP,
	}
	payload := t.udp(inner)
	if t.Kind == IPInIP {
		payload = inner[14:]
		outer.Protocol = map[uint16]uint8{etherIPv4: 4, etherIPv6: 41}[binary.BigEndian.Uint16(inner[12:])]
	}
	return outer.frameOf(payload)
}

func (t Tunnel) udp(inner []byte) []byte {
	payload := slices.Concat(t.header(inner), inner)
	if t.Kind == GeneveOfIP {
		payload = slices.Concat(t.header(inner), inner[14:])
	}
	header := binary.BigEndian.AppendUint16(nil, 50123)
	header = binary.BigEndian.AppendUint16(header, t.Port)
	header = binary.BigEndian.AppendUint16(header, uint16(8+len(payload)))
	return t.checked(slices.Concat(header, []byte{0, 0}, payload))
}

func (t Tunnel) checked(udp []byte) []byte {
	if t.Check == NoCheck {
		return udp
	}
	pseudo := slices.Concat(t.From.AsSlice(), t.To.AsSlice(), []byte{0, UDP}, binary.BigEndian.AppendUint16(nil, uint16(len(udp))))
	check := Sum(pseudo)
	if t.Check == WholeCheck {
		check = ^Sum(append(pseudo, udp...))
	}
	binary.BigEndian.PutUint16(udp[6:], check)
	return udp
}

// header is that of VXLAN or Geneve, of the network 7.
func (t Tunnel) header(inner []byte) []byte {
	if t.Kind == VXLAN {
		return []byte{or(t.Flags, 8), 0, 0, 0, 0, 0, 7, 0}
	}
	protocol := uint16(etherEthernet)
	if t.Kind == GeneveOfIP {
		protocol = binary.BigEndian.Uint16(inner[12:])
	}
	header := binary.BigEndian.AppendUint16([]byte{byte(len(t.Options) / 4), or(t.Flags, 0)}, protocol)
	return slices.Concat(header, []byte{0, 0, 7, 0}, t.Options)
}
