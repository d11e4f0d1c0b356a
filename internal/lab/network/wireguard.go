// SPDX-License-Identifier: Apache-2.0

package network

import (
	"crypto/ecdh"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/mdlayher/genetlink"
	"github.com/mdlayher/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Commands and attributes of WireGuard's family, as linux/wireguard.h numbers them.
const (
	wireGuardSet = 1

	deviceName       = 2
	devicePrivateKey = 3
	devicePort       = 6
	devicePeers      = 8

	wireGuardPeerKey     = 1
	wireGuardPeerAt      = 4
	wireGuardPeerAllowed = 9

	allowedFamily  = 1
	allowedAddress = 2
	allowedLength  = 3
)

// EncryptingDevice is the device by which LayWireGuard has packets encrypted.
const EncryptingDevice = "wg0"

const wireGuardPort = 51820

// ErrNoWireGuard says that the kernel has no WireGuard.
var ErrNoWireGuard = errors.New("the kernel has no WireGuard (CONFIG_WIREGUARD)")

// LayWireGuard has the pods of two nodes reach each other encrypted, as flannel's backend
// wireguard lays it: between the nodes' addresses on the first path.
func (n *Network) LayWireGuard() error {
	keys := make([]*ecdh.PrivateKey, 2)
	for i := range keys {
		var err error
		if keys[i], err = ecdh.X25519().GenerateKey(rand.Reader); err != nil {
			return err
		}
	}
	for i, node := range n.Nodes[:2] {
		if err := node.layWireGuard(n.Nodes[1-i], keys[i], keys[1-i].PublicKey()); err != nil {
			return fmt.Errorf("laying WireGuard at %s: %w", node.Name, err)
		}
	}
	return nil
}

func (node *Node) layWireGuard(other *Node, own *ecdh.PrivateKey, others *ecdh.PublicKey) error {
	if out, err := node.Run("ip", "link", "add", EncryptingDevice, "mtu", "1400", "type", "wireguard"); err != nil {
		return errors.Join(ErrNoWireGuard, fmt.Errorf("making the device: %w: %s", err, out))
	}
	if err := node.setWireGuard(other, own, others); err != nil {
		return err
	}
	if err := node.SetUp(EncryptingDevice); err != nil {
		return err
	}
	for _, version := range []int{4, 6} {
		if out, err := node.Run("ip", "route", "replace", other.PodCIDR(version), "dev", EncryptingDevice); err != nil {
			return fmt.Errorf("routing to %s: %w: %s", other.Name, err, out)
		}
	}
	for _, pod := range node.Pods {
		if out, err := pod.Run("ip", "link", "set", "eth0", "mtu", "1400"); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
	}
	return nil
}

// setWireGuard gives the device its key and its only peer.
func (node *Node) setWireGuard(other *Node, own *ecdh.PrivateKey, others *ecdh.PublicKey) error {
	namespace, err := netns.GetFromPath(node.Path())
	if err != nil {
		return err
	}
	defer namespace.Close()
	conn, err := genetlink.Dial(&netlink.Config{NetNS: int(namespace)})
	if err != nil {
		return err
	}
	defer conn.Close()
	family, err := conn.GetFamily("wireguard")
	if err != nil {
		return errors.Join(ErrNoWireGuard, err)
	}
	e := netlink.NewAttributeEncoder()
	e.String(deviceName, EncryptingDevice)
	e.Bytes(devicePrivateKey, own.Bytes())
	e.Uint16(devicePort, wireGuardPort)
	e.Nested(devicePeers, func(e *netlink.AttributeEncoder) error {
		e.Nested(0, func(e *netlink.AttributeEncoder) error { return other.asWireGuardPeer(e, others) })
		return nil
	})
	encoded, err := e.Encode()
	if err != nil {
		return err
	}
	message := genetlink.Message{Header: genetlink.Header{Command: wireGuardSet, Version: family.Version}, Data: encoded}
	_, err = conn.Execute(message, family.ID, netlink.Request|netlink.Acknowledge)
	return err
}

// asWireGuardPeer describes the node: its key, where it is, and what may come from it.
func (node *Node) asWireGuardPeer(e *netlink.AttributeEncoder, key *ecdh.PublicKey) error {
	e.Bytes(wireGuardPeerKey, key.Bytes())
	e.Bytes(wireGuardPeerAt, socketAddress(netip.MustParseAddr(node.Address(0, 4)), wireGuardPort))
	e.Nested(wireGuardPeerAllowed, func(e *netlink.AttributeEncoder) error {
		for _, version := range []int{4, 6} {
			prefix := netip.MustParsePrefix(node.PodCIDR(version))
			e.Nested(0, func(e *netlink.AttributeEncoder) error {
				e.Uint16(allowedFamily, map[int]uint16{4: unix.AF_INET, 6: unix.AF_INET6}[version])
				e.Bytes(allowedAddress, prefix.Addr().AsSlice())
				e.Uint8(allowedLength, uint8(prefix.Bits()))
				return nil
			})
		}
		return nil
	})
	return nil
}

// socketAddress is a struct sockaddr_in.
func socketAddress(at netip.Addr, port uint16) []byte {
	b := binary.NativeEndian.AppendUint16(nil, unix.AF_INET)
	b = binary.BigEndian.AppendUint16(b, port)
	return append(append(b, at.AsSlice()...), make([]byte, 8)...)
}
