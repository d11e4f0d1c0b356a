// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
)

// ConfigureNetwork gives eth0 what DHCP would: an IPv4 address, and a gateway that need be no
// neighbour. Packets of segmentation offload have at most segment bytes.
func ConfigureNetwork(address, gateway string, segment int) error {
	device, err := netlink.LinkByName("eth0")
	if err != nil {
		return fmt.Errorf("looking for the machine's NIC: %w", err)
	}
	own, err := netlink.ParseAddr(address + "/32")
	if err != nil {
		return fmt.Errorf("reading the machine's address: %w", err)
	}
	all := netlink.Route{LinkIndex: device.Attrs().Index, Gw: net.ParseIP(gateway), Flags: int(netlink.FLAG_ONLINK)}
	for _, step := range []func() error{
		func() error { return setUp("lo") },
		func() error { return netlink.AddrAdd(device, own) },
		func() error { return netlink.LinkSetGSOMaxSize(device, segment) },
		func() error { return netlink.LinkSetGSOIPv4MaxSize(device, segment) },
		func() error { return netlink.LinkSetUp(device) },
		func() error { return netlink.RouteAdd(&all) },
	} {
		if err := step(); err != nil {
			return fmt.Errorf("setting up the machine's network: %w", err)
		}
	}
	return nil
}

func setUp(name string) error {
	device, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(device)
}
