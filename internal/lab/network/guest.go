// SPDX-License-Identifier: Apache-2.0

package network

import "strings"

// A guest is to its node what a virtual machine is behind its pod: the pod's
// namespace only forwards, and the sockets are in another one behind it. Forwarding takes
// the socket from each packet, so that the node sees none.

// Binding is how a guest is joined to its pod.
type Binding string

// Bindings.
const (
	// BindingRouted has the pod route to the guest, which has the pod's addresses.
	BindingRouted Binding = "routed"
	// BindingBridge is KubeVirt's binding of this name: the guest has the pod's addresses,
	// and the pod none.
	BindingBridge Binding = "bridge"
	// BindingMasquerade is KubeVirt's binding of this name: the guest has addresses of its
	// own behind those of the pod.
	BindingMasquerade Binding = "masquerade"
)

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
func (node *Node) AddGuest(name string) (*Pod, error) { return node.AddGuestBy(BindingRouted, name) }

// AddGuestBy adds one that is joined to its guest in this way.
func (node *Node) AddGuestBy(binding Binding, name string) (*Pod, error) {
	connect := map[Binding]func(*Pod) error{
		BindingRouted: (*Pod).routeToGuest, BindingBridge: (*Pod).bridgeGuest, BindingMasquerade: (*Pod).masqueradeGuest,
	}[binding]
	return node.add(name, func(p *Pod) error {
		guest, err := New(node.network.Spec.Name + "-guest-" + name)
		if err != nil {
			return err
		}
		p.Forwarder, p.Namespace = p.Namespace, guest
		return connect(p)
	})
}

func (p *Pod) routeToGuest() error {
	guest := p.Namespace
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

// guestBridge is KubeVirt's name of the bridge that its guests are at.
const guestBridge = "k6t-eth0"

// bridgeGuest joins the guest and the pod's interface by a bridge.
func (p *Pod) bridgeGuest() error {
	var guestAddresses, hostAddresses []string
	for _, version := range p.Node.network.Versions() {
		guestAddresses = append(guestAddresses, hostRoute(p.Address(version), version))
		hostAddresses = append(hostAddresses, hostRoute(gateways[version], version))
	}
	if err := Connect(p.Forwarder, "eth0", p.Node.Namespace, p.HostInterface, Options{MTU: p.mtu(), AddressesB: hostAddresses}); err != nil {
		return err
	}
	if err := p.joinBridge(guestAddresses); err != nil {
		return err
	}
	if _, err := p.Forwarder.Run("ip", "link", "set", "eth0", "master", guestBridge); err != nil {
		return err
	}
	for _, version := range p.Node.network.Versions() {
		if err := p.addRoutes(version); err != nil {
			return err
		}
	}
	return p.limitPackets()
}

// joinBridge makes the bridge, with the guest at it.
func (p *Pod) joinBridge(guestAddresses []string) error {
	if _, err := p.Forwarder.Run("ip", "link", "add", guestBridge, "type", "bridge"); err != nil {
		return err
	}
	if err := Connect(p.Namespace, "eth0", p.Forwarder, toGuest, Options{MTU: p.mtu(), AddressesA: guestAddresses}); err != nil {
		return err
	}
	for _, link := range [][]string{{toGuest, "master", guestBridge}, {guestBridge, "up"}} {
		if _, err := p.Forwarder.Run("ip", append([]string{"link", "set"}, link...)...); err != nil {
			return err
		}
	}
	return nil
}

// hidden are the networks of masqueraded guests: the guest's and the pod's address there,
// as KubeVirt gives them.
var hidden = map[int]struct{ guest, pod, bits string }{
	4: {"10.0.2.2", "10.0.2.1", "/24"},
	6: {"fd10:0:2::2", "fd10:0:2::1", "/120"},
}

// masqueradeGuest gives the pod its addresses, and the guest others behind them.
func (p *Pod) masqueradeGuest() error {
	guest := p.Namespace
	p.Namespace = p.Forwarder
	err := p.connect()
	p.Namespace = guest
	if err != nil {
		return err
	}
	var addresses []string
	for _, version := range p.Node.network.Versions() {
		addresses = append(addresses, hidden[version].guest+hidden[version].bits)
	}
	if err := p.joinBridge(addresses); err != nil {
		return err
	}
	for _, setting := range nodeSysctls {
		if err := p.Forwarder.Sysctl(setting[0], setting[1]); err != nil {
			return err
		}
	}
	for _, version := range p.Node.network.Versions() {
		if err := p.masquerade(version); err != nil {
			return err
		}
	}
	return p.limitPackets()
}

// masquerade adds the rules that KubeVirt does.
func (p *Pod) masquerade(version int) error {
	at, family := hidden[version], map[int]string{4: "ip", 6: "ip6"}[version]
	if err := p.Forwarder.AddAddress(guestBridge, at.pod+at.bits); err != nil {
		return err
	}
	if err := p.Namespace.AddRoute(Route{Destination: everything[version], Gateway: at.pod, Interface: "eth0"}); err != nil {
		return err
	}
	for _, command := range []string{
		"add table " + family + " nat",
		"add chain " + family + " nat prerouting { type nat hook prerouting priority -100 ; }",
		"add chain " + family + " nat postrouting { type nat hook postrouting priority 100 ; }",
		"add rule " + family + " nat prerouting iifname eth0 counter dnat to " + at.guest,
		"add rule " + family + " nat postrouting " + family + " saddr " + at.guest + " counter masquerade",
	} {
		if _, err := p.Forwarder.Run("nft", strings.Fields(command)...); err != nil {
			return err
		}
	}
	return nil
}
