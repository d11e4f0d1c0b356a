// SPDX-License-Identifier: Apache-2.0

package network

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/mdlayher/genetlink"
	"github.com/mdlayher/netlink"
	"github.com/vishvananda/netns"
)

// Commands and attributes of Open vSwitch's families, as linux/openvswitch.h numbers them.
const (
	switchCommandNew = 1

	datapathName   = 1
	datapathUpcall = 2

	portNumber     = 1
	portType       = 2
	portName       = 3
	portUpcall     = 5
	portTypeDevice = 1

	flowKey     = 1
	flowActions = 2
	flowMask    = 7

	keyInPort   = 3
	keyEthernet = 4
	keyTunnel   = 16

	actionOutput = 1
	actionSet    = 3

	tunnelKeyID       = 0
	tunnelKeyFrom     = 1
	tunnelKeyTo       = 2
	tunnelKeyTTL      = 4
	tunnelKeyChecksum = 6
)

// Switch is a datapath of Open vSwitch's kernel module in one network namespace, which
// OVN-Kubernetes and Antrea forward pods' packets by. Its flows are given by hand, as
// ovs-vswitchd would give them: nothing that has no flow goes anywhere.
type Switch struct {
	conn    *genetlink.Conn
	ports   genetlink.Family
	flows   genetlink.Family
	index   uint32
	nextOut uint32
}

// SwitchTunnel is the device by which switches encapsulate packets, by ovs-vswitchd's name.
const SwitchTunnel = "genev_sys_6081"

// switchGateway is what the pods' gateway has for an Ethernet address: the switches answer
// no ARP.
var switchGateway = net.HardwareAddr{2, 0xf2, 0, 0, 0, 1}

// LaySwitches has the first pods of two nodes reach each other by switches, which encapsulate their
// packets in Geneve.
func (n *Network) LaySwitches() error {
	for i, node := range n.Nodes[:2] {
		if err := node.laySwitch(n.Nodes[1-i]); err != nil {
			return err
		}
	}
	return nil
}

func (node *Node) laySwitch(other *Node) error {
	if out, err := node.Run("ip", "link", "add", SwitchTunnel, "type", "geneve", "external", "dstport", "6081"); err != nil {
		return errors.Join(ErrNoSwitch, fmt.Errorf("making a Geneve device: %w: %s", err, out))
	}
	if err := node.SetUp(SwitchTunnel); err != nil {
		return err
	}
	s, err := NewSwitch(node.Namespace, "ovs-system")
	if err != nil {
		return err
	}
	return errors.Join(s.join(node, other), s.Close())
}

// join has a node's pod reach the other's, and what comes back reach it.
func (s *Switch) join(node, other *Node) error {
	pod := node.Pods[0]
	toPod, err := s.AddPort(pod.HostInterface)
	if err != nil {
		return err
	}
	toTunnel, err := s.AddPort(SwitchTunnel)
	if err != nil {
		return err
	}
	_, link, err := other.Pods[0].link("eth0")
	if err != nil {
		return err
	}
	ends := &EthernetEnds{From: switchGateway, To: link.Attrs().HardwareAddr}
	encapsulation := &Encapsulation{ID: 7, From: netip.MustParseAddr(node.Address(0, 4)), To: netip.MustParseAddr(other.Address(0, 4))}
	return errors.Join(s.Forward(toPod, toTunnel, ends, encapsulation), s.Forward(toTunnel, toPod, nil, nil), pod.useSwitch())
}

// useSwitch has the pod know its gateway, and leave room for what its packets are encapsulated in.
func (p *Pod) useSwitch() error {
	lines := []string{"link set eth0 mtu 1400"}
	for _, gateway := range gateways {
		lines = append(lines, "neighbour replace "+gateway+" lladdr "+switchGateway.String()+" dev eth0 nud permanent")
	}
	for _, line := range lines {
		if out, err := p.Run("ip", strings.Fields(line)...); err != nil {
			return fmt.Errorf("ip %s in %s: %w: %s", line, p.PodName, err, out)
		}
	}
	return nil
}

// ErrNoSwitch says that the kernel has no Open vSwitch.
var ErrNoSwitch = errors.New("the kernel has no Open vSwitch (CONFIG_OPENVSWITCH)")

// NewSwitch makes a datapath of this name, whose device appears in the namespace. It goes
// with the namespace.
func NewSwitch(ns *Namespace, name string) (*Switch, error) {
	s := &Switch{nextOut: 1}
	if err := s.dial(ns); err != nil {
		return nil, fmt.Errorf("making a switch in %s: %w", ns.Name, err)
	}
	if err := s.make(ns, name); err != nil {
		return nil, errors.Join(fmt.Errorf("making a switch in %s: %w", ns.Name, err), s.Close())
	}
	return s, nil
}

