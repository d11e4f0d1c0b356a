// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// World is what is outside of the cluster: one host, to which each path leads over a gateway of
// its own. What comes to it by a link it answers by that link, as routers with symmetric
// return do.
type World struct {
	*Namespace
	// IPv4 and IPv6 are its addresses, whatever the link.
	IPv4, IPv6 string
}

// The ranges of everything outside.
const (
	WorldIPv4 = "198.51.100.0/22"
	WorldIPv6 = "2001:db8:9::/48"
)

// Address for a version of IP.
func (w *World) Address(version int) string {
	if version == 6 {
		return w.IPv6
	}
	return w.IPv4
}

// GatewayOf is the address that a path's gateway has on the path's link.
func (n *Network) GatewayOf(path, version int) string { return gateway(path, 0, version) }

// worldLink are the addresses of the gateway (1) or of the world (2) on a path's link outside.
func worldLink(path, end, version int) string {
	if version == 6 {
		return fmt.Sprintf("2001:db8:9:%d::%d", path, end)
	}
	return fmt.Sprintf("198.51.102.%d", 16*path+end)
}

// LinkAddress is the world's own address on its link to a path's gateway.
func (w *World) LinkAddress(path, version int) string { return worldLink(path, 2, version) }

// buildWorld makes it, and the gateways, and routes to both.
func (n *Network) buildWorld() error {
	if !n.Spec.World {
		return nil
	}
	if n.Spec.Racks > 0 || len(n.Spec.Shared)+len(n.Spec.PathDelays) > 0 {
		return fmt.Errorf("network %s: a world needs one rack, and paths that are not shared and have no delay", n.Spec.Name)
	}
	namespace, err := New(n.Spec.Name + "-world")
	if err != nil {
		return err
	}
	n.World = &World{namespace, "198.51.100.10", "2001:db8:9:ffff::10"}
	for _, address := range []string{n.World.IPv4 + "/32", n.World.IPv6 + "/128"} {
		if err := n.World.AddAddress("lo", address); err != nil {
			return err
		}
	}
	for i := range n.Spec.Paths {
		if err := n.buildGateway(i); err != nil {
			return err
		}
	}
	return errors.Join(n.World.answerByLinks(n), n.leadToWorld())
}

func (n *Network) buildGateway(i int) error {
	path := n.Spec.Paths[i]
	gatewayOfPath, err := New(n.Spec.Name + "-gateway-" + path)
	if err != nil {
		return err
	}
	n.Routers[path] = gatewayOfPath
	for _, setting := range append([][2]string{{"net.ipv6.conf.all.keep_addr_on_down", "1"}, {"net.ipv6.conf.default.keep_addr_on_down", "1"}}, nodeSysctls...) {
		if err := gatewayOfPath.Sysctl(setting[0], setting[1]); err != nil {
			return err
		}
	}
	inside := Options{AddressesA: []string{gateway(i, 0, 4) + "/24", gateway(i, 0, 6) + "/64"}}
	if err := Connect(gatewayOfPath, "inside", n.Fabric, path+".gw", inside); err != nil {
		return err
	}
	outside := Options{
		AddressesA: []string{worldLink(i, 1, 4) + "/28", worldLink(i, 1, 6) + "/64"},
		AddressesB: []string{worldLink(i, 2, 4) + "/28", worldLink(i, 2, 6) + "/64"},
	}
	if err := Connect(gatewayOfPath, "outside", n.World.Namespace, path, outside); err != nil {
		return err
	}
	for version, world := range map[int]string{4: WorldIPv4, 6: WorldIPv6} {
		if err := gatewayOfPath.AddRoute(Route{Destination: world, Gateway: worldLink(i, 2, version), Interface: "outside"}); err != nil {
			return err
		}
	}
	return n.setMaster(path+".gw", bridge(path, 0))
}

