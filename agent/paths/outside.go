// SPDX-License-Identifier: Apache-2.0

package paths

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"braid.dev/braid/api/v1alpha1"
)

// Outside is a range of addresses outside of the cluster, and by which gateways the paths
// lead there. It may be without any.
type Outside struct {
	Destination netip.Prefix
	Gateways    map[string]Gateway // by the paths' names
}

// Gateway is the router by which a path leads out of the cluster.
type Gateway struct {
	Address netip.Addr
	// Answers is false while the kernel cannot resolve its hardware address.
	Answers bool
}

// OutsideOf are the destinations outside of the cluster that a plan names, each once and sorted.
func OutsideOf(plan *v1alpha1.MPTCPNodePlan) (destinations []netip.Prefix) {
	if plan == nil {
		return nil
	}
	for i := range plan.Spec.Endpoints {
		destinations = append(destinations, Prefixes(plan.Spec.Endpoints[i].Outside)...)
	}
	slices.SortFunc(destinations, netip.Prefix.Compare)
	return slices.Compact(destinations)
}

// Prefixes leaves out what is none. The API server lets nothing else through.
func Prefixes(ranges []v1alpha1.CIDR) (prefixes []netip.Prefix) {
	for _, text := range ranges {
		if prefix, err := netip.ParsePrefix(string(text)); err == nil {
			prefixes = append(prefixes, prefix.Masked())
		}
	}
	return prefixes
}

// LeadOutside finds the gateways to destinations outside of the cluster, and says in the
// messages of paths why they lead nowhere.
func (n *Node) LeadOutside(all []Path, destinations []netip.Prefix) ([]Outside, error) {
	usable := slices.DeleteFunc(slices.Clone(all), func(path Path) bool { return !path.Usable || len(destinations) == 0 })
	n.outside.begin(usable)
	if len(usable) == 0 {
		n.gateways.keep(nil)
		return nil, nil
	}
	unanswered, err := n.kernel.unanswered()
	if err != nil {
		return nil, err
	}
	led, asked := make([]Outside, 0, len(destinations)), map[linkAddress]bool{}
	for _, destination := range destinations {
		led = append(led, Outside{destination, map[string]Gateway{}})
	}
	for i := range all {
		if !all[i].Usable {
			continue
		}
		for _, outside := range led {
			if gateway, found := all[i].gatewayTo(outside.Destination, n.outside.to); found {
				at := linkAddress{all[i].Index, gateway}
				asked[at] = !unanswered[at]
				outside.Gateways[all[i].Name] = Gateway{gateway, asked[at]}
			}
		}
		all[i].tellOfOutside(led)
	}
	n.gateways.keep(asked)
	return led, nil
}

// gatewayTo is the path's own one, or that of the node's routes for the NIC.
func (p *Path) gatewayTo(destination netip.Prefix, routerTo func(to, from netip.Addr, nic int) (netip.Addr, error)) (netip.Addr, bool) {
	to := placeIn(destination)
	own, _ := p.From(to)
	if !own.IsValid() {
		return netip.Addr{}, false
	}
	if p.gateway.IsValid() && p.gateway.Is4() == to.Is4() {
		_, onLink := p.From(p.gateway)
		return p.gateway, onLink
	}
	gateway, err := routerTo(to, own, p.Index)
	return gateway, err == nil
}

// placeIn is an address by which the range's routes are asked for. The first one of all
// addresses is none.
func placeIn(destination netip.Prefix) netip.Addr {
	switch {
	case !destination.Addr().IsUnspecified():
		return destination.Addr()
	case destination.Addr().Is4():
		return netip.AddrFrom4([4]byte{192, 0, 2, 1}) // of documentation: TEST-NET-1
	}
	return netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 15: 1}) // likewise
}

// tellOfOutside notes the gateways, and what leads nowhere.
func (p *Path) tellOfOutside(led []Outside) {
	var nowhere, silent []string
	for _, outside := range led {
		gateway, found := outside.Gateways[p.Name]
		switch own, _ := p.From(placeIn(outside.Destination)); {
		case !own.IsValid():
			nowhere = append(nowhere, outside.Destination.String()+" (no address of that version of IP)")
		case !found && p.gateway.IsValid() && p.gateway.Is4() == own.Is4():
			nowhere = append(nowhere, fmt.Sprintf("%s (spec.gateway %s is not on its link)", outside.Destination, p.gateway))
		case !found:
			nowhere = append(nowhere, outside.Destination.String()+" (no route by it has a gateway)")
		case !gateway.Answers:
			silent = append(silent, gateway.Address.String())
		case !slices.Contains(p.Gateways, gateway.Address):
			p.Gateways = append(p.Gateways, gateway.Address)
		}
	}
	if len(nowhere) > 0 {
		p.complain("does not lead outside to " + shortened(nowhere))
	}
	if len(silent) > 0 {
		slices.Sort(silent)
		p.complain("does not lead outside: its gateway " + shortened(slices.Compact(silent)) + " does not answer")
	}
}

// gatewayTo is RouterTo. Where a source is given, the kernel takes of IPv6 the best route, whichever
// NIC it is by; it is asked again without one then.
func (k *rtnetlink) gatewayTo(to, from netip.Addr, nic int) (netip.Addr, error) {
	gateway, err := k.RouterTo(to, from, nic)
	if err == nil || to.Is4() {
		return gateway, err
	}
	return routerTo(k.handle, to, netip.Addr{}, nic)
}

// linkAddress is an address on the link of a NIC.
type linkAddress struct {
	nic     int
	address netip.Addr
}

const unansweredStates = netlink.NUD_INCOMPLETE | netlink.NUD_FAILED

// unanswered are the addresses that the kernel asks for in vain.
func (k *rtnetlink) unanswered() (map[linkAddress]bool, error) {
	neighbours, err := dump("neighbours", func() ([]netlink.Neigh, error) { return k.handle.NeighList(0, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, err
	}
	unanswered := map[linkAddress]bool{}
	for _, neighbour := range neighbours {
		if address, ok := netip.AddrFromSlice(neighbour.IP); ok && neighbour.State&unansweredStates != 0 {
			unanswered[linkAddress{neighbour.LinkIndex, address.Unmap()}] = true
		}
	}
	return unanswered, nil
}

// gateways are those in use, and whether they answered when they were looked at last.
type gateways struct {
	mu      sync.Mutex
	answers map[linkAddress]bool
}

func (g *gateways) keep(answers map[linkAddress]bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.answers = answers
}

// concerned tells whether one of them begins or ceases to answer.
func (g *gateways) concerned(messages []syscall.NetlinkMessage) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.answers) > 0 && slices.ContainsFunc(messages, g.changes)
}

func (g *gateways) changes(message syscall.NetlinkMessage) bool {
	if message.Header.Type != unix.RTM_NEWNEIGH || len(message.Data) < unix.SizeofNdMsg {
		return false
	}
	entry, err := netlink.NeighDeserialize(message.Data)
	if err != nil {
		return false
	}
	address, _ := netip.AddrFromSlice(entry.IP)
	answers, known := g.answers[linkAddress{entry.LinkIndex, address.Unmap()}]
	return known && answers != (entry.State&unansweredStates == 0)
}
