// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
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
	handle, err := node.network.Fabric.Handle()
	if err != nil {
		return err
	}
	for _, path := range node.network.Spec.Paths {
		port, err := handle.LinkByName(node.port(path))
		if errors.As(err, &netlink.LinkNotFoundError{}) {
			continue // of another path on the same NIC
		}
		if err == nil {
			err = handle.LinkDel(port)
		}
		if err != nil {
			return fmt.Errorf("unplugging %s: %w", node.port(path), err)
		}
	}
	return nil
}
