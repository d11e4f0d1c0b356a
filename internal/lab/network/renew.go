// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"fmt"
	"net"
	"slices"
)

// Renew gives a node a new network namespace in the place of its old one, as a
// reboot does: processes in it are killed; NICs, programs, rules and settings are
// gone, and NICs with the same addresses are there. Pods of the node must be gone.
// Paths with delays cannot be plugged in again.
func (n *Network) Renew(node *Node) error {
	if len(n.delayers) > 0 {
		return errors.New("a node of a network with delays cannot be renewed")
	}
	hardware, err := node.hardwareAddresses()
	if err != nil {
		return err
	}
	if err := errors.Join(node.Kill(), node.unplug(), node.Delete()); err != nil {
		return fmt.Errorf("removing %s: %w", node.Name, err)
	}
	namespace, err := New(node.Name)
	if err != nil {
		return err
	}
	node.Namespace = namespace
	if err := node.equip(); err != nil {
		return err
	}
	return errors.Join(node.setHardwareAddresses(hardware), node.restoreRoutes())
}

// Kill kills every process whose network namespace is the node's.
func (node *Node) Kill() error { return killInside([]string{node.Name}) }

func (node *Node) hardwareAddresses() (map[string]net.HardwareAddr, error) {
	addresses := map[string]net.HardwareAddr{}
	for _, path := range node.network.Spec.Paths {
		_, link, err := node.link(path)
		if err != nil {
			return nil, err
		}
		addresses[path] = link.Attrs().HardwareAddr
	}
	return addresses, nil
}

func (node *Node) setHardwareAddresses(addresses map[string]net.HardwareAddr) error {
	for path, address := range addresses {
		handle, link, err := node.link(path)
		if err != nil {
			return err
		}
		if err := handle.LinkSetHardwareAddr(link, address); err != nil {
			return fmt.Errorf("setting the hardware address of %s in %s: %w", path, node.Name, err)
		}
	}
	return nil
}

// unplug removes the node's NICs with the fabric's ends: the kernel removes those
// of a namespace that is gone only some time later.
func (node *Node) unplug() error {
	for _, path := range node.network.Spec.Paths {
		if node.network.Spec.trunk(path) != path {
			continue // it is on another path's NIC
		}
		if err := node.Unplug(path); err != nil {
			return err
		}
	}
	return nil
}

// Unplug takes the node's NIC on a path away, as when a card is pulled.
func (node *Node) Unplug(path string) error {
	handle, port, err := node.network.Fabric.link(node.port(path))
	if err != nil {
		return err
	}
	if err := handle.LinkDel(port); err != nil {
		return fmt.Errorf("unplugging %s: %w", node.port(path), err)
	}
	return nil
}

// Plug gives the node a new NIC on a path, in the place of one that was unplugged.
func (node *Node) Plug(path string) error {
	i := slices.Index(node.network.Spec.Paths, path)
	if i < 0 {
		return fmt.Errorf("plugging in a NIC: there is no path %s", path)
	}
	return node.attach(i)
}
