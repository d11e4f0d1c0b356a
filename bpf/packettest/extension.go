// SPDX-License-Identifier: Apache-2.0

package packettest

import (
	"encoding/binary"
	"slices"
)

// Protocols above IPv6, and its extension headers.
const (
	HopByHop           = 0
	ICMP               = 1
	UDP                = 17
	ICMPv6             = 58
	Routing            = 43
	FragmentHeader     = 44
	ESP                = 50
	AH                 = 51
	NoNextHeader       = 59
	DestinationOptions = 60
	Mobility           = 135
)

// Extension is an extension header of IPv6.
type Extension struct {
	Kind uint8
	// Body is what follows the number of the next header.
	Body []byte
}

// Options is a header of hop-by-hop or destination options, of so many times eight
// bytes. It has one option, which nodes skip that do not know it.
func Options(kind uint8, words int) Extension {
	body := append([]byte{byte(words - 1), 0x1e, byte(8*words - 4)}, make([]byte, 8*words-4)...)
	return Extension{kind, body}
}

// Route is a routing header with so many segments left.
func Route(left uint8) Extension {
	return Extension{Routing, []byte{0, 253, left, 0, 0, 0, 0}}
}

// Piece is the header of a fragment: its offset in units of eight bytes, and whether
// more follow. The first that is also the last is a whole packet.
func Piece(offset uint16, more bool) Extension {
	field := offset << 3
	if more {
		field |= 1
	}
	return Extension{FragmentHeader, append(binary.BigEndian.AppendUint16([]byte{0}, field), 0, 0, 0, 7)}
}

// withExtensions puts the headers before what is of this protocol.
func withExtensions(extensions []Extension, protocol uint8, inner []byte) (first uint8, packet []byte) {
	for _, extension := range slices.Backward(extensions) {
		inner = slices.Concat([]byte{protocol}, extension.Body, inner)
		protocol = extension.Kind
	}
	return protocol, inner
}

// Visibility says what programs can tell of a packet.
type Visibility int

// What can be told of a packet.
const (
	// TCPVisible is TCP whose header is found.
	TCPVisible Visibility = iota
	// OtherProtocol is known to be no TCP.
	OtherProtocol
	// Unparsable may be TCP.
	Unparsable
)

// Chain is a list of extension headers before a segment, and what becomes of it.
type Chain struct {
	Extensions []Extension
	// Protocol that the last header names, if not TCP.
	Protocol   uint8
	Visibility Visibility
}

// Chains are those that every program must treat alike, by their names.
func Chains() map[string]Chain {
	options := func(kind uint8) Extension { return Options(kind, 1) }
	one := func(extension Extension, visibility Visibility) Chain {
		return Chain{Extensions: []Extension{extension}, Visibility: visibility}
	}
	return map[string]Chain{
		"hop-by-hop options":            one(options(HopByHop), TCPVisible),
		"destination options":           one(options(DestinationOptions), TCPVisible),
		"a route without segments left": one(Route(0), TCPVisible),
		"an atomic fragment":            one(Piece(0, false), TCPVisible),
		"all in the usual order": {Extensions: []Extension{
			options(HopByHop), options(DestinationOptions), Route(0), Piece(0, false), options(DestinationOptions),
		}},
		"eight headers":                      {Extensions: slices.Repeat([]Extension{options(DestinationOptions)}, 8)},
		"256 bytes":                          one(Options(DestinationOptions, 32), TCPVisible),
		"nine headers":                       {Extensions: slices.Repeat([]Extension{options(DestinationOptions)}, 9), Visibility: Unparsable},
		"264 bytes":                          {Extensions: []Extension{Options(HopByHop, 32), options(DestinationOptions)}, Visibility: Unparsable},
		"a route with segments left":         one(Route(1), Unparsable),
		"the first fragment":                 one(Piece(0, true), Unparsable),
		"a later fragment":                   one(Piece(3, true), Unparsable),
		"the last fragment":                  one(Piece(3, false), Unparsable),
		"a fragment behind options":          {Extensions: []Extension{options(HopByHop), Piece(3, false)}, Visibility: Unparsable},
		"a fragment of options":              {Extensions: []Extension{Piece(0, true), options(DestinationOptions)}, Visibility: Unparsable},
		"an authentication header":           one(Extension{AH, []byte{4, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}}, Unparsable),
		"an encrypted payload":               {Protocol: ESP, Visibility: Unparsable},
		"an encrypted one behind options":    {Extensions: []Extension{options(HopByHop)}, Protocol: ESP, Visibility: Unparsable},
		"UDP":                                {Protocol: UDP, Visibility: OtherProtocol},
		"UDP behind options":                 {Extensions: []Extension{options(HopByHop)}, Protocol: UDP, Visibility: OtherProtocol},
		"a fragment of UDP":                  {Extensions: []Extension{Piece(0, true)}, Protocol: UDP, Visibility: OtherProtocol},
		"a later fragment of UDP":            {Extensions: []Extension{Piece(9, false)}, Protocol: UDP, Visibility: OtherProtocol},
		"no next header":                     {Protocol: NoNextHeader, Visibility: OtherProtocol},
		"no next header behind options":      {Extensions: []Extension{options(HopByHop)}, Protocol: NoNextHeader, Visibility: OtherProtocol},
		"mobility":                           {Protocol: Mobility, Visibility: OtherProtocol},
		"an unknown header":                  {Protocol: 253, Visibility: OtherProtocol},
		"an unknown header behind an option": {Extensions: []Extension{options(DestinationOptions)}, Protocol: 253, Visibility: OtherProtocol},
	}
}
