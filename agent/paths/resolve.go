// SPDX-License-Identifier: Apache-2.0

package paths

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"braid.dev/braid/api/v1alpha1"
)

// Query is what Resolve looks for.
type Query struct {
	// Paths of the node's plan.
	Paths []v1alpha1.PlanPath
	// NodeAddresses are the InternalIPs of the Node.
	NodeAddresses []netip.Addr
	// Peers are the other nodes.
	Peers []Peer
	// Outside are destinations outside of the cluster that packets are steered to.
	Outside []netip.Prefix
}

// Resolution is which NICs do what.
type Resolution struct {
	// Paths holds one for each path of the query, sorted by name.
	Paths []Path
	// Uplinks are further NICs, sorted by name, that belong to no path, and hold
	// an InternalIP, carry a route to a peer or a tunnel's packets: the cluster network
	// routes through them.
	Uplinks []NIC
	// Tunnels are the devices by which packets leave inside of others, sorted by name.
	Tunnels []Tunnel
	// WaysOut are the next hops of default routes, or of parts of them: what is sent
	// there leaves the cluster.
	WaysOut []netip.Addr
	// Again is after what time a path may be usable although nothing changes; 0 for never.
	Again time.Duration
}

// Path is the node's NIC on one path.
type Path struct {
	// Name of the path.
	Name string
	// NIC is empty (Index 0) while the path has none here.
	NIC
	// Usable: subflows can be placed on the path. The programs belong on the NIC
	// in any case, because the cluster network may route through it.
	Usable bool
	// Routed: routers join the subnets of the path.
	Routed bool
	// Message says why the path cannot be used, or what is odd about it.
	Message string
	// Gateways lead out of the cluster and answer; see Node.LeadOutside.
	Gateways []netip.Addr
	// Encapsulated is to how many peers natively routed packets are encapsulated by Braid;
	// see TellOfRouters.
	Encapsulated int

	ranges  []netip.Prefix // of addresses that the path's NICs have
	gateway netip.Addr     // out of the cluster, as the plan has it; zero where it has none
}

