// SPDX-License-Identifier: Apache-2.0

package paths

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Lead finds the next hops to the peers' addresses on routed paths, by the routes that this
// node has for the path's NIC and its address there, rules of policy routing among them. An
// address that is neither on the NIC's link nor behind a router is left out: nothing gets there.
// So is one beyond the link that does not lie in the path's ranges: whatever a node says
// of itself, what is sent to it stays within the path. And so is one of a node that has no
// address of that family in its Node, by which its overlay would know it.
func (n *Node) Lead(all []Path, peers []Peer) []Peer {
	routed := slices.DeleteFunc(slices.Clone(all), func(path Path) bool { return !path.Routed || !path.Up })
	n.routers.begin(routed)
	if len(routed) == 0 {
		return peers
	}
	led := slices.Clone(peers)
	for i := range led {
		led[i].Paths = maps.Clone(led[i].Paths)
		for _, path := range routed {
			if there, known := led[i].Paths[path.Name]; known {
				led[i].Paths[path.Name] = path.lead(&led[i], there, n.routers.to)
			}
		}
	}
	return led
}

// lead is the peer's side of a routed path as it is reached from this NIC.
func (p *Path) lead(peer *Peer, there PeerPath, routerTo func(to, from netip.Addr, nic int) (netip.Addr, error)) PeerPath {
	led := PeerPath{Up: there.Up, Routers: map[netip.Addr]netip.Addr{}}
	leaveOut := func(address netip.Addr, why string) { led.Unled = fmt.Sprintf("%s of %s %s", address, peer.Name, why) }
	for _, address := range there.Addresses {
		own, onLink := p.From(address)
		if onLink {
			led.Addresses = append(led.Addresses, address)
			continue
		}
		if !own.IsValid() {
			continue // of a version of IP that this NIC does not have
		}
		// Without a route there is no router, whatever the kernel's reason is.
		router, err := routerTo(address, own, p.Index)
		switch {
		case !inRanges(address, p.ranges):
			leaveOut(address, "is not in the path's addressRanges")
		case !peer.hasOfNode(address.Is4()):
			leaveOut(address, "is of another version of IP than its Node's addresses")
		case err != nil:
			leaveOut(address, "has no route by "+p.NIC.Name+" over a router")
		default:
			led.Addresses = append(led.Addresses, address)
			led.Routers[address] = router
		}
	}
	return led
}

// TellOfRouters says in the messages of routed paths what does not get over their routers, and
// counts for how many peers packets are encapsulated. pods are this node's own.
func (r *Resolution) TellOfRouters(peers []Peer, nodeAddresses []netip.Addr, pods OwnPods) {
	steered := slices.ContainsFunc(r.Tunnels, func(tunnel Tunnel) bool { return tunnel.Kind.Steered() })
	for i := range r.Paths {
		path := &r.Paths[i]
		if !path.Routed || !path.Usable {
			continue
		}
		var beyond, bare, unled []string
		for _, peer := range peers {
			there := peer.Paths[path.Name]
			switch {
			case len(there.Routers) > 0 && peer.Decapsulates(pods.Ranges):
				path.Encapsulated++
				beyond = append(beyond, peer.Name)
			case len(there.Routers) > 0:
				beyond, bare = append(beyond, peer.Name), append(bare, peer.Name)
			}
			if there.Unled != "" {
				unled = append(unled, there.Unled)
			}
		}
		if len(bare) > 0 && !steered {
			path.complain("leads over routers to " + shortened(bare) + ": they do not know pods' addresses, and this node has no overlay (VXLAN, Geneve, IP in IP) to take there" + whyBare(pods.Ranges))
		}
		if path.Encapsulated > 0 && pods.LeftOut > 0 {
			path.complain(fmt.Sprintf("does not lead over routers what is natively routed to and from %d addresses of this node's pods: %s", pods.LeftOut, whyLeftOut))
		}
		for _, tunnel := range r.Tunnels {
			if len(beyond) > 0 && tunnel.Kind.Steered() && tunnel.local.IsValid() && !slices.Contains(FromNode(nodeAddresses, r.Tunnels), tunnel.local) {
				path.complain(fmt.Sprintf("is not used by %s over routers: that sends from %s, which is not the Node's first InternalIP", tunnel.Name, tunnel.local))
			}
		}
		if len(unled) > 0 {
			path.complain("does not lead everywhere: " + shortened(unled))
		}
	}
}

// whyLeftOut says of which pods no other node can know whose they are.
const whyLeftOut = "they are outside of the Nodes' spec.podCIDRs and the chart's controller.podRanges, or more pieces of these than another node is told of"

// whyBare says why Braid does not encapsulate what goes to peers either.
func whyBare(podRanges []netip.Prefix) string {
	if len(podRanges) == 0 {
		return "; Braid's own encapsulation needs pods whose addresses are in the Nodes' spec.podCIDRs or the chart's controller.podRanges"
	}
	return "; their agents do not take Braid's own encapsulation off"
}