func (s *Switch) dial(ns *Namespace) error {
	namespace, err := netns.GetFromPath(ns.Path())
	if err != nil {
		return err
	}
	defer namespace.Close()
	s.conn, err = genetlink.Dial(&netlink.Config{NetNS: int(namespace)})
	return err
}

func (s *Switch) make(ns *Namespace, name string) error {
	datapaths, err := s.conn.GetFamily("ovs_datapath")
	if err != nil {
		return errors.Join(ErrNoSwitch, err)
	}
	if s.ports, err = s.conn.GetFamily("ovs_vport"); err != nil {
		return err
	}
	if s.flows, err = s.conn.GetFamily("ovs_flow"); err != nil {
		return err
	}
	if err := s.run(datapaths, func(e *netlink.AttributeEncoder) {
		e.String(datapathName, name)
		e.Uint32(datapathUpcall, 0)
	}); err != nil {
		return err
	}
	index, err := ns.Index(name)
	s.index = uint32(index)
	return err
}

// Close leaves the datapath as it is.
func (s *Switch) Close() error { return s.conn.Close() }

// AddPort makes a device of the namespace one of the switch's ports, and returns its number.
func (s *Switch) AddPort(device string) (number uint32, err error) {
	number = s.nextOut
	s.nextOut++
	err = s.run(s.ports, func(e *netlink.AttributeEncoder) {
		e.Uint32(portNumber, number)
		e.Uint32(portType, portTypeDevice)
		e.String(portName, device)
		e.Uint32(portUpcall, 0)
	})
	if err != nil {
		return 0, fmt.Errorf("making %s a port of the switch: %w", device, err)
	}
	return number, nil
}

// EthernetEnds are the Ethernet addresses that a packet leaves the switch with.
type EthernetEnds struct{ From, To net.HardwareAddr }

// Encapsulation is where a packet goes in a tunnel.
type Encapsulation struct {
	ID       uint64
	From, To netip.Addr
}

// Forward has what comes in by one port leave by another one, with other Ethernet addresses
// and in a tunnel where they are given.
func (s *Switch) Forward(from, to uint32, frame *EthernetEnds, encapsulation *Encapsulation) error {
	err := s.run(s.flows, func(e *netlink.AttributeEncoder) {
		e.Nested(flowKey, matchOf(from))
		e.Nested(flowMask, matchOf(0xffffffff))
		e.Nested(flowActions, func(e *netlink.AttributeEncoder) error {
			if frame != nil {
				e.Nested(actionSet, func(e *netlink.AttributeEncoder) error {
					e.Bytes(keyEthernet, append(append([]byte{}, frame.From...), frame.To...))
					return nil
				})
			}
			if encapsulation != nil {
				e.Nested(actionSet, encapsulation.encode)
			}
			e.Uint32(actionOutput, to)
			return nil
		})
	})
	if err != nil {
		return fmt.Errorf("forwarding from port %d to %d: %w", from, to, err)
	}
	return nil
}

// matchOf compares the port alone: of the Ethernet header, which every flow has to name,
// nothing.
func matchOf(port uint32) func(*netlink.AttributeEncoder) error {
	return func(e *netlink.AttributeEncoder) error {
		e.Uint32(keyInPort, port)
		e.Bytes(keyEthernet, make([]byte, 12))
		return nil
	}
}

func (w *Encapsulation) encode(e *netlink.AttributeEncoder) error {
	e.Nested(keyTunnel, func(e *netlink.AttributeEncoder) error {
		e.Bytes(tunnelKeyID, binary.BigEndian.AppendUint64(nil, w.ID))
		e.Bytes(tunnelKeyFrom, w.From.AsSlice())
		e.Bytes(tunnelKeyTo, w.To.AsSlice())
		e.Uint8(tunnelKeyTTL, 64)
		e.Flag(tunnelKeyChecksum, true)
		return nil
	})
	return nil
}

// run gives a command of a family, to this datapath where there is one.
func (s *Switch) run(family genetlink.Family, encode func(*netlink.AttributeEncoder)) error {
	attributes := netlink.NewAttributeEncoder()
	encode(attributes)
	encoded, err := attributes.Encode()
	if err != nil {
		return err
	}
	message := genetlink.Message{
		Header: genetlink.Header{Command: switchCommandNew, Version: family.Version},
		Data:   append(binary.NativeEndian.AppendUint32(nil, s.index), encoded...),
	}
	_, err = s.conn.Execute(message, family.ID, netlink.Request|netlink.Acknowledge)
	return err
}