// answerByLinks has the world answer by the link by which something came last, and begin by the
// first.
func (w *World) answerByLinks(n *Network) error {
	commands := []string{
		"nft add table inet links",
		"nft add chain inet links in { type filter hook prerouting priority -150 ; }",
		"nft add chain inet links out { type route hook output priority -150 ; }",
		"nft add rule inet links out ct mark != 0 meta mark set ct mark",
	}
	for i, path := range n.Spec.Paths {
		table := strconv.Itoa(101 + i)
		commands = append(commands, fmt.Sprintf("nft add rule inet links in iifname %s ct mark set %s", path, table))
		for version, family := range map[int]string{4: "-4", 6: "-6"} {
			commands = append(commands,
				fmt.Sprintf("ip %s rule add fwmark %s table %s", family, table, table),
				fmt.Sprintf("ip %s rule add from %s table %s", family, worldLink(i, 2, version), table),
				fmt.Sprintf("ip %s route add default via %s dev %s table %s", family, worldLink(i, 1, version), path, table))
			if i == 0 {
				commands = append(commands, fmt.Sprintf("ip %s route add default via %s dev %s", family, worldLink(i, 1, version), path))
			}
		}
	}
	return w.runAll(commands)
}

func (ns *Namespace) runAll(commands []string) error {
	for _, command := range commands {
		words := strings.Fields(command)
		if out, err := ns.Run(words[0], words[1:]...); err != nil {
			return fmt.Errorf("%s in %s: %w: %s", command, ns.Name, err, out)
		}
	}
	return nil
}

// leadToWorld gives the nodes default routes by all gateways, the first one before the others,
// and the gateways routes to the nodes, whichever of their addresses it is, and to their pods.
func (n *Network) leadToWorld() error {
	for i, path := range n.Spec.Paths {
		for _, node := range n.Nodes {
			var inside, there []string
			for version, family := range map[int]string{4: "-4", 6: "-6"} {
				inside = append(inside, fmt.Sprintf("ip %s route add default via %s dev %s metric %d", family, gateway(i, 0, version), path, 100+i))
				for _, to := range append(node.addressesBut(i, version), node.PodCIDR(version)) {
					there = append(there, fmt.Sprintf("ip %s route add %s via %s dev inside", family, to, node.Address(i, version)))
				}
			}
			if err := errors.Join(node.runAll(inside), n.Routers[path].runAll(there)); err != nil {
				return err
			}
		}
	}
	return nil
}

// addressesBut are the node's on all paths but one.
func (node *Node) addressesBut(path, version int) (addresses []string) {
	for i := range node.network.Spec.Paths {
		if i != path {
			addresses = append(addresses, node.Address(i, version))
		}
	}
	return addresses
}

// SetGateway switches a path's gateway on or off. No NIC loses its carrier by that, nor its
// routes.
func (n *Network) SetGateway(path string, on bool) error {
	table := []string{"nft add table netdev dead"}
	for _, of := range []string{"inside", "outside"} {
		table = append(table, fmt.Sprintf("nft add chain netdev dead %s { type filter hook ingress device %s priority 0 ; policy drop ; }", of, of))
	}
	if on {
		table = []string{"nft delete table netdev dead"}
	}
	return n.Routers[path].runAll(table)
}

// CheckSources has a path's gateway drop what does not come from an address of the path.
func (n *Network) CheckSources(path string) error {
	i := slices.Index(n.Spec.Paths, path)
	return n.Routers[path].runAll([]string{
		"nft add table inet sources",
		"nft add chain inet sources through { type filter hook forward priority 0 ; }",
		fmt.Sprintf("nft add rule inet sources through iifname inside ip saddr != %s drop", n.Spec.PathRange(i, 4)),
		fmt.Sprintf("nft add rule inet sources through iifname inside ip6 saddr != %s drop", n.Spec.PathRange(i, 6)),
	})
}

// Publish leads a port of the node's own addresses to a pod, as a Service of type NodePort does.
func (node *Node) Publish(pod *Pod, port string) error {
	return node.runAll([]string{
		"nft add table inet published",
		"nft add chain inet published in { type nat hook prerouting priority -100 ; }",
		fmt.Sprintf("nft add rule inet published in fib daddr type local meta nfproto ipv4 tcp dport %s dnat ip to %s:%s", port, pod.IPv4, port),
	})
}

// Masquerade gives what leaves the cluster from the node's pods the node's own address, as
// cluster networks do: that of the NIC which the route takes.
func (node *Node) Masquerade() error {
	return node.runAll([]string{
		"nft add table inet outside",
		"nft add chain inet outside out { type nat hook postrouting priority 100 ; }",
		fmt.Sprintf("nft add rule inet outside out ip saddr %s ip daddr %s masquerade", node.PodCIDR(4), WorldIPv4),
		fmt.Sprintf("nft add rule inet outside out ip6 saddr %s ip6 daddr %s masquerade", node.PodCIDR(6), WorldIPv6),
	})
}
