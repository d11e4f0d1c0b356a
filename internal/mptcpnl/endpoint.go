// SPDX-License-Identifier: Apache-2.0

package mptcpnl

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// MaxEndpoints is how many endpoints every kernel lets a namespace have, and the
// highest value of a limit; newer ones allow more.
const MaxEndpoints = 8

// Flags say what an endpoint is for.
type Flags uint32

// Flags of endpoints. Laminar is of Linux 6.18.
const (
	FlagSignal   Flags = 1 << iota // announced to the peer
	FlagSubflow                    // subflows are opened from it
	FlagBackup                     // its subflows are spare ones
	FlagFullmesh                   // subflows go to every address of the peer
	FlagImplicit                   // made by the kernel
	FlagLaminar                    // subflows to announced addresses are opened from it
)

var flagNames = []string{"signal", "subflow", "backup", "fullmesh", "implicit", "laminar"}

// String lists the flags' names as `ip mptcp` does.
func (f Flags) String() string {
	var names []string
	for i, name := range flagNames {
		if f&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, " ")
}

// Endpoint is an address of this host that MPTCP may use.
type Endpoint struct {
	// ID of the address; 0 is the address that a connection began with.
	ID uint8
	// Address, IPv4 or IPv6. The zero Addr where the ID says it all.
	Address netip.Addr
	// Port, for announced addresses only; 0 for none.
	Port uint16
	// Flags say what the endpoint is for.
	Flags Flags
	// Interface is the ifindex that its subflows are bound to; 0 for none.
	Interface int32
}

// String is like a line of `ip mptcp endpoint show`.
func (e Endpoint) String() string {
	text := fmt.Sprintf("id %d", e.ID)
	if e.Address.IsValid() {
		text = fmt.Sprintf("%s id %d", e.Address, e.ID)
	}
	if e.Port != 0 {
		text += fmt.Sprintf(" port %d", e.Port)
	}
	if e.Flags != 0 {
		text += " " + e.Flags.String()
	}
	return text
}

func fromAddrPort(address netip.AddrPort) Endpoint {
	return Endpoint{Address: address.Addr(), Port: address.Port()}
}

// Attributes of an address, as linux/mptcp_pm.h numbers them.
const (
	addressFamily = iota + 1
	addressID
	addressIPv4
	addressIPv6
	addressPort
	addressFlags
	addressInterface
)

// attribute returns what adds the endpoint as a nested attribute. Zero values
// are left out, but for the ID: a missing ID and ID 0 mean the same.
func (e Endpoint) attribute(kind uint16) func(*netlink.AttributeEncoder) {
	return func(outer *netlink.AttributeEncoder) {
		outer.Nested(kind, func(encoder *netlink.AttributeEncoder) error {
			e.encode(encoder)
			return nil
		})
	}
}

func (e Endpoint) encode(encoder *netlink.AttributeEncoder) {
	switch address := e.Address.Unmap(); {
	case address.Is4():
		encoder.Uint16(addressFamily, unix.AF_INET)
		encoder.Bytes(addressIPv4, address.AsSlice())
	case address.Is6():
		encoder.Uint16(addressFamily, unix.AF_INET6)
		encoder.Bytes(addressIPv6, address.AsSlice())
	}
	if e.ID != 0 {
		encoder.Uint8(addressID, e.ID)
	}
	if e.Port != 0 {
		encoder.Uint16(addressPort, e.Port) // in the host's byte order, unlike in events
	}
	if e.Flags != 0 {
		encoder.Uint32(addressFlags, uint32(e.Flags))
	}
	if e.Interface != 0 {
		encoder.Int32(addressInterface, e.Interface)
	}
}

// findEndpoint reads the endpoint of a message's attributes, if there is one
// that can be understood.
func findEndpoint(data []byte) (endpoint Endpoint, found bool) {
	decoder, err := netlink.NewAttributeDecoder(data)
	if err != nil {
		return Endpoint{}, false
	}
	for decoder.Next() {
		if decoder.Type() != attributeAddress {
			continue
		}
		decoder.Nested(func(inner *netlink.AttributeDecoder) error {
			endpoint, found = decodeEndpoint(inner), true
			return inner.Err()
		})
	}
	if decoder.Err() != nil {
		return Endpoint{}, false
	}
	return endpoint, found
}

func decodeEndpoint(decoder *netlink.AttributeDecoder) (e Endpoint) {
	for decoder.Next() {
		switch decoder.Type() {
		case addressID:
			e.ID = decoder.Uint8()
		case addressIPv4, addressIPv6:
			e.Address, _ = netip.AddrFromSlice(decoder.Bytes())
		case addressPort:
			e.Port = decoder.Uint16()
		case addressFlags:
			e.Flags = Flags(decoder.Uint32())
		case addressInterface:
			e.Interface = decoder.Int32()
		}
	}
	return e
}
