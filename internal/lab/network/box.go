// SPDX-License-Identifier: Apache-2.0

package network

import (
	"fmt"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
)

// Box changes what passes a path, as middleboxes do. It is called by one thread.
type Box interface {
	// Pass takes a frame that came in at the port of a node (from 0), with its header
	// of virtio, and returns what goes on in its place.
	Pass(port int, frame []byte) []Frame
	// Due returns what was held back, once it is to go on. It is called at least
	// every millisecond.
	Due(now time.Time) []Frame
}

// Frame is one that goes on.
type Frame struct {
	// From is the port at which it came in.
	From int
	// Later is how much later it goes than it would.
	Later time.Duration
	// Data begins with a header of virtio.
	Data []byte
}

// boxHolder makes boxes of any type one for atomic.Pointer.
type boxHolder struct{ Box }

// Interpose puts a box on a path, or another one in its place; none takes it away again.
// The path's bridge gives way to the switch that delays, without a delay, as long as
// there is a box. It holds no longer than the process that built the network.
func (n *Network) Interpose(path string, box Box) error {
	if !slices.Contains(n.Spec.Paths, path) || n.Spec.trunk(path) != path {
		return fmt.Errorf("putting a box on path %q: there is no such path with a NIC of its own", path)
	}
	d := n.delayers[path]
	if d == nil && box == nil {
		return nil
	}
	if d == nil {
		var err error
		if d, err = n.replaceBridge(path); err != nil {
			return fmt.Errorf("putting a box on path %s: %w", path, err)
		}
	}
	if box == nil && !n.delayed(path) {
		return n.restoreBridge(path)
	}
	d.set(box)
	return nil
}

func (d *delayer) set(box Box) {
	if box == nil {
		d.box.Store(nil)
		return
	}
	d.box.Store(&boxHolder{box})
}

// ports are the fabric's ends of the nodes' NICs on a path.
func (n *Network) ports(path string) (ports []string) {
	for _, node := range n.Nodes {
		ports = append(ports, node.port(path))
	}
	return ports
}

func (n *Network) replaceBridge(path string) (*delayer, error) {
	if err := n.plug(path, (*netlink.Handle).LinkSetNoMaster); err != nil {
		return nil, err
	}
	d, err := newDelayer(n.Fabric, n.ports(path), 0)
	if err != nil {
		return nil, err
	}
	n.delayers[path] = d
	return d, nil
}

func (n *Network) restoreBridge(path string) error {
	d := n.delayers[path]
	delete(n.delayers, path)
	if err := d.close(); err != nil {
		return fmt.Errorf("ending the switch of path %s: %w", path, err)
	}
	handle, err := n.Fabric.Handle()
	if err != nil {
		return err
	}
	bridge, err := handle.LinkByName(path)
	if err != nil {
		return fmt.Errorf("finding bridge %s: %w", path, err)
	}
	return n.plug(path, func(handle *netlink.Handle, port netlink.Link) error { return handle.LinkSetMaster(port, bridge) })
}

// plug does something to each of the path's ports.
func (n *Network) plug(path string, do func(*netlink.Handle, netlink.Link) error) error {
	for _, port := range n.ports(path) {
		handle, link, err := n.Fabric.link(port)
		if err != nil {
			return err
		}
		if err := do(handle, link); err != nil {
			return fmt.Errorf("plugging %s into the switch of path %s: %w", port, path, err)
		}
	}
	return nil
}