// Resolve finds the NICs that form the paths now. An error means that the
// kernel could not be asked.
func (n *Node) Resolve(query Query) (Resolution, error) {
	links, err := n.kernel.Links()
	if err != nil {
		return Resolution{}, err
	}
	addresses, err := n.kernel.Addresses()
	if err != nil {
		return Resolution{}, err
	}
	routes, err := n.kernel.Routes()
	if err != nil {
		return Resolution{}, err
	}
	strict, err := n.kernel.strictFilters()
	if err != nil {
		return Resolution{}, err
	}
	all := candidates(links, addresses)
	for _, c := range all {
		c.strict = strict[c.Index]
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	resolution := resolve(query, all, routes, n.seen)
	n.steady.hold(&resolution, time.Now())
	return resolution, nil
}

// resolve is pure but for seen, which it updates.
func resolve(query Query, all []*candidate, routes []netlink.Route, seen familiesSeen) Resolution {
	var result Resolution
	owner := map[int]string{}
	for _, plan := range sortedByName(query.Paths) {
		result.Paths = append(result.Paths, choose(plan, all, owner))
	}
	result.Tunnels = tunnelsOf(all, owner)
	used := usedByNetwork(query, all, routes, result.Tunnels)
	result.Uplinks = uplinks(all, withWaysOutside(query.Outside, used, routes), owner)
	result.WaysOut = waysOut(routes)
	largest := largestMTU(result)
	for i := range result.Paths {
		result.Paths[i].judge(all, largest, seen)
		result.Paths[i].judgeFilter(all, used)
	}
	return result
}

func sortedByName(plans []v1alpha1.PlanPath) []v1alpha1.PlanPath {
	return slices.SortedFunc(slices.Values(plans), func(a, b v1alpha1.PlanPath) int {
		return cmp.Compare(a.Name, b.Name)
	})
}

// choose finds the NIC of one path, and notes its owner. It is the first that
// qualifies, also where another path owns that one: to take the next would mix
// the planes.
func choose(plan v1alpha1.PlanPath, all []*candidate, owner map[int]string) Path {
	path := Path{Name: string(plan.Name), Routed: plan.Underlay == v1alpha1.UnderlayRouted}
	m, err := newMatcher(plan)
	if err != nil {
		path.Message = err.Error()
		return path
	}
	found := m.find(all)
	if len(found) == 0 {
		path.Message = nothingMatches(plan)
		return path
	}
	first := found[0]
	if other, taken := owner[first.Index]; taken {
		path.Message = fmt.Sprintf("%s is the first NIC that qualifies, but belongs to path %s already", first.Name, other)
		return path
	}
	owner[first.Index] = path.Name
	path.NIC, path.ranges = first.onPath(m.ranges), m.ranges
	path.gateway, _ = parseAddress(plan.Gateway)
	if len(found) > 1 {
		path.Message = fmt.Sprintf("%s is used, the first by name; also matching: %s", first.Name, names(found[1:]))
	}
	return path
}

// find returns the NICs that qualify, best first: by name, and after all others
// what looks like a pod's interface or a tunnel's and is not named exactly. The ports of
// bonds, bridges and the like are left out where there is another one.
func (m matcher) find(all []*candidate) (found []*candidate) {
	for _, c := range all {
		if m.matches(c) && (c.tunnel == nil || m.names(c.Name)) {
			found = append(found, c)
		}
	}
	isPort := func(c *candidate) bool { return c.master != nil }
	if others := slices.DeleteFunc(slices.Clone(found), isPort); len(others) > 0 {
		found = others
	}
	slices.SortStableFunc(found, func(a, b *candidate) int {
		return cmp.Compare(asInt(a.podLike && !m.names(a.Name)), asInt(b.podLike && !m.names(b.Name)))
	})
	return found
}

// namesShown keeps messages short on a node with many pods.
const namesShown = 3

func names(found []*candidate) string {
	var list []string
	for _, c := range found[:min(len(found), namesShown)] {
		list = append(list, c.Name)
	}
	text := strings.Join(list, ", ")
	if more := len(found) - namesShown; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

func nothingMatches(plan v1alpha1.PlanPath) string {
	var wanted []string
	if len(plan.Interfaces) > 0 {
		wanted = append(wanted, "is called "+join(plan.Interfaces))
	}
	if len(plan.AddressRanges) > 0 {
		wanted = append(wanted, "has an address in "+join(plan.AddressRanges))
	}
	return "no NIC " + strings.Join(wanted, " and ")
}

func join[S ~string](items []S) string {
	texts := make([]string, len(items))
	for i, item := range items {
		texts[i] = string(item)
	}
	return strings.Join(texts, " or ")
}

// usedByNetwork are the NICs that the cluster network routes through.
func usedByNetwork(query Query, all []*candidate, routes []netlink.Route, tunnels []Tunnel) map[int]bool {
	used := carryingRoutes(query.Peers, routes)
	for _, c := range all {
		holdsNodeAddress := slices.ContainsFunc(c.allOwn, func(own netip.Addr) bool {
			return slices.Contains(query.NodeAddresses, own)
		})
		carries := slices.ContainsFunc(tunnels, func(t Tunnel) bool { return t.Kind.Steered() && t.carries(c) })
		if holdsNodeAddress || carries {
			used[c.Index] = true
		}
	}
	return used
}

// uplinks are those of these NICs without a path.
func uplinks(all []*candidate, used map[int]bool, owner map[int]string) (found []NIC) {
	for _, c := range all {
		if _, taken := owner[c.Index]; used[c.Index] && !taken && !c.loopback && c.tunnel == nil {
			found = append(found, c.onPath(nil))
		}
	}
	return found
}

// carryingRoutes are the interfaces of main routes whose gateway is a peer.
func carryingRoutes(peers []Peer, routes []netlink.Route) map[int]bool {
	known := map[netip.Addr]bool{}
	for _, peer := range peers {
		for _, address := range peer.All() {
			known[address] = true
		}
	}
	carrying := map[int]bool{}
	for _, route := range routes {
		if route.Table != unix.RT_TABLE_MAIN {
			continue
		}
		for _, hop := range hopsOf(route) {
			if known[hop.gateway] {
				carrying[hop.index] = true
			}
		}
	}
	return carrying
}

// withWaysOutside adds the interfaces by which main routes lead over a gateway to destinations
// outside: there packets are steered from.
func withWaysOutside(outside []netip.Prefix, used map[int]bool, routes []netlink.Route) map[int]bool {
	if len(outside) == 0 {
		return used
	}
	all := maps.Clone(used)
	for _, route := range routes {
		to, ok := destinationOf(route)
		if !ok || route.Table != unix.RT_TABLE_MAIN || !slices.ContainsFunc(outside, to.Overlaps) {
			continue
		}
		for _, hop := range hopsOf(route) {
			if hop.gateway.IsValid() {
				all[hop.index] = true
			}
		}
	}
	return all
}

func waysOut(routes []netlink.Route) (gateways []netip.Addr) {
	for _, route := range routes {
		destination, ok := destinationOf(route)
		if !ok || !isWide(destination) || route.Table != unix.RT_TABLE_MAIN {
			continue
		}
		for _, hop := range hopsOf(route) {
			if hop.gateway.IsValid() {
				gateways = append(gateways, hop.gateway)
			}
		}
	}
	return gateways
}

// largestMTU is the size of packets that must fit on every path: those of flows
// that the cluster network sends by any of these NICs.
func largestMTU(result Resolution) (largest int) {
	for _, path := range result.Paths {
		largest = max(largest, path.MTU)
	}
	for _, uplink := range result.Uplinks {
		if uplink.Up {
			largest = max(largest, uplink.MTU)
		}
	}
	return largest
}

// judge fills in Usable, and in Message what is wrong with the NIC.
func (p *Path) judge(all []*candidate, largest int, seen familiesSeen) {
	if p.Index == 0 {
		return
	}
	lost, own := seen.update(p), byIndex(all, p.Index)
	switch {
	case own.master != nil:
		p.complain(fmt.Sprintf("belongs to %s (%s), which has what comes in there: name %s in the MPTCPPath, or take %s out of it",
			own.master.name, own.master.kind, own.master.name, p.NIC.Name))
	case !p.Up:
		p.complain(whyDown(own))
	case len(p.Addresses) == 0:
		p.complain("has no global address: give it one")
	case p.MTU < largest:
		p.complain(fmt.Sprintf("has an MTU of %d bytes where another has %d: packets would not fit, give all paths the same MTU", p.MTU, largest))
	default:
		p.Usable = true
	}
	if p.Up && lost != "" {
		p.complain("has lost its " + lost + " addresses")
	}
}

// complain puts what is wrong in front of what is only odd.
func (p *Path) complain(what string) {
	complaint := p.NIC.Name + " " + what
	if p.Message != "" {
		complaint += "; " + p.Message
	}
	p.Message = complaint
}

// byIndex is one of the candidates, which must have it.
func byIndex(all []*candidate, index int) *candidate {
	return all[slices.IndexFunc(all, func(c *candidate) bool { return c.Index == index })]
}

func whyDown(c *candidate) string {
	if !c.setUp {
		return "is set down"
	}
	return "has no carrier"
}

// familiesSeen remembers, by path, which address families its NIC had: an IPv6
// address does not come back by itself after its NIC was set down.
type familiesSeen map[string]nicFamilies

type nicFamilies struct {
	nic        string
	ipv4, ipv6 bool
}

// update notes what the path's NIC has, and returns the family that it lost.
func (s familiesSeen) update(p *Path) (lost string) {
	now := nicFamilies{nic: p.NIC.Name}
	for _, prefix := range p.Addresses {
		now.ipv4 = now.ipv4 || prefix.Addr().Is4()
		now.ipv6 = now.ipv6 || prefix.Addr().Is6()
	}
	before := s[p.Name]
	if before.nic != now.nic {
		before = nicFamilies{}
	}
	s[p.Name] = nicFamilies{now.nic, now.ipv4 || before.ipv4, now.ipv6 || before.ipv6}
	switch {
	case before.ipv4 && !now.ipv4 && before.ipv6 && !now.ipv6:
		return "IPv4 and IPv6"
	case before.ipv4 && !now.ipv4:
		return "IPv4"
	case before.ipv6 && !now.ipv6:
		return "IPv6"
	}
	return ""
}