// shortened is a sorted list of which few are shown.
func shortened(all []string) string {
	slices.Sort(all)
	text := strings.Join(all[:min(len(all), namesShown)], ", ")
	if more := len(all) - namesShown; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

func (p *Peer) hasOfNode(ipv4 bool) bool {
	return slices.ContainsFunc(p.OfNode, func(address netip.Addr) bool { return address.Is4() == ipv4 })
}

// From is the NIC's address that packets to another one come from, and whether that is on the
// NIC's own link.
func (n *NIC) From(to netip.Addr) (own netip.Addr, onLink bool) {
	for _, prefix := range n.Addresses {
		if prefix.Addr().Is4() != to.Is4() {
			continue
		}
		if !own.IsValid() || !onLink && prefix.Contains(to) {
			own = prefix.Addr()
		}
		onLink = onLink || prefix.Contains(to)
	}
	return own, onLink
}

// routersAge is how long an answer of the kernel holds at most, whatever is told of changes.
const routersAge = 20 * time.Second

// routers remembers next hops for as long as nothing is told that could change them: with
// a thousand nodes there are thousands to ask for, and a NIC that lost its carrier must not
// wait for that.
type routers struct {
	ask     func(to, from netip.Addr, nic int) (netip.Addr, error)
	watched atomic.Bool   // changes are told
	changes atomic.Uint64 // that were told

	mu      sync.Mutex
	known   map[leadTo]ledBy
	nics    []int
	since   time.Time
	changed uint64 // changes as they were then
}

type leadTo struct {
	to, from netip.Addr
	nic      int
}

type ledBy struct {
	router netip.Addr
	err    error
}

// begin forgets what may have changed: also when other NICs are up, since the kernel tells
// nothing of routes that go with one.
func (r *routers) begin(routed []Path) {
	var nics []int
	for i := range routed {
		nics = append(nics, routed[i].Index)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	watched, changed := r.watched.Load(), r.changes.Load()
	if !watched || changed != r.changed || !slices.Equal(nics, r.nics) || time.Since(r.since) > routersAge {
		r.known, r.nics, r.since, r.changed = map[leadTo]ledBy{}, nics, time.Now(), changed
	}
}

func (r *routers) to(to, from netip.Addr, nic int) (netip.Addr, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	at := leadTo{to, from, nic}
	led, known := r.known[at]
	if !known {
		led.router, led.err = r.ask(to, from, nic)
		r.known[at] = led
	}
	return led.router, led.err
}

func (r *routers) outdate() { r.changes.Add(1) }

// outdate has the kernel asked again for all next hops.
func (n *Node) outdate() {
	n.routers.outdate()
	n.outside.outdate()
}

// concernsRouters tells whether something changed that may lead packets of routed paths.
func (n *Node) concernsRouters(messages []syscall.NetlinkMessage) bool {
	if !slices.ContainsFunc(messages, mayLeadOverRouters) {
		return false
	}
	n.outdate()
	return n.routers.inUse() || n.outside.inUse()
}

func (r *routers) inUse() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.nics) > 0
}

// mayLeadOverRouters are addresses, rules, and the routes of all tables but the local one:
// rules may have packets of routed paths go by any of them.
func mayLeadOverRouters(message syscall.NetlinkMessage) bool {
	switch message.Header.Type {
	case unix.RTM_NEWADDR, unix.RTM_DELADDR, unix.RTM_NEWRULE, unix.RTM_DELRULE, unix.RTM_NEWNEXTHOP, unix.RTM_DELNEXTHOP:
		return true
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		if len(message.Data) < unix.SizeofRtMsg {
			return false
		}
		route := nl.DeserializeRtMsg(message.Data)
		return route.Flags&unix.RTM_F_CLONED == 0 && route.Table != unix.RT_TABLE_LOCAL
	}
	return false
}

var errNoRouter = errors.New("no route by that NIC has a gateway")

// RouterTo equals `ip route get TO from FROM oif NIC`, as far as the answer has a gateway:
// where there is no route, the kernel takes an IPv4 address to be on the link.
func (k *rtnetlink) RouterTo(to, from netip.Addr, nic int) (netip.Addr, error) {
	return routerTo(k.handle, to, from, nic)
}

// RouterTo is the next hop from an address of a NIC to another address by that NIC, in the
// caller's network namespace. Where nothing leads there over a router it is an error.
func RouterTo(to, from netip.Addr, nic int) (netip.Addr, error) {
	return routerTo(&netlink.Handle{}, to, from, nic)
}

func routerTo(handle *netlink.Handle, to, from netip.Addr, nic int) (netip.Addr, error) {
	routes, err := handle.RouteGetWithOptions(to.AsSlice(), &netlink.RouteGetOptions{OifIndex: nic, SrcAddr: from.AsSlice()})
	if err != nil {
		return netip.Addr{}, err
	}
	for _, route := range routes {
		for _, hop := range hopsOf(route) {
			if hop.index == nic && hop.gateway.IsValid() {
				return hop.gateway, nil
			}
		}
	}
	return netip.Addr{}, errNoRouter
}
