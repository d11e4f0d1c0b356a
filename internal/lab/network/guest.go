// SPDX-License-Identifier: Apache-2.0

package network

// A guest is to its node what a virtual machine is behind its pod: the pod's
// namespace only forwards, and the addresses and sockets are in another one behind
// it. Forwarding takes the socket from each packet, so that the node sees none.

// guestGateways are a forwarder's addresses towards its guest.
var guestGateways = map[int]string{4: "169.254.2.1", 6: "fe80::2"}

// toGuest is the forwarder's interface towards its guest.
const toGuest = "guest"

var forwarderSysctls = append([][2]string{
	{"net.ipv4.conf.eth0.proxy_arp", "1"},
	{"net.ipv6.conf.eth0.proxy_ndp", "1"},
}, nodeSysctls...)

// AddGuest adds a pod that forwards to a guest. Its name must be unique in the
// network.
func (node *Node) AddGuest(name string) (*Pod, error) {
	return node.add(name, (*Pod).connectGuest)
}

func (p *Pod) connectGuest() error {
	guest, err := New(p.Node.network.Spec.Name + "-guest-" + p.PodName)
	if err != nil {
		return err
	}
	p.Forwarder, p.Namespace = p.Namespace, guest
	var guestAddresses, forwarderAddresses, hostAddresses []string
	for _, version := range p.Node.network.Versions() {
		guestAddresses = append(guestAddresses, hostRoute(p.Address(version), version))
		forwarderAddresses = append(forwarderAddresses, hostRoute(guestGateways[version], version))
		hostAddresses = append(hostAddresses, hostRoute(gateways[version], version))
	}
	if err := Connect(p.Forwarder, "eth0", p.Node.Namespace, p.HostInterface, Options{MTU: p.mtu(), AddressesB: hostAddresses}); err != nil {
		return err
	}
	if err := Connect(guest, "eth0", p.Forwarder, toGuest, Options{MTU: p.mtu(), AddressesA: guestAddresses, AddressesB: forwarderAddresses}); err != nil {
		return err
	}
	for _, setting := range forwarderSysctls {
		if err := p.Forwarder.Sysctl(setting[0], setting[1]); err != nil {
			return err
		}
	}
	for _, version := range p.Node.network.Versions() {
		if err := p.routeGuest(version); err != nil {
			return err
		}
	}
	return p.limitPackets()
}

// routeGuest adds the routes of the guest, of its forwarder and of the node.
func (p *Pod) routeGuest(version int) error {
	if err := addDefaultRoute(p.Namespace, guestGateways[version], version); err != nil {
		return err
	}
	if err := addDefaultRoute(p.Forwarder, gateways[version], version); err != nil {
		return err
	}
	toGuest := Route{Destination: hostRoute(p.Address(version), version), Interface: toGuest}
	if err := p.Forwarder.AddRoute(toGuest); err != nil {
		return err
	}
	if version == 6 {
		if _, err := p.Forwarder.Run("ip", "-6", "neighbour", "add", "proxy", p.IPv6, "dev", "eth0"); err != nil {
			return err
		}
	}
	return p.addNodeRoute(version)
}
