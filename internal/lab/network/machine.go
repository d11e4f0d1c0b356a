// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"fmt"
	"net"
	"slices"

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

// SecondPlace adds a place for the same machine at another node, to which its hypervisor can
// move it. No route leads there until TakeOver.
func (p *Pod) SecondPlace(node *Node) (*Pod, error) {
	node.mu.Lock()
	defer node.mu.Unlock()
	namespace, err := New(node.network.Spec.Name + "-pod-" + p.PodName + "-" + node.NodeName())
	if err != nil {
		return nil, err
	}
	node.added++
	place := &Pod{
		Namespace: namespace, PodName: p.PodName, Node: node, HostInterface: fmt.Sprintf("veth%d", node.added), IPv4: p.IPv4, IPv6: p.IPv6,
	}
	if err := place.joinMachine(); err != nil {
		return nil, errors.Join(fmt.Errorf("adding a place for %s at %s: %w", p.PodName, node.Name, err), place.delete())
	}
	return place, nil
}

// TakeOver has the nodes' routes to the machine lead to its second place, which is its own
// from now on. What is left of the first place is the caller's to delete.
func (p *Pod) TakeOver(from *Pod) error {
	from.Node.mu.Lock()
	from.Node.Pods = slices.DeleteFunc(from.Node.Pods, func(other *Pod) bool { return other == from })
	from.Node.mu.Unlock()
	p.Node.mu.Lock()
	p.Node.Pods = append(p.Node.Pods, p)
	p.Node.mu.Unlock()
	for _, version := range p.Node.network.Versions() {
		p.moved = append(p.moved, hostRoute(p.Address(version), version))
	}
	return p.leadHere()
}

// DeletePlace deletes a place that is no longer a machine's, or not yet.
func (p *Pod) DeletePlace() error { return p.delete() }

func (p *Pod) connectMachine() error {
	if err := p.joinMachine(); err != nil {
		return err
	}
	for _, version := range p.Node.network.Versions() {
		if err := p.addNodeRoute(version); err != nil {
			return err
		}
	}
	return nil
}

// machineGateway is the MAC address of the nodes' ends, the same at each: a machine that moves
// keeps what it knows of its neighbours.
var machineGateway = net.HardwareAddr{0xee, 0xee, 0xee, 0xee, 0xee, 0xee}

// joinMachine joins the machine's tap with its node.
func (p *Pod) joinMachine() error {
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
	handle, link, err := p.Node.link(p.HostInterface)
	if err != nil {
		return err
	}
	if err := handle.LinkSetHardwareAddr(link, machineGateway); err != nil {
		return fmt.Errorf("giving the gateway of a machine its address: %w", err)
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
