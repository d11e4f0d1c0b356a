// SPDX-License-Identifier: Apache-2.0

package paths

import (
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// Interface is one of the node's, whether any path has it or not.
type Interface struct {
	NIC
	// Link is what the kernel tells of it.
	Link netlink.Link
	// Loopback is the loopback, Tunnel one that encapsulates packets, PodLike one end of a pair
	// that has no subnet of its own, as those of pods.
	Loopback, Tunnel, PodLike bool
	// Gateways are next hops of default routes over it.
	Gateways []netip.Addr
}

// Interfaces are those of the network namespace that the caller is in, sorted by name, as
// paths see them. Braid's own are left out.
func Interfaces() ([]Interface, error) {
	kernel, err := openKernel(netns.None())
	if err != nil {
		return nil, err
	}
	defer kernel.close()
	links, err := kernel.Links()
	if err != nil {
		return nil, err
	}
	addresses, err := kernel.Addresses()
	if err != nil {
		return nil, err
	}
	routes, err := kernel.Routes()
	if err != nil {
		return nil, err
	}
	return interfaces(links, addresses, routes), nil
}

func interfaces(links []netlink.Link, addresses []netlink.Addr, routes []netlink.Route) (all []Interface) {
	byIndex := map[int]netlink.Link{}
	for _, link := range links {
		byIndex[link.Attrs().Index] = link
	}
	for _, c := range candidates(links, addresses) {
		all = append(all, Interface{
			NIC: c.onPath(nil), Link: byIndex[c.Index],
			Loopback: c.loopback, Tunnel: c.tunnel != nil, PodLike: c.podLike, Gateways: gatewaysOf(routes, c.Index),
		})
	}
	return all
}

// gatewaysOf are the next hops of default routes over an interface.
func gatewaysOf(routes []netlink.Route, index int) []netip.Addr {
	var over []netlink.Route
	for _, route := range routes {
		for _, hop := range route.MultiPath {
			if hop.LinkIndex == index {
				over = append(over, netlink.Route{Dst: route.Dst, Table: route.Table, Gw: hop.Gw})
			}
		}
		if route.LinkIndex == index {
			over = append(over, route)
		}
	}
	return waysOut(over)
}
