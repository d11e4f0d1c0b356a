// SPDX-License-Identifier: Apache-2.0

package network

import (
	"fmt"

	"github.com/vishvananda/netlink"
)

// Names in the namespace of a virtual machine.
const (
	// MachineTap is where the machine's hypervisor connects its NIC.
	MachineTap    = "tap0"
	machineBridge = "br0"
)

// MachineSegment is how large a packet of a machine's segmentation offload may be, in bytes:
// shapers need not cut it.
const MachineSegment = shapedGSO

// AddMachine adds the place of a virtual machine: a namespace for its hypervisor, in which a
// bridge joins the machine's tap with the interface towards the node. The addresses are the
// machine's to take.
func (node *Node) AddMachine(name string) (*Pod, error) { return node.add(name, (*Pod).connectMachine) }

// Gateway is the address that routes what pods and machines send, of an IP version.
func Gateway(version int) string { return gateways[version] }

func (p *Pod) connectMachine() error {
	var hostAddresses []string
	for _, version := range p.Node.network.Versions() {
		hostAddresses = append(hostAddresses, hostRoute(gateways[version], version))
	}
	if err := Connect(p.Namespace, "eth0", p.Node.Namespace, p.HostInterface, Options{MTU: p.mtu(), AddressesB: hostAddresses}); err != nil {
		return err
	}
	if err := p.Do(bridgeTap); err != nil {
		return fmt.Errorf("joining the tap of a machine with its node: %w", err)
	}
	for _, version := range p.Node.network.Versions() {
		if err := p.addNodeRoute(version); err != nil {
			return err
		}
	}
	return nil
}

// bridgeTap makes the tap and the bridge, in the namespace of the calling thread.
func bridgeTap() error {
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: machineBridge}}
	tap := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: MachineTap}, Mode: netlink.TUNTAP_MODE_TAP, Flags: netlink.TUNTAP_VNET_HDR}
	for _, device := range []netlink.Link{bridge, tap} {
		if err := netlink.LinkAdd(device); err != nil {
			return fmt.Errorf("adding %s: %w", device.Attrs().Name, err)
		}
	}
	port, err := netlink.LinkByName("eth0")
	if err != nil {
		return err
	}
	for _, device := range []netlink.Link{port, tap} {
		if err := netlink.LinkSetMaster(device, bridge); err != nil {
			return fmt.Errorf("putting %s into the bridge: %w", device.Attrs().Name, err)
		}
	}
	for _, device := range []netlink.Link{bridge, tap} {
		if err := netlink.LinkSetUp(device); err != nil {
			return fmt.Errorf("setting %s up: %w", device.Attrs().Name, err)
		}
	}
	return nil
}
