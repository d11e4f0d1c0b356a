// SPDX-License-Identifier: Apache-2.0

package paths

import (
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
)

// TunnelKind says how a tunnel's device encapsulates packets.
type TunnelKind string

// The kinds of which the packet within can be read on the wire.
const (
	TunnelVXLAN  TunnelKind = "VXLAN"
	TunnelGeneve TunnelKind = "Geneve"
	TunnelIP     TunnelKind = "IPInIP"
)

// The other kinds: those that encrypt, and what is not understood.
const (
	TunnelEncrypted TunnelKind = "Encrypted"
	TunnelUnknown   TunnelKind = "Unknown"
)

// Steered tells whether packets can be steered within such a tunnel.
func (k TunnelKind) Steered() bool { return k == TunnelVXLAN || k == TunnelGeneve || k == TunnelIP }

// Tunnel is a device of the node that puts packets into others, and is set up.
type Tunnel struct {
	Name  string
	Index int
	Kind  TunnelKind
	// Port is the UDP port to which the packets go; 0 where there is none.
	Port uint16

	local  netip.Addr // from which they come; not valid where that is open
	device int        // by which they leave; 0 where that is open
}

// tunnelOf describes a device that encapsulates packets; it is nil for any other one.
func tunnelOf(link netlink.Link) *Tunnel {
	if !IsTunnel(link) {
		return nil
	}
	t := &Tunnel{Name: link.Attrs().Name, Index: link.Attrs().Index, Kind: TunnelUnknown}
	switch of := link.(type) {
	case *netlink.Vxlan:
		t.Kind, t.Port, t.device = TunnelVXLAN, uint16(of.Port), of.VtepDevIndex
		t.local = addressOf(of.SrcAddr)
	case *netlink.Geneve:
		t.Kind, t.Port, t.device = TunnelGeneve, of.Dport, int(of.Link)
	case *netlink.Iptun:
		t.ofIP(of.EncapType, of.Local, of.Link)
	case *netlink.Sittun:
		t.ofIP(of.EncapType, of.Local, of.Link)
	case *netlink.Ip6tnl:
		t.ofIP(of.EncapType, of.Local, of.Link)
	default:
		if link.Type() == "wireguard" || link.Type() == "xfrm" {
			t.Kind = TunnelEncrypted
		}
	}
	return t
}

// ofIP is a tunnel of IP in IP, unless that is put into UDP.
func (t *Tunnel) ofIP(within uint16, local net.IP, device uint32) {
	t.local, t.device = addressOf(local), int(device)
	if within == 0 {
		t.Kind = TunnelIP
	}
}

// SendsFrom tells whether packets may come from this address of the node: the device says
// no other one of that version of IP.
func (t *Tunnel) SendsFrom(address netip.Addr) bool {
	return !t.local.IsValid() || t.local.Is4() != address.Is4() || t.local == address
}

// FromNode is the first of the node's addresses, by version of IP, from which all overlays send that
// can be looked into. Of a version of which one sends from another address it is left out:
// other nodes take the first one for it.
func FromNode(nodeAddresses []netip.Addr, tunnels []Tunnel) (from []netip.Addr) {
	seen := map[bool]bool{}
	for _, address := range nodeAddresses {
		if seen[address.Is4()] {
			continue
		}
		seen[address.Is4()] = true
		if !slices.ContainsFunc(tunnels, func(t Tunnel) bool { return t.Kind.Steered() && !t.SendsFrom(address) }) {
			from = append(from, address)
		}
	}
	return from
}

func addressOf(ip net.IP) netip.Addr {
	address, _ := netip.AddrFromSlice(ip)
	if address = address.Unmap(); address.IsUnspecified() {
		return netip.Addr{}
	}
	return address
}

// TunnelKindOf is how a device encapsulates packets; "" where it does not.
func TunnelKindOf(link netlink.Link) TunnelKind {
	if tunnel := tunnelOf(link); tunnel != nil {
		return tunnel.Kind
	}
	return ""
}

// tunnelsOf are those that are set up, sorted by name: drivers make devices by themselves
// that nobody uses. A tunnel that a path names is one of its NICs.
func tunnelsOf(all []*candidate, owner map[int]string) (tunnels []Tunnel) {
	for _, c := range all {
		if _, isNIC := owner[c.Index]; c.tunnel != nil && c.setUp && !isNIC {
			tunnels = append(tunnels, *c.tunnel)
		}
	}
	return tunnels
}

// carries tells whether the tunnel's packets leave by this interface.
func (t *Tunnel) carries(c *candidate) bool {
	return t.device == c.Index || t.local.IsValid() && slices.Contains(c.allOwn, t.local)
}
