// SPDX-License-Identifier: Apache-2.0

package network

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/mdlayher/genetlink"
	"github.com/mdlayher/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Commands and attributes of IPVS's family, as linux/ip_vs.h numbers them.
const (
	virtualNewService = 1
	virtualNewServer  = 5

	virtualService = 1
	virtualServer  = 2

	serviceFamily    = 1
	serviceProtocol  = 2
	serviceAddress   = 3
	servicePort      = 4
	serviceScheduler = 6
	serviceFlags     = 7
	serviceTimeout   = 8
	serviceMask      = 9

	serverAddress = 1
	serverPort    = 2
	serverForward = 3
	serverWeight  = 4
	serverUpper   = 5
	serverLower   = 6
	serverFamily  = 11

	byTranslation = 0
)

// ErrNoVirtualServer says that the kernel has no IPVS.
var ErrNoVirtualServer = errors.New("the kernel has no IPVS (CONFIG_IP_VS)")

// ServeVirtually makes an address one of the node's, and has the kernel's IPVS translate what is for it
// to a server, as kube-proxy does in its mode ipvs.
func (node *Node) ServeVirtually(at, server netip.AddrPort) error {
	namespace, err := netns.GetFromPath(node.Path())
	if err != nil {
		return fmt.Errorf("opening the namespace of %s: %w", node.Name, err)
	}
	defer namespace.Close()
	conn, err := genetlink.Dial(&netlink.Config{NetNS: int(namespace)})
	if err != nil {
		return fmt.Errorf("opening generic netlink in %s: %w", node.Name, err)
	}
	defer conn.Close()
	family, err := conn.GetFamily("IPVS")
	if err != nil {
		return errors.Join(ErrNoVirtualServer, err)
	}
	if err := node.AddAddress("lo", netip.PrefixFrom(at.Addr(), at.Addr().BitLen()).String()); err != nil {
		return err
	}
	for _, command := range []uint8{virtualNewService, virtualNewServer} {
		encoded, err := virtualServerAt(at, server, command == virtualNewServer)
		if err != nil {
			return err
		}
		message := genetlink.Message{Header: genetlink.Header{Command: command, Version: family.Version}, Data: encoded}
		if _, err := conn.Execute(message, family.ID, netlink.Request|netlink.Acknowledge); err != nil {
			return fmt.Errorf("having IPVS of %s serve %s by %s (command %d): %w", node.Name, at, server, command, err)
		}
	}
	return nil
}

// virtualServerAt names a service of TCP, and with it the server that it gets.
func virtualServerAt(at, server netip.AddrPort, withServer bool) ([]byte, error) {
	e := netlink.NewAttributeEncoder()
	e.Nested(virtualService, func(e *netlink.AttributeEncoder) error {
		e.Uint16(serviceFamily, unix.AF_INET)
		e.Uint16(serviceProtocol, unix.IPPROTO_TCP)
		e.Bytes(serviceAddress, paddedAddress(at.Addr()))
		e.Bytes(servicePort, binary.BigEndian.AppendUint16(nil, at.Port()))
		e.String(serviceScheduler, "rr")
		e.Bytes(serviceFlags, make([]byte, 8))
		e.Uint32(serviceTimeout, 0)
		e.Uint32(serviceMask, 0xffffffff)
		return nil
	})
	if withServer {
		e.Nested(virtualServer, func(e *netlink.AttributeEncoder) error {
			e.Bytes(serverAddress, paddedAddress(server.Addr()))
			e.Bytes(serverPort, binary.BigEndian.AppendUint16(nil, server.Port()))
			e.Uint32(serverForward, byTranslation)
			e.Uint32(serverWeight, 1)
			e.Uint32(serverUpper, 0)
			e.Uint32(serverLower, 0)
			e.Uint16(serverFamily, unix.AF_INET)
			return nil
		})
	}
	return e.Encode()
}

// paddedAddress is a union nf_inet_addr.
func paddedAddress(address netip.Addr) []byte {
	return append(address.AsSlice(), make([]byte, 16-address.BitLen()/8)...)
}
