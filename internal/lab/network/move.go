// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// MoveTo takes the pod to another node, as the live migration of a virtual machine does: what
// it has itself stays, its sockets among it, the host's end of its interface is at the other
// node, and the routes of all nodes to its addresses, and to these, lead there.
func (p *Pod) MoveTo(node *Node, more ...string) error {
	from := p.Node
	if err := p.moveHostInterface(node); err != nil {
		return fmt.Errorf("moving pod %s to %s: %w", p.PodName, node.Name, err)
	}
	from.mu.Lock()
	from.Pods = slices.DeleteFunc(from.Pods, func(other *Pod) bool { return other == p })
	from.mu.Unlock()
	node.mu.Lock()
	node.Pods = append(node.Pods, p)
	node.mu.Unlock()
	p.Node, p.moved = node, append(slices.Clone(p.moved), more...)
	for _, version := range node.network.Versions() {
		p.moved = append(p.moved, hostRoute(p.Address(version), version))
		if err := node.AddAddress(p.HostInterface, hostRoute(gateways[version], version)); err != nil {
			return err
		}
	}
	if err := node.SetUp(p.HostInterface); err != nil {
		return err
	}
	return p.leadHere()
}

func (p *Pod) moveHostInterface(node *Node) error {
	handle, link, err := p.Node.link(p.HostInterface)
	if err != nil {
		return err
	}
	there, err := netns.GetFromPath(node.Path())
	if err != nil {
		return fmt.Errorf("opening network namespace %s: %w", node.Namespace.Name, err)
	}
	defer there.Close()
	// Another pod of that node may have an interface of the name.
	name := p.HostInterface + "m"
	if err := errors.Join(handle.LinkSetDown(link), handle.LinkSetName(link, name), handle.LinkSetNsFd(link, int(there))); err != nil {
		return err
	}
	p.HostInterface = name
	return nil
}

// leadHere has the nodes' routes to the pod's addresses lead to its node.
func (p *Pod) leadHere() error {
	for _, destination := range p.moved {
		version := 4
		if parsed, err := netlink.ParseIPNet(destination); err != nil {
			return fmt.Errorf("reading destination %q: %w", destination, err)
		} else if parsed.IP.To4() == nil {
			version = 6
		}
		for _, node := range p.Node.network.Nodes {
			if err := p.leadFrom(node, destination, version); err != nil {
				return err
			}
		}
	}
	return nil
}

// leadFrom has one node's route lead there.
func (p *Pod) leadFrom(node *Node, destination string, version int) error {
	switch spec := &node.network.Spec; {
	case node == p.Node:
		return node.AddRoute(Route{Destination: destination, Interface: p.HostInterface, Source: node.Address(0, version)})
	case spec.Overlay.laid():
		return node.routeInto(p.Node, destination, version)
	default:
		return node.AddRoute(Route{Destination: destination, Gateway: p.Node.Address(0, version), Interface: spec.Paths[0]})
	}
}

// forgetMoves removes what moves have added to nodes: routes, and an interface that does not
// wait for the end of the pod's sockets.
func (p *Pod) forgetMoves() (err error) {
	if len(p.moved) == 0 {
		return nil
	}
	by := p.Node.network.Spec.Paths[0]
	if p.Node.network.Spec.Overlay.laid() {
		by = TunnelDevice
	}
	for _, node := range p.Node.network.Nodes {
		if node == p.Node {
			err = errors.Join(err, node.deleteLink(p.HostInterface))
		} else {
			err = errors.Join(err, node.deleteRoutes(by, p.moved))
		}
	}
	return err
}

func (ns *Namespace) deleteLink(name string) error {
	handle, link, err := ns.link(name)
	if err != nil {
		return err
	}
	return handle.LinkDel(link)
}

func (ns *Namespace) deleteRoutes(by string, destinations []string) (err error) {
	handle, link, err := ns.link(by)
	if err != nil {
		return err
	}
	for _, destination := range destinations {
		parsed, parseErr := netlink.ParseIPNet(destination)
		if err = errors.Join(err, parseErr); parseErr != nil {
			continue
		}
		deleteErr := handle.RouteDel(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: parsed})
		if !errors.Is(deleteErr, unix.ESRCH) { // it went with a NIC that was down
			err = errors.Join(err, deleteErr)
		}
	}
	return err
}
