// SPDX-License-Identifier: Apache-2.0

package spreading

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"braid.dev/braid/agent/node"
	"braid.dev/braid/agent/paths"
)

// atlas tells where other ends are, by the node's routes. It is of one look at a model.
type atlas struct {
	model *node.Model
	// kernel answers from the node's network namespace.
	kernel   *netlink.Handle
	uplinks  map[int]bool
	peers    map[netip.Addr]*node.Peer
	byNumber map[uint32]*node.Peer
	links    map[int]netlink.Link
	tunnels  map[paths.TunnelKind]bool // that the node has
	// dead are the paths that probes call so, by peer.
	dead map[string]map[string]bool
}

// spot is where an address is.
type spot struct {
	place  place
	tunnel string
	kind   paths.TunnelKind // behindTunnel
	peer   *node.Peer
}

func newAtlas(model *node.Model, kernel *netlink.Handle, dead map[string]map[string]bool) *atlas {
	a := &atlas{model: model, kernel: kernel, dead: dead, uplinks: map[int]bool{}, peers: map[netip.Addr]*node.Peer{}, byNumber: map[uint32]*node.Peer{}}
	for _, path := range model.NICs() {
		a.uplinks[path.Interface] = true
	}
	for _, index := range model.Uplinks {
		a.uplinks[index] = true
	}
	for i := range model.Peers {
		peer := &model.Peers[i]
		a.byNumber[peer.Number] = peer
		for _, address := range peer.Addresses {
			a.peers[address] = peer
		}
	}
	for i := range model.Outside {
		a.byNumber[model.Outside[i].Number] = &model.Outside[i].Peer
	}
	return a
}

// find asks for the node's route to an address.
func (a *atlas) find(address netip.Addr) (spot, error) {
	routes, err := a.kernel.RouteGet(address.AsSlice())
	if err != nil {
		return spot{}, err
	}
	if len(routes) == 0 {
		return spot{}, errors.New("no route")
	}
	next, index := nextHop(&routes[0], address)
	if a.uplinks[index] {
		if peer := a.peers[next]; peer != nil {
			return spot{place: behindPeer, peer: peer}, nil
		}
		return spot{place: elsewhere}, nil
	}
	if _, inside := a.model.Look.HostEnds[index]; inside {
		return spot{place: here}, nil
	}
	return a.byDevice(index, next != address)
}

// nextHop of a route to an address, which is the address itself where it is on the link.
func nextHop(route *netlink.Route, address netip.Addr) (next netip.Addr, index int) {
	if gateway, ok := netip.AddrFromSlice(route.Gw); ok && !gateway.IsUnspecified() {
		return gateway.Unmap(), route.LinkIndex
	}
	if via, ok := route.Via.(*netlink.Via); ok {
		if gateway, ok := netip.AddrFromSlice(via.Addr); ok {
			return gateway.Unmap(), route.LinkIndex
		}
	}
	return address, route.LinkIndex
}

// byDevice judges by what leads neither to a pod nor out of a known NIC.
func (a *atlas) byDevice(index int, viaGateway bool) (spot, error) {
	if err := a.readLinks(); err != nil {
		return spot{}, err
	}
	link := a.links[index]
	if link == nil {
		return spot{}, errors.New("the route's interface is gone")
	}
	if kind := a.encapsulatedBy(link); kind != "" {
		return spot{place: behindTunnel, tunnel: link.Attrs().Name, kind: kind}, nil
	}
	switch kind := link.Type(); {
	case kind == "device" && link.Attrs().EncapType == "loopback", kind == "bridge" && !viaGateway:
		return spot{place: here}, nil
	}
	return spot{place: elsewhere}, nil
}

// encapsulatedBy is how what goes to a device is encapsulated; "" where it is not. A cluster network
// with a program or a switch of its own encapsulates what goes there, and may encrypt it then.
func (a *atlas) encapsulatedBy(link netlink.Link) paths.TunnelKind {
	if kind := paths.TunnelKindOf(link); kind != "" || !slices.Contains([]string{"veth", "openvswitch"}, link.Type()) {
		return kind
	}
	for _, kind := range []paths.TunnelKind{paths.TunnelEncrypted, paths.TunnelVXLAN, paths.TunnelGeneve, paths.TunnelIP, paths.TunnelUnknown} {
		if a.tunnels[kind] {
			return kind
		}
	}
	return ""
}

func (a *atlas) readLinks() error {
	if a.links != nil {
		return nil
	}
	list, err := a.kernel.LinkList()
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return err
	}
	a.links, a.tunnels = make(map[int]netlink.Link, len(list)), map[paths.TunnelKind]bool{}
	for _, link := range list {
		a.links[link.Attrs().Index] = link
		a.tunnels[paths.TunnelKindOf(link)] = true
	}
	return nil
}

// usable are those of some paths by which a peer can be reached; all where it is not known
// who the peer is. Where probes call all of them dead, none counts as dead.
func (a *atlas) usable(open []string, peer *node.Peer) []string {
	if peer == nil {
		return open
	}
	up := slices.DeleteFunc(slices.Clone(open), func(path string) bool { return !peer.Paths[path].Up })
	alive := slices.DeleteFunc(slices.Clone(up), func(path string) bool { return a.dead[peer.Name][path] })
	if len(alive) == 0 {
		return up
	}
	return alive
}

// carrier is the path that carries the packets of a flow: its own, or one that stands in
// for it.
func carrier(own string, usable []string) string {
	if len(usable) == 0 || slices.Contains(usable, own) {
		return own
	}
	return usable[0]
}
