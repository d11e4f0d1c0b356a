// SPDX-License-Identifier: Apache-2.0

package paths

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// What marks routes and rules as those of Detours. `ip route show table 2845`
// shows them; the metric of a route is the index of the interface that its
// destination is usually reached by.
const (
	// DetourTable is the routing table that holds the detours.
	DetourTable = 0xB1D
	// DetourProtocol is the protocol number of each route and rule: 0xB1, which no
	// routing daemon uses (FRR has 186 to 198, and sweeps its own at its start).
	DetourProtocol = 177
	// DetourRulePriority is that of the rules, just above the main table's 32766.
	DetourRulePriority = 32700
)

// Detours keeps destinations reachable whose route in the main table leads to
// another node by a path that is down at either end, or lost. The kernel drops the routes
// of a NIC that is set down, and nobody restores them; it keeps those of a NIC
// without carrier, those to a node whose NIC is down, and those by a path that loses
// everything, though nothing arrives.
// Then the packets never get to the programs that would steer them.
//
// The same holds for the nodes' own addresses where an overlay (VXLAN, Geneve, IPIP) sends
// its packets there: the kernel finds their way by the networks of its NICs, and no other.
//
// So it remembers the main table's routes to other nodes, and how it reaches the ends of
// overlays, and gives what is broken a route of its own: in a table of its own, by the peer's address on
// the next living path. A route that vanishes while its path is up at both ends
// was removed on purpose, and is forgotten. What is not its own it never changes.
//
// It is safe for concurrent use.
type Detours struct {
	kernel kernel
	downs  func() (downs, error)
	close  func()
	now    func() time.Time

	mu      sync.Mutex
	adopted bool // what an earlier agent left has been read
	owners  addressOwners
	known   map[netip.Prefix]*destination
	lost    map[string]map[string]bool // paths by peers, as Apply went by
	// unconfirmed are those that were lost to an earlier agent, and of which this one does not
	// know yet; unconfirmedUntil is until when they count.
	unconfirmed      map[string]map[string]bool
	unconfirmedUntil time.Time
}

// State is what the detours depend on, besides the kernel's routes.
type State struct {
	// Paths of this node, as Resolve found them.
	Paths []Path
	// Peers are all other nodes. One that is missing is taken to have left the
	// cluster, and its detours end: do not call Apply before all are known.
	Peers []Peer
	// Lost are the paths by which nothing gets to a peer, by the peers' names: no carrier
	// tells of that, and the kernel keeps the routes. Of Dead ones it is only likely, since
	// a filter may keep probes alone from them: such a path is a way where no other is. Alive
	// are those that answer.
	Lost, Dead, Alive map[string]map[string]bool
}

// Detour is a destination that is reached by another path than usual.
type Detour struct {
	Destination netip.Prefix
	// Peer is the node that the destination is behind.
	Peer string
	// From is the path of the route in the main table; empty when it is on none.
	From string
	// To is the path that is used instead. It equals From when the path works
	// again, and only the route in the main table has not come back.
	To string
}

// NewDetours prepares detours, and changes nothing before Apply: what an earlier
// agent left in place goes on. The node must stay open meanwhile.
func NewDetours(node *Node) (*Detours, error) {
	socket, err := subscribe(node.namespace, unix.RTNLGRP_LINK)
	if err != nil {
		return nil, err
	}
	return newDetours(node.kernel, downLog{socket}.read, socket), nil
}

func newDetours(kernel kernel, downs func() (downs, error), socket *nl.NetlinkSocket) *Detours {
	d := &Detours{kernel: kernel, downs: downs, close: func() {}, now: time.Now, known: map[netip.Prefix]*destination{}}
	if socket != nil {
		d.close = socket.Close
	}
	return d
}

// Close frees what NewDetours took, and leaves the detours in place.
func (d *Detours) Close() { d.close() }

// Apply brings the detours in line with the state and the kernel's routes, and
// returns those that are in place, sorted by destination. It remembers routes from
// its first call on, also with a state without paths, which gives no detours.
// Where one cannot be made, the others are; the error tells which.
func (d *Detours) Apply(state State) ([]Detour, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	seen, err := d.look()
	if err != nil {
		return nil, fmt.Errorf("looking at the routes: %w", err)
	}
	d.owners = d.owners.learn(state.Peers, d.gateways())
	d.addUnconfirmed(&state)
	view := newView(state, seen, d.owners)
	if !d.adopted {
		d.adopt(view)
		d.adopted = true
	}
	d.remember(view)
	plan := d.plan(view)
	return d.install(seen, plan, d.ownEnds(view, plan))
}

// Remove deletes all detours and their rules, also those of an earlier agent.
func (d *Detours) Remove() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	routes, err := d.kernel.Routes()
	if err != nil {
		return fmt.Errorf("removing detours: %w", err)
	}
	var failed failures
	failed.add(d.setRules(nil))
	for _, route := range routes {
		if isOurs(route) {
			failed.add(d.delete(route))
		}
	}
	return failed.err()
}

func isOurs(route netlink.Route) bool {
	return route.Table == DetourTable && route.Protocol == DetourProtocol
}

// wanted is a detour to be made.
type wanted struct {
	Detour
	metric int   // the index of the usual interface
	ways   []way // the best one first, none empty
}

func (w wanted) key() routeKey { return routeKey{w.Destination, w.metric} }

// way is how a destination can be reached.
type way struct {
	path    string
	gateway netip.Addr
	index   int
}

