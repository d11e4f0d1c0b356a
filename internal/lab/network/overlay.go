// SPDX-License-Identifier: Apache-2.0

package network

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Overlay has the nodes carry their pods' packets to each other in VXLAN, as flannel
// lays it: a device flannel.1 with VNI 1 and port 8472, and for each other node a route
// to its pods, a neighbour and an entry of the forwarding database, all permanent. The
// zero value is native routing. Packets between nodes go to their addresses on the
// first path: whoever wants a NIC that is no path of Braid's gives that one first.
type Overlay struct {
	// Outer is the IP version of what carries the packets, 4 or 6; both versions go
	// inside of it.
	Outer int
	// External has each route say where its packets go, not the device (collect_md), as
	// overlays that programs lay do. Over IPv4 their UDP has no checksum, as there.
	External bool
	// Port of UDP; 0 stands for TunnelPort.
	Port int
}

// overlays are what there is, by the names that people choose one by.
var overlays = map[string]Overlay{
	"native": {}, "vxlan": {Outer: 4}, "vxlan6": {Outer: 6}, "vxlan-external": {Outer: 4, External: true},
}

// OverlayNamed is the one with this name; native is none, and so is no name.
func OverlayNamed(name string) (Overlay, error) {
	overlay, ok := overlays[name]
	if !ok && name != "" {
		return overlay, fmt.Errorf("there is no network %q: must be one of %v", name, slices.Sorted(maps.Keys(overlays)))
	}
	return overlay, nil
}

const (
	// TunnelDevice is a node's end of the overlay, by flannel's name.
	TunnelDevice = "flannel.1"
	// TunnelPort is the UDP port of the overlay, flannel's and the kernel's own choice.
	TunnelPort = 8472
	// TunnelID is the overlay's VNI.
	TunnelID = 1
	nicMTU   = 1500
)

// laid tells whether there is an overlay.
func (o Overlay) laid() bool { return o.Outer != 0 }

// overhead is what the packets get around them, in bytes: Ethernet, VXLAN, UDP and IP.
func (o Overlay) overhead() int {
	switch o.Outer {
	case 4:
		return 14 + 8 + 8 + 20
	case 6:
		return 14 + 8 + 8 + 40
	}
	return 0
}

func (spec *Spec) checkOverlay() error {
	has := map[int]bool{0: !spec.Overlay.External, 4: spec.IPv4, 6: spec.IPv6}
	if !has[spec.Overlay.Outer] {
		return fmt.Errorf("network %s: an overlay over IPv%d (external: %v): the nodes have no such addresses", spec.Name, spec.Overlay.Outer, spec.Overlay.External)
	}
	return nil
}

// TunnelMAC is the hardware address of the node's end of the overlay.
func (node *Node) TunnelMAC() net.HardwareAddr {
	return net.HardwareAddr{0x02, 0xf1, 0, 0, 0, byte(node.Number)}
}

// tunnelAddress is that of the node's end: the first one of its pods' range.
func (node *Node) tunnelAddress(version int) string {
	address, _, _ := strings.Cut(node.PodCIDR(version), "/")
	return address
}

// tunnelEnd is the node's address between which and others' the overlay's packets go.
func (node *Node) tunnelEnd() string {
	if node.TunnelEnd != "" {
		return node.TunnelEnd
	}
	return node.Address(0, node.network.Spec.Overlay.Outer)
}

// CutOverlay takes the node's end of the overlay away, and with it the ways to the other nodes.
func (node *Node) CutOverlay() error {
	handle, tunnel, err := node.link(TunnelDevice)
	if err != nil {
		return err
	}
	if err := handle.LinkDel(tunnel); err != nil {
		return fmt.Errorf("removing %s of %s: %w", TunnelDevice, node.Name, err)
	}
	return nil
}

