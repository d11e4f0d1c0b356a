// SPDX-License-Identifier: Apache-2.0

package network

import (
	"fmt"
	"strconv"

	"github.com/vishvananda/netlink"
)

// rack is where the node stands, from 1; 0 where the network has no racks.
func (node *Node) rack() int {
	if racks := node.network.Spec.Racks; racks > 0 {
		return (node.Number-1)%racks + 1
	}
	return 0
}

// checkRacks: what else joins the nodes of a path, or leads between their pods, does not
// know of several subnets.
func (spec *Spec) checkRacks() error {
	if spec.Racks == 0 {
		return nil
	}
	if spec.Racks < 0 || spec.Racks > spec.Nodes || len(spec.Shared)+len(spec.PathDelays) > 0 {
		return fmt.Errorf("network %s: %d racks: needs as many nodes, and no paths that are shared or have a delay", spec.Name, spec.Racks)
	}
	return nil
}

// bridge is the fabric's switch of a path in a rack.
func bridge(path string, rack int) string {
	if rack == 0 {
		return path
	}
	return fmt.Sprintf("%s.r%d", path, rack)
}

// gateway is the router's address on a path in a rack.
func gateway(path, rack, version int) string {
	if version == 6 {
		return fmt.Sprintf("fd00:%d:0:%d::fe", 20+path, rack)
	}
	return fmt.Sprintf("10.%d.%d.254", 20+path, rack)
}

// everyRack is the range of all addresses of a path.
func everyRack(path, version int) string {
	if version == 6 {
		return fmt.Sprintf("fd00:%d::/48", 20+path)
	}
	return fmt.Sprintf("10.%d.0.0/16", 20+path)
}

// PathRange is the range of all addresses that nodes have on the path with this index.
func (spec *Spec) PathRange(path, version int) string {
	if spec.Racks > 0 {
		return everyRack(path, version)
	}
	return map[int]string{4: fmt.Sprintf("10.%d.0.0/24", 20+path), 6: fmt.Sprintf("fd00:%d::/64", 20+path)}[version]
}

// buildRouters joins the racks of each path by a router of its own, which knows that path's
// subnets and nothing else.
func (n *Network) buildRouters() error {
	if n.Spec.Racks == 0 {
		return nil
	}
	for i, path := range n.Spec.Paths {
		router, err := New(n.Spec.Name + "-router-" + path)
		if err != nil {
			return err
		}
		n.Routers[path] = router
		// Its IPv6 addresses outlive that it is switched off.
		for _, setting := range append([][2]string{{"net.ipv6.conf.all.keep_addr_on_down", "1"}, {"net.ipv6.conf.default.keep_addr_on_down", "1"}}, nodeSysctls...) {
			if err := router.Sysctl(setting[0], setting[1]); err != nil {
				return err
			}
		}
		for rack := 1; rack <= n.Spec.Racks; rack++ {
			if err := n.joinRack(router, i, rack); err != nil {
				return err
			}
		}
	}
	return nil
}

func (n *Network) joinRack(router *Namespace, i, rack int) error {
	path := n.Spec.Paths[i]
	var addresses []string
	for _, version := range n.Versions() {
		addresses = append(addresses, gateway(i, rack, version)+map[int]string{4: "/24", 6: "/64"}[version])
	}
	port := fmt.Sprintf("%s.x%d", path, rack)
	if err := Connect(router, "rack"+strconv.Itoa(rack), n.Fabric, port, Options{AddressesA: addresses}); err != nil {
		return err
	}
	return n.setMaster(port, bridge(path, rack))
}

// setMaster makes an interface of the fabric a port of one of its switches.
func (n *Network) setMaster(port, into string) error {
	handle, link, err := n.Fabric.link(port)
	if err != nil {
		return err
	}
	to, err := handle.LinkByName(into)
	if err != nil {
		return fmt.Errorf("finding bridge %s: %w", into, err)
	}
	if err := handle.LinkSetMaster(link, to); err != nil {
		return fmt.Errorf("plugging %s into bridge %s: %w", port, into, err)
	}
	return nil
}

// leadToRacks routes what is for the path's other racks to its router.
func (node *Node) leadToRacks(path int) error {
	if node.rack() == 0 {
		return nil
	}
	for _, version := range node.network.Versions() {
		route := Route{
			Destination: everyRack(path, version), Gateway: gateway(path, node.rack(), version), Interface: node.network.Spec.Paths[path],
		}
		if err := node.AddRoute(route); err != nil {
			return err
		}
	}
	return nil
}

// leadToPods has the first path's router know the pods of all nodes, as the cluster network's
// own router does. It forgets them when it is switched off.
func (n *Network) leadToPods() error {
	if n.Spec.Racks == 0 || n.Spec.NoRoutes || n.Spec.Overlay.laid() {
		return nil
	}
	for _, node := range n.Nodes {
		for _, version := range n.Versions() {
			route := Route{Destination: node.PodCIDR(version), Gateway: node.Address(0, version), Interface: "rack" + strconv.Itoa(node.rack())}
			if err := n.Routers[n.Spec.Paths[0]].AddRoute(route); err != nil {
				return err
			}
		}
	}
	return nil
}

// podGateway is the next hop of the cluster network's route to another node's pods.
func (node *Node) podGateway(other *Node, version int) string {
	if node.rack() != other.rack() {
		return gateway(0, node.rack(), version)
	}
	return other.Address(0, version)
}

// Router is the address of the path's router in the node's rack.
func (node *Node) Router(path, version int) string { return gateway(path, node.rack(), version) }

// SetRouter switches a path's router on or off. No node loses a carrier by that.
func (n *Network) SetRouter(path string, on bool) error {
	router := n.Routers[path]
	if router == nil {
		return fmt.Errorf("network %s: path %s has no router", n.Spec.Name, path)
	}
	for rack := 1; rack <= n.Spec.Racks; rack++ {
		set := router.SetDown
		if on {
			set = router.SetUp
		}
		if err := set("rack" + strconv.Itoa(rack)); err != nil {
			return err
		}
	}
	if on && path == n.Spec.Paths[0] {
		return n.leadToPods()
	}
	return nil
}

// addBridge adds a switch to the fabric.
func (n *Network) addBridge(name string) error {
	handle, err := n.Fabric.Handle()
	if err != nil {
		return err
	}
	attributes := netlink.NewLinkAttrs()
	attributes.Name = name
	snooping := false
	if err := handle.LinkAdd(&netlink.Bridge{LinkAttrs: attributes, MulticastSnooping: &snooping}); err != nil {
		return fmt.Errorf("adding bridge %s: %w", name, err)
	}
	return n.Fabric.SetUp(name)
}
