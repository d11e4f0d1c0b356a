// SPDX-License-Identifier: Apache-2.0

package paths

import (
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// hop is one next hop of a route.
type hop struct {
	gateway netip.Addr // zero without one
	index   int        // of the interface
	// dead: the interface is set down. Of several next hops the kernel leaves out
	// the dead ones by itself.
	dead bool
}

func hopsOf(route netlink.Route) []hop {
	if len(route.MultiPath) == 0 {
		return []hop{newHop(route.LinkIndex, route.Flags, route.Gw, route.Via)}
	}
	hops := make([]hop, 0, len(route.MultiPath))
	for _, next := range route.MultiPath {
		hops = append(hops, newHop(next.LinkIndex, next.Flags, next.Gw, next.Via))
	}
	return hops
}

func newHop(index, flags int, gateway net.IP, other netlink.Destination) hop {
	if via, ok := other.(*netlink.Via); ok {
		gateway = via.Addr // a gateway of the other address family
	}
	address, _ := netip.AddrFromSlice(gateway)
	return hop{gateway: address.Unmap(), index: index, dead: flags&unix.RTNH_F_DEAD != 0}
}

// destinationOf is what a route leads to; false for what is no IP route.
func destinationOf(route netlink.Route) (netip.Prefix, bool) {
	if route.Dst == nil {
		return netip.Prefix{}, false
	}
	address, ok := netip.AddrFromSlice(route.Dst.IP)
	if !ok {
		return netip.Prefix{}, false
	}
	if route.Family == netlink.FAMILY_V4 {
		address = address.Unmap()
	}
	ones, bits := route.Dst.Mask.Size()
	if bits != address.BitLen() {
		return netip.Prefix{}, false
	}
	return netip.PrefixFrom(address, ones), true
}

// narrowest is the least number of bits in the prefix of a route that leads to a node
// or its pods. What is wider is a default route, or a part of one: 0.0.0.0/1, 2000::/3.
const narrowest = 8

// isWide tells routes that lead out of the cluster. To whom they lead no node may say.
func isWide(destination netip.Prefix) bool { return destination.Bits() < narrowest }

func ipNet(prefix netip.Prefix) *net.IPNet {
	return &net.IPNet{
		IP:   prefix.Addr().AsSlice(),
		Mask: net.CIDRMask(prefix.Bits(), prefix.Addr().BitLen()),
	}
}

func familyOf(address netip.Addr) int {
	if address.Is4() {
		return netlink.FAMILY_V4
	}
	return netlink.FAMILY_V6
}