// LayOverlay lays it anew, as the network's Spec and the nodes' TunnelEnd say now; where it is there,
// it has the ways to the other nodes follow these.
func (node *Node) LayOverlay() error { return node.layOverlay() }

// layOverlay makes the node's end of the overlay, if it is not there, and the ways to
// the other nodes.
func (node *Node) layOverlay() error {
	if err := node.addTunnel(); err != nil {
		return fmt.Errorf("adding %s in %s: %w", TunnelDevice, node.Name, err)
	}
	for _, other := range node.network.Nodes {
		if other == node {
			continue
		}
		if err := node.carryTo(other); err != nil {
			return fmt.Errorf("leading the overlay from %s to %s: %w", node.Name, other.Name, err)
		}
	}
	return nil
}

func (node *Node) addTunnel() error {
	handle, below, err := node.link(node.network.Spec.Paths[0])
	if err != nil {
		return err
	}
	overlay := node.network.Spec.Overlay
	attributes := netlink.NewLinkAttrs()
	attributes.Name, attributes.HardwareAddr, attributes.Index = TunnelDevice, node.TunnelMAC(), node.TunnelIndex
	attributes.MTU = nicMTU - overlay.overhead()
	tunnel := &netlink.Vxlan{LinkAttrs: attributes, Port: cmp.Or(overlay.Port, TunnelPort), FlowBased: overlay.External}
	if !overlay.External {
		tunnel.VxlanId, tunnel.VtepDevIndex = TunnelID, below.Attrs().Index
		tunnel.SrcAddr = net.ParseIP(node.tunnelEnd())
	}
	if err := handle.LinkAdd(tunnel); errors.Is(err, unix.EEXIST) {
		return nil
	} else if err != nil {
		return err
	}
	var addresses []string
	for _, version := range node.network.Versions() {
		addresses = append(addresses, hostRoute(node.tunnelAddress(version), version))
	}
	return node.configure(TunnelDevice, Options{}, addresses)
}

// carryTo has what is for another node's pods go to that node.
func (node *Node) carryTo(other *Node) error {
	handle, tunnel, err := node.link(TunnelDevice)
	if err != nil {
		return err
	}
	overlay := node.network.Spec.Overlay
	entry := &netlink.Neigh{LinkIndex: tunnel.Attrs().Index, State: netlink.NUD_PERMANENT, HardwareAddr: other.TunnelMAC()}
	if !overlay.External {
		forwarding := *entry
		forwarding.Family, forwarding.Flags = unix.AF_BRIDGE, netlink.NTF_SELF
		forwarding.IP = net.ParseIP(other.tunnelEnd())
		if err := handle.NeighSet(&forwarding); err != nil {
			return fmt.Errorf("adding an entry of the forwarding database: %w", err)
		}
	}
	for _, version := range node.network.Versions() {
		entry.IP = net.ParseIP(other.tunnelAddress(version))
		if err := handle.NeighSet(entry); err != nil {
			return fmt.Errorf("adding neighbour %s: %w", entry.IP, err)
		}
		if err := node.routeInto(other, other.PodCIDR(version), version); err != nil {
			return err
		}
	}
	return nil
}

// routeInto routes a destination at another node into the overlay.
func (node *Node) routeInto(other *Node, destination string, version int) error {
	overlay := node.network.Spec.Overlay
	if !overlay.External {
		return node.AddRoute(Route{Destination: destination, Gateway: other.tunnelAddress(version), Interface: TunnelDevice})
	}
	line := fmt.Sprintf("-%d route replace %s encap %s id %d dst %s", version, destination,
		map[int]string{4: "ip", 6: "ip6"}[overlay.Outer], TunnelID, other.tunnelEnd())
	if overlay.Outer == 6 {
		line += " csum" // devices refuse UDP over IPv6 without one
	}
	_, err := node.Run("ip", strings.Fields(fmt.Sprintf("%s via %s dev %s onlink", line, other.tunnelAddress(version), TunnelDevice))...)
	return err
}
