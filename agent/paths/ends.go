// SPDX-License-Identifier: Apache-2.0

package paths

import (
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
)

// tunnels are what the node's devices and routes tell of its overlays.
type tunnels struct {
	// to are the addresses of other nodes that packets are encapsulated for. Where anywhere is
	// set these are all, because each route, or a program, says whom a packet is for.
	to       map[netip.Addr]bool
	anywhere bool
	// from are the node's own addresses on such packets, where a device says which.
	from map[netip.Addr]bool
}

func newTunnels() tunnels { return tunnels{to: map[netip.Addr]bool{}, from: map[netip.Addr]bool{}} }

// add notes the ends of a device.
func (t *tunnels) add(local, remote net.IP, anywhere bool) {
	t.anywhere = t.anywhere || anywhere
	if address, ok := unicast(local); ok {
		t.from[address] = true
	}
	if address, ok := unicast(remote); ok {
		t.to[address] = true
	}
}

func unicast(ip net.IP) (netip.Addr, bool) {
	address, ok := netip.AddrFromSlice(ip)
	return address.Unmap(), ok && address.Unmap().IsGlobalUnicast()
}

// note notes where a tunnel's device sends to: to the ends that it was made with, or to
// those that a VXLAN device has in its forwarding database. WireGuard's are not looked
// for.
func (t *tunnels) note(link netlink.Link, kernel kernel) error {
	switch device := link.(type) {
	case *netlink.Vxlan:
		t.add(device.SrcAddr, device.Group, device.FlowBased)
		if device.FlowBased {
			return nil
		}
		ends, err := kernel.TunnelEnds(device.Index)
		for _, end := range ends {
			t.add(nil, end, false)
		}
		return err
	case *netlink.Geneve:
		t.add(nil, device.Remote, device.FlowBased)
	case *netlink.Iptun:
		t.add(device.Local, device.Remote, device.FlowBased)
	case *netlink.Sittun:
		t.add(device.Local, device.Remote, false)
	case *netlink.Ip6tnl:
		t.add(device.Local, device.Remote, device.FlowBased)
	}
	return nil
}

// noteRoutes notes next hops of routes into tunnels: what IPIP encapsulates packets for.
func (s *snapshot) noteRoutes() {
	for _, route := range s.main {
		for _, hop := range hopsOf(route) {
			if s.tunnel[hop.index] && hop.gateway.IsValid() {
				s.tunnels.to[hop.gateway] = true
			}
		}
	}
}

// ends are the peers whose own address an overlay of this node sends to, by the address.
// Only what the Node itself has in its status counts: nobody's word but the cluster's
// may lead what is for an address of this node's own networks elsewhere.
func (v *view) ends() map[netip.Prefix]string {
	ends := map[netip.Prefix]string{}
	for name, peer := range v.peers {
		for _, address := range peer.OfNode {
			used := v.seen.tunnels.anywhere || v.seen.tunnels.to[address]
			if used && v.owners[address].peer == name {
				ends[netip.PrefixFrom(address, address.BitLen())] = name
			}
		}
	}
	return ends
}

// hopsTo are the next hops to an address, by the longest prefix of the main table that is
// not wide. What is on the link has the address itself as next hop, so that the peer's
// path is known by it.
func (v *view) hopsTo(address netip.Addr) []hop {
	for bits := address.BitLen(); bits >= narrowest; bits-- {
		prefix, err := address.Prefix(bits)
		if err != nil {
			return nil
		}
		route, ok := v.seen.main[prefix]
		if !ok {
			continue
		}
		hops := hopsOf(route)
		for i := range hops {
			if !hops[i].gateway.IsValid() {
				hops[i].gateway = address
			}
		}
		return hops
	}
	return nil
}

// rememberEnds notes how the overlays' packets get to other nodes.
func (d *Detours) rememberEnds(v *view, ends map[netip.Prefix]string) {
	for prefix, peer := range ends {
		hops := v.hopsTo(prefix.Addr())
		if _, routed := d.known[prefix]; hops == nil || routed && !d.known[prefix].end {
			continue
		}
		d.known[prefix] = v.examine(peer, hops)
		d.known[prefix].end = true
	}
}

// ownEnds are the node's own addresses that the kernel may have ceased to take packets
// for: it does when their NIC is set down. Other nodes' overlays still send to them, by
// other NICs.
func (d *Detours) ownEnds(v *view, plan []wanted) map[netip.Addr]bool {
	own := map[netip.Addr]bool{}
	for _, w := range plan {
		if d.known[w.Destination].end && !v.seen.up[w.metric] {
			v.addOwn(own, w)
		}
	}
	return own
}

func (v *view) addOwn(own map[netip.Addr]bool, w wanted) {
	from := v.seen.tunnels.from
	if len(from) == 0 {
		from = v.addresses[w.metric]
	}
	for address := range from {
		if familyOf(address) == familyOf(w.Destination.Addr()) {
			own[address] = true
		}
	}
}