func (w wanted) route(by way) netlink.Route {
	return netlink.Route{
		Table: DetourTable, Protocol: DetourProtocol, Type: unix.RTN_UNICAST,
		Family: familyOf(w.Destination.Addr()), Dst: ipNet(w.Destination),
		Gw: by.gateway.AsSlice(), LinkIndex: by.index, Priority: w.metric,
	}
}

// throwMetric is IPv6's default, given explicitly so that both families agree.
const throwMetric = 1024

// throw leaves a destination inside a detoured one to the main table.
func throw(destination netip.Prefix) netlink.Route {
	return netlink.Route{
		Table: DetourTable, Protocol: DetourProtocol, Type: unix.RTN_THROW,
		Family: familyOf(destination.Addr()), Dst: ipNet(destination), Priority: throwMetric,
	}
}

// localRoute has the node take what is for an address of its own.
func (s *snapshot) localRoute(address netip.Addr) netlink.Route {
	return netlink.Route{
		Table: DetourTable, Protocol: DetourProtocol, Type: unix.RTN_LOCAL, Scope: netlink.SCOPE_HOST, LinkIndex: s.loopback,
		Family: familyOf(address), Dst: ipNet(netip.PrefixFrom(address, address.BitLen())), Priority: throwMetric,
	}
}

// install makes the table hold exactly the wanted detours, and the node take what is for
// its own addresses. At no moment does a
// detour hide a more specific route of the main table, or is one missing that was
// there before and is still wanted.
func (d *Detours) install(seen *snapshot, plan []wanted, own map[netip.Addr]bool) ([]Detour, error) {
	var failed failures
	keep := map[routeKey]bool{}
	for address := range own {
		route := seen.localRoute(address)
		failed.add(d.ensure(seen, route))
		keep[keyOf(route)] = true
	}
	for _, destination := range hidden(seen.main, plan) {
		route := throw(destination)
		failed.add(d.ensure(seen, route))
		keep[keyOf(route)] = true
	}
	var placed []Detour
	inUse := map[int]bool{}
	for _, w := range plan {
		by, err := d.place(seen, w)
		if err != nil {
			failed.add(err)
			continue
		}
		w.To = by.path
		placed = append(placed, w.Detour)
		keep[w.key()], inUse[familyOf(w.Destination.Addr())] = true, true
	}
	failed.add(d.setRules(inUse))
	for key, route := range seen.ours {
		if !keep[key] {
			failed.add(d.delete(route))
		}
	}
	return placed, failed.err()
}

// place gives the destination the first way that the kernel takes: it refuses,
// for one, a gateway that the NIC has lost the address to reach.
func (d *Detours) place(seen *snapshot, w wanted) (way, error) {
	var failed error
	for _, by := range w.ways {
		err := d.ensure(seen, w.route(by))
		if err == nil {
			return by, nil
		}
		failed = errors.Join(failed, err)
	}
	return way{}, failed
}

// ensure adds a route unless it is there already.
func (d *Detours) ensure(seen *snapshot, route netlink.Route) error {
	if existing, ok := seen.ours[keyOf(route)]; ok && sameWay(existing, route) {
		return nil
	}
	if err := d.kernel.ReplaceRoute(&route); err != nil {
		return fmt.Errorf("adding detour to %s via %s: %w", route.Dst, route.Gw, err)
	}
	return nil
}

func sameWay(a, b netlink.Route) bool {
	return a.Type == b.Type && a.Gw.Equal(b.Gw) && (a.LinkIndex == b.LinkIndex || a.Type == unix.RTN_THROW)
}

func (d *Detours) delete(route netlink.Route) error {
	err := d.kernel.DeleteRoute(&route)
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("removing detour to %s: %w", route.Dst, err)
	}
	return nil
}

// setRules makes the rule exist for these families, and for no other.
func (d *Detours) setRules(inUse map[int]bool) error {
	rules, err := d.kernel.Rules()
	if err != nil {
		return err
	}
	var failed failures
	present := map[int]bool{}
	for _, existing := range rules {
		if existing.Table != DetourTable || existing.Protocol != DetourProtocol {
			continue
		}
		if inUse[existing.Family] && existing.Priority == DetourRulePriority {
			present[existing.Family] = true
			continue
		}
		failed.add(d.deleteRule(existing))
	}
	for _, family := range families {
		if inUse[family] && !present[family] {
			failed.add(d.addRule(family))
		}
	}
	return failed.err()
}

func (d *Detours) addRule(family int) error {
	rule := netlink.NewRule()
	rule.Family, rule.Table, rule.Priority, rule.Protocol = family, DetourTable, DetourRulePriority, DetourProtocol
	if err := d.kernel.AddRule(rule); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("adding the rule for detours: %w", err)
	}
	return nil
}

func (d *Detours) deleteRule(rule netlink.Rule) error {
	if err := d.kernel.DeleteRule(&rule); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("removing the rule for detours: %w", err)
	}
	return nil
}

// failuresShown keeps an error short when each of a thousand routes fails alike.
const failuresShown = 3

type failures struct {
	shown []error
	more  int
}

func (f *failures) add(err error) {
	switch {
	case err == nil:
	case len(f.shown) < failuresShown:
		f.shown = append(f.shown, err)
	default:
		f.more++
	}
}

func (f *failures) err() error {
	err := errors.Join(f.shown...)
	if f.more > 0 {
		err = fmt.Errorf("%w\nand %d more failures", err, f.more)
	}
	return err
}
