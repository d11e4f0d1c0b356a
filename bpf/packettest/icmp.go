// SPDX-License-Identifier: Apache-2.0

package packettest

import (
	"encoding/binary"
	"net/netip"
	"slices"
)

// ICMPError describes an error about a packet, of either version.
type ICMPError struct {
	From, To   netip.Addr
	Type, Code uint8
	// Rest is the second half of the header: an MTU, in errors about it.
	Rest uint32
	// About is the frame whose packet it quotes.
	About []byte
}

// Frame is the error as it is on the wire, with right checksums. It quotes no more than
// 548 bytes.
func (e ICMPError) Frame() []byte {
	const etherLength, most = 14, 548
	quoted := e.About[etherLength:]
	quoted = quoted[:min(len(quoted), most)]
	message := slices.Concat([]byte{e.Type, e.Code, 0, 0}, binary.BigEndian.AppendUint32(nil, e.Rest), quoted)
	outer := Segment{From: netip.AddrPortFrom(e.From, 0), To: netip.AddrPortFrom(e.To, 0), Protocol: ICMP}
	var pseudo []byte
	if e.From.Is6() {
		outer.Protocol = ICMPv6
		pseudo = slices.Concat(e.From.AsSlice(), e.To.AsSlice(), binary.BigEndian.AppendUint32(nil, uint32(len(message))), []byte{0, 0, 0, ICMPv6})
	}
	binary.BigEndian.PutUint16(message[2:], ^Sum(slices.Concat(pseudo, message)))
	return outer.frameOf(message)
}
