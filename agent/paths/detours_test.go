// SPDX-License-Identifier: Apache-2.0

package paths

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// fakeKernel holds interfaces blue (1), green (2) and red (3), and another (9).
type fakeKernel struct {
	routes  []netlink.Route
	rules   []netlink.Rule
	up      map[int]bool
	flapped map[int]bool
	tunnels map[int]bool
	ends    map[int][]string // of VXLAN devices, by their indexes
	lost    bool             // messages about interfaces were lost

	afterRoutes func() // happens just after the routes were read
	refuse      func(*netlink.Route) error
	keepRoutes  bool // deletes nothing
	writes      int
	unreadable  error
}

func newFakeKernel() *fakeKernel {
	return &fakeKernel{up: map[int]bool{1: true, 2: true, 3: true, 9: true}, flapped: map[int]bool{}}
}

func (k *fakeKernel) Links() (links []netlink.Link, err error) {
	for index, up := range k.up {
		nic := fakeNIC{name: fmt.Sprint("nic", index)}
		if up {
			nic.flags = linkUp
		}
		if k.tunnels[index] {
			nic.kind, nic.encap = "ipip", "ipip"
		}
		links = append(links, nic.link(index))
	}
	for index := range k.ends {
		links = append(links, &netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{Index: index, EncapType: "ether", RawFlags: linkUp}, SrcAddr: net.ParseIP("192.0.1.1")})
	}
	return links, nil
}

func (k *fakeKernel) TunnelEnds(index int) (ends []net.IP, err error) {
	for _, end := range k.ends[index] {
		ends = append(ends, net.ParseIP(end))
	}
	return ends, nil
}

func (k *fakeKernel) Addresses() ([]netlink.Addr, error) { return nil, nil }

func (k *fakeKernel) Routes() ([]netlink.Route, error) {
	routes := slices.Clone(k.routes)
	if k.afterRoutes != nil {
		k.afterRoutes()
		k.afterRoutes = nil
	}
	return routes, k.unreadable
}

func (k *fakeKernel) ReplaceRoute(route *netlink.Route) error {
	k.writes++
	if k.refuse != nil {
		if err := k.refuse(route); err != nil {
			return err
		}
	}
	k.routes = slices.DeleteFunc(k.routes, func(r netlink.Route) bool { return r.Table == route.Table && keyOf(r) == keyOf(*route) })
	k.routes = append(k.routes, *route)
	return nil
}

func (k *fakeKernel) DeleteRoute(route *netlink.Route) error {
	k.writes++
	if k.keepRoutes {
		return unix.EBUSY
	}
	before := len(k.routes)
	k.routes = slices.DeleteFunc(k.routes, func(r netlink.Route) bool { return r.Table == route.Table && keyOf(r) == keyOf(*route) })
	if len(k.routes) == before {
		return unix.ESRCH
	}
	return nil
}

func (k *fakeKernel) Rules() ([]netlink.Rule, error) { return slices.Clone(k.rules), nil }

func (k *fakeKernel) AddRule(rule *netlink.Rule) error {
	k.writes++
	k.rules = append(k.rules, *rule)
	return nil
}

func (k *fakeKernel) DeleteRule(rule *netlink.Rule) error {
	k.writes++
	k.rules = slices.DeleteFunc(k.rules, func(r netlink.Rule) bool {
		return r.Family == rule.Family && r.Table == rule.Table && r.Priority == rule.Priority && r.Protocol == rule.Protocol
	})
	return nil
}

func (k *fakeKernel) downs() (downs, error) {
	result := downs{everything: k.lost, indexes: k.flapped}
	k.lost, k.flapped = false, map[int]bool{}
	return result, nil
}

// main puts a route into the main table, or removes those to a destination.
func (k *fakeKernel) main(routes ...netlink.Route) { k.routes = append(k.routes, routes...) }

func (k *fakeKernel) dropMain(destination string) {
	k.routes = slices.DeleteFunc(k.routes, func(r netlink.Route) bool {
		return r.Table == unix.RT_TABLE_MAIN && r.Dst.String() == destination
	})
}

// carrier changes without an effect on routes.
func (k *fakeKernel) carrier(index int, up bool) {
	k.up[index] = up
	if !up {
		k.flapped[index] = true
	}
}

// setDown drops the interface's routes, as the kernel does.
func (k *fakeKernel) setDown(index int) {
	k.carrier(index, false)
	k.routes = slices.DeleteFunc(k.routes, func(r netlink.Route) bool { return r.LinkIndex == index })
}

// table is what is ours in the kernel, one line a route or rule.
func (k *fakeKernel) table() (lines []string) {
	for _, r := range k.routes {
		switch {
		case !isOurs(r):
		case r.Type == unix.RTN_LOCAL:
			lines = append(lines, fmt.Sprintf("local %s", r.Dst))
		case r.Type == unix.RTN_THROW:
			lines = append(lines, fmt.Sprintf("throw %s", r.Dst))
		default:
			lines = append(lines, fmt.Sprintf("%s via %s dev %d metric %d", r.Dst, r.Gw, r.LinkIndex, r.Priority))
		}
	}
	for _, r := range k.rules {
		if r.Protocol == DetourProtocol {
			lines = append(lines, fmt.Sprintf("rule %d family %d table %d", r.Priority, r.Family, r.Table))
		}
	}
	slices.Sort(lines)
	return lines
}

const (
	rule4 = "rule 32700 family 2 table 2845"
	rule6 = "rule 32700 family 10 table 2845"
)

// world is a kernel and a state that a scenario changes, and the detours.
type world struct {
	t       *testing.T
	kernel  *fakeKernel
	state   State
	detours *Detours
	time    time.Time
}

// newWorld has paths blue, green and red here and at the peers b (.2) and c (.3).
func newWorld(t *testing.T) *world {
	w := &world{t: t, kernel: newFakeKernel(), time: time.Unix(1_000_000, 0)}
	for i, name := range []string{"blue", "green", "red"} {
		w.state.Paths = append(w.state.Paths, Path{Name: name, Usable: true, NIC: NIC{Name: name, Index: i + 1, Up: true}})
	}
	for i, name := range []string{"b", "c"} {
		peer := Peer{Name: name, Paths: map[string]PeerPath{}}
		for j, path := range w.state.Paths {
			peer.Paths[path.Name] = PeerPath{Up: true, Addresses: addrs(
				fmt.Sprintf("192.0.%d.%d", j+1, i+2), fmt.Sprintf("2001:db8:%d::%d", j+1, i+2))}
		}
		w.state.Peers = append(w.state.Peers, peer)
	}
	w.restart()
	return w
}

// restart has another agent go on, which knows what the kernel shows and nothing else.
func (w *world) restart() {
	w.detours = newDetours(w.kernel, w.kernel.downs, nil)
	w.detours.now = func() time.Time { return w.time }
}

// replace has another agent go on, which takes over from the last one; what happens in between
// none of them sees.
func (w *world) replace(meanwhile func()) {
	left := w.detours.Handover()
	meanwhile()
	w.kernel.flapped = map[int]bool{}
	w.restart()
	w.detours.TakeOver(left)
}

func (w *world) peer(i int, path string, up bool) {
	p := w.state.Peers[i].Paths[path]
	p.Up = up
	w.state.Peers[i].Paths[path] = p
}

func (w *world) apply() []Detour {
	w.t.Helper()
	detours, err := w.detours.Apply(w.state)
	if err != nil {
		w.t.Fatal(err)
	}
	return detours
}

func (w *world) expect(when string, want ...string) {
	w.t.Helper()
	w.apply()
	slices.Sort(want)
	if diff := cmp.Diff(want, w.kernel.table()); diff != "" {
		w.t.Errorf("%s (-want +got):\n%s", when, diff)
	}
	before := w.kernel.writes
	w.apply()
	if w.kernel.writes != before {
		w.t.Errorf("%s: the same again wrote %d times", when, w.kernel.writes-before)
	}
}

const (
	podsOfB = "10.0.2.0/24"
	// overlaid is the detour to b's own address on blue, ownEnd this node's on it.
	overlaid = "192.0.1.2/32 via 192.0.2.2 dev 2 metric 1"
	ownEnd   = "local 192.0.1.1/32"
)

var blueNetwork = routeVia(1, "192.0.1.0/24", "")

// overlay makes a VXLAN device that sends to these addresses, of which 192.0.1.2 is b's as
// a Node.
func (w *world) overlay(ends ...string) {
	w.kernel.ends = map[int][]string{8: ends}
	w.state.Peers[0].OfNode = addrs("192.0.1.2")
	w.kernel.main(blueNetwork)
}

func TestDetours(t *testing.T) {
	toB := routeVia(1, podsOfB, "192.0.1.2")
	toB6 := routeVia(1, "2001:db8:b::/64", "2001:db8:1::2")
	green := []string{"10.0.2.0/24 via 192.0.2.2 dev 2 metric 1", rule4}

	for name, scenario := range map[string]func(*world){
		"a NIC that is set down takes its routes along; they come back": func(w *world) {
			w.kernel.main(toB, toB6)
			w.expect("all is well")
			w.kernel.setDown(1)
			w.expect("blue is down", append(green, "2001:db8:b::/64 via 2001:db8:2::2 dev 2 metric 1", rule6)...)
			w.kernel.carrier(1, true)
			w.expect("blue is up, its routes are not back: they are given in its own place",
				"10.0.2.0/24 via 192.0.1.2 dev 1 metric 1", rule4, "2001:db8:b::/64 via 2001:db8:1::2 dev 1 metric 1", rule6)
			w.kernel.main(toB6)
			w.expect("one family is back", "10.0.2.0/24 via 192.0.1.2 dev 1 metric 1", rule4)
			w.kernel.main(toB)
			w.expect("both are back")
		},
		"a NIC without carrier keeps its routes, and they are detoured": func(w *world) {
			w.kernel.main(toB)
			w.expect("all is well")
			w.kernel.carrier(1, false)
			w.expect("no carrier", green...)
			w.kernel.carrier(1, true)
			w.expect("carrier is back")
		},
		"a NIC without carrier is detoured at the first look": func(w *world) {
			w.kernel.main(toB)
			w.kernel.carrier(1, false)
			w.expect("no carrier", green...)
		},
		"the peer's NIC is down": func(w *world) {
			w.kernel.main(toB, routeVia(1, "10.0.3.0/24", "192.0.1.3"))
			w.peer(0, "blue", false)
			w.expect("b's blue is down, c's is not", green...)
			w.peer(0, "blue", true)
			w.expect("b's blue is back")
		},
		"the path to a peer is lost, while its NIC is up": func(w *world) {
			w.kernel.main(toB, routeVia(1, "10.0.3.0/24", "192.0.1.3"))
			w.state.Lost = map[string]map[string]bool{"b": {"blue": true}}
			w.expect("blue is lost to b, not to c", green...)
			w.state.Lost["b"]["green"] = true
			w.expect("green is lost too", "10.0.2.0/24 via 192.0.3.2 dev 3 metric 1", rule4)
			w.state.Lost["b"]["red"] = true
			w.expect("all are lost: the packets are left to the main table")
			w.state.Lost = nil
			w.expect("blue is back")
		},
		"a path that is dead keeps its routes: probes alone may be filtered": func(w *world) {
			w.kernel.main(toB)
			w.state.Dead = map[string]map[string]bool{"b": {"blue": true}}
			w.expect("blue is dead")
		},
		"of the other paths a dead one is the last": func(w *world) {
			w.kernel.main(toB)
			w.state.Lost = map[string]map[string]bool{"b": {"blue": true}}
			w.state.Dead = map[string]map[string]bool{"b": {"blue": true, "green": true}}
			w.expect("green is dead", "10.0.2.0/24 via 192.0.3.2 dev 3 metric 1", rule4)
			w.peer(0, "red", false)
			w.expect("red is down: green is better than none", green...)
			w.state.Paths[2].Usable = false
			w.peer(0, "red", true)
			w.expect("red cannot be used well", "10.0.2.0/24 via 192.0.3.2 dev 3 metric 1", rule4)
		},
		"a route that a routing daemon takes back because its path is lost stays detoured": func(w *world) {
			w.kernel.main(toB)
			w.state.Lost = map[string]map[string]bool{"b": {"blue": true}}
			w.expect("blue is lost to b", green...)
			w.kernel.dropMain(podsOfB)
			w.expect("the daemon notices", green...)
			w.state.Lost = nil
			w.expect("blue is back, the route is not", "10.0.2.0/24 via 192.0.1.2 dev 1 metric 1", rule4)
			w.kernel.main(toB)
			w.expect("the route is back")
		},
		"the next living path by name, and round": func(w *world) {
			w.kernel.main(routeVia(2, podsOfB, "192.0.2.2"))
			w.kernel.carrier(2, false)
			w.expect("after green comes red", "10.0.2.0/24 via 192.0.3.2 dev 3 metric 2", rule4)
			w.peer(0, "red", false)
			w.expect("after red comes blue", "10.0.2.0/24 via 192.0.1.2 dev 1 metric 2", rule4)
			w.kernel.carrier(1, false)
			w.expect("nothing lives: the packets are left to the main table")
			w.peer(0, "red", true)
			w.expect("red lives again", "10.0.2.0/24 via 192.0.3.2 dev 3 metric 2", rule4)
		},
		"a route that is removed while its path is up is forgotten": func(w *world) {
			w.kernel.main(toB)
			w.expect("all is well")
			w.kernel.dropMain(podsOfB)
			w.expect("removed")
			w.kernel.carrier(1, false)
			w.expect("later its NIC goes down")
		},
		"a route that went with its NIC in a blink is not forgotten": func(w *world) {
			w.kernel.main(toB)
			w.expect("all is well")
			w.kernel.setDown(1)
			w.kernel.up[1] = true
			w.expect("down and up between two looks", "10.0.2.0/24 via 192.0.1.2 dev 1 metric 1", rule4)
		},
		"nor if the messages that would tell were lost": func(w *world) {
			w.kernel.main(toB)
			w.expect("all is well")
			w.kernel.dropMain(podsOfB)
			w.kernel.lost = true
			w.expect("nobody knows why it is missing", "10.0.2.0/24 via 192.0.1.2 dev 1 metric 1", rule4)
		},
		"a route that a routing daemon takes back because the peer is unreachable stays detoured": func(w *world) {
			w.kernel.main(toB)
			w.peer(0, "blue", false)
			w.expect("b's blue is down", green...)
			w.kernel.dropMain(podsOfB)
			w.expect("the daemon notices", green...)
		},
		"also if the peer is back at that moment": func(w *world) {
			w.kernel.main(toB)
			w.peer(0, "blue", false)
			w.expect("b's blue is down", green...)
			w.kernel.dropMain(podsOfB)
			w.peer(0, "blue", true)
			w.expect("it is up, the route is not back", "10.0.2.0/24 via 192.0.1.2 dev 1 metric 1", rule4)
		},
		"also if both are seen at once": func(w *world) {
			w.kernel.main(toB)
			w.expect("all is well")
			w.kernel.dropMain(podsOfB)
			w.peer(0, "blue", false)
			w.expect("b's blue is down, the route is gone", green...)
		},
		"a NIC that goes down just after the routes were read": func(w *world) {
			w.kernel.main(toB)
			w.kernel.afterRoutes = func() { w.kernel.setDown(1); w.kernel.up[1] = true }
			w.apply()
			w.expect("its routes are missing at the next look", "10.0.2.0/24 via 192.0.1.2 dev 1 metric 1", rule4)
		},
		"a detour that could not be removed does not come to life again": func(w *world) {
			w.kernel.main(toB)
			w.kernel.carrier(1, false)
			w.expect("no carrier", green...)
			w.kernel.carrier(1, true)
			w.kernel.keepRoutes = true
			if _, err := w.detours.Apply(w.state); !errors.Is(err, unix.EBUSY) {
				w.t.Errorf("got error %v", err)
			}
			w.kernel.dropMain(podsOfB)
			_, _ = w.detours.Apply(w.state)
			w.kernel.keepRoutes = false
			w.expect("it can be removed now")
		},
		"a peer that leaves the cluster takes its detours along": func(w *world) {
			w.kernel.main(toB)
			w.expect("all is well")
			w.kernel.setDown(1)
			w.expect("blue is down", green...)
			w.state.Peers = w.state.Peers[1:]
			w.expect("b is gone")
		},
		"an address that the peer no longer has is still known": func(w *world) {
			w.kernel.main(toB6)
			w.expect("all is well")
			w.state.Peers[0].Paths["blue"] = PeerPath{} // IPv6 addresses go when a NIC is set down
			w.expect("b's blue is set down", "2001:db8:b::/64 via 2001:db8:2::2 dev 2 metric 1", rule6)
			w.restart()
			w.expect("and the agent starts anew", "2001:db8:b::/64 via 2001:db8:2::2 dev 2 metric 1", rule6)
			w.state.Peers[0].Paths["blue"] = PeerPath{Up: true, Addresses: addrs("2001:db8:1::2")}
			w.expect("b's blue is back")
		},
		"an address that another peer has now is that one's": func(w *world) {
			w.kernel.main(toB)
			w.expect("all is well")
			w.state.Peers[0].Paths["blue"] = PeerPath{Up: true, Addresses: addrs("192.0.1.22")}
			w.state.Peers[1].Paths["blue"] = PeerPath{Addresses: addrs("192.0.1.2")}
			w.expect("c has it, and its blue is down", "10.0.2.0/24 via 192.0.2.3 dev 2 metric 1", rule4)
		},
		"a restart while the NIC is down": func(w *world) {
			w.kernel.main(toB)
			w.expect("all is well")
			w.kernel.setDown(1)
			w.expect("blue is down", green...)
			w.restart()
			w.expect("anew, with nothing to see in the main table", green...)
			w.peer(0, "green", false)
			w.expect("the usual path is remembered by its metric", "10.0.2.0/24 via 192.0.3.2 dev 3 metric 1", rule4)
			w.kernel.carrier(1, true)
			w.expect("it is up again", "10.0.2.0/24 via 192.0.1.2 dev 1 metric 1", rule4)
			w.kernel.main(toB)
			w.expect("and its route is back")
		},
		"a NIC that is set down while no agent runs": func(w *world) {
			w.kernel.main(toB, toB6)
			w.expect("all is well")
			w.replace(func() { w.kernel.setDown(1) })
			w.expect("the next agent has it from the last one", append(green, "2001:db8:b::/64 via 2001:db8:2::2 dev 2 metric 1", rule6)...)
			w.kernel.carrier(1, true)
			w.kernel.main(toB, toB6)
			w.expect("blue is back")
		},
		"a route that is removed while no agent runs and its NIC is up": func(w *world) {
			w.kernel.main(toB)
			w.expect("all is well")
			w.replace(func() { w.kernel.dropMain(podsOfB) })
			w.expect("it was removed on purpose")
			w.kernel.setDown(1)
			w.expect("blue is down")
		},
		"a route that leads elsewhere when the next agent comes": func(w *world) {
			w.kernel.main(toB)
			w.expect("all is well")
			w.replace(func() {
				w.kernel.dropMain(podsOfB)
				w.kernel.main(routeVia(2, podsOfB, "192.0.2.2"))
				w.kernel.setDown(1)
			})
			w.expect("blue is none of its business")
		},
		"a NIC that is set down and up again while no agent runs, with its detour": func(w *world) {
			w.kernel.main(toB)
			w.expect("all is well")
			w.kernel.setDown(1)
			w.expect("blue is down", green...)
			w.replace(func() { w.kernel.carrier(1, true) })
			w.expect("its route has not come back", "10.0.2.0/24 via 192.0.1.2 dev 1 metric 1", rule4)
			w.kernel.main(toB)
			w.expect("it has")
		},
		"an agent that starts while a path is lost": func(w *world) {
			w.kernel.main(toB, routeVia(1, "10.0.3.0/24", "192.0.1.3"))
			w.state.Lost = map[string]map[string]bool{"b": {"blue": true}, "c": {"blue": true}}
			lost := []string{"10.0.2.0/24 via 192.0.2.2 dev 2 metric 1", "10.0.3.0/24 via 192.0.2.3 dev 2 metric 1", rule4}
			w.expect("blue is lost", lost...)
			w.replace(func() { w.state.Lost = nil })
			w.expect("the next agent believes the last one", lost...)
			w.state.Alive = map[string]map[string]bool{"c": {"blue": true}}
			w.expect("its probes show that c is there", green...)
			w.state.Alive = nil
			w.expect("and what they have shown once", green...)
			w.state.Lost = map[string]map[string]bool{"b": {"blue": true}}
			w.expect("they show that b is not", green...)
			w.time = w.time.Add(unconfirmedFor)
			w.expect("that has no end", green...)
			w.state.Lost = nil
			w.expect("b is back")
		},
		"a lost path of which the next agent finds out nothing": func(w *world) {
			w.kernel.main(toB)
			w.state.Lost = map[string]map[string]bool{"b": {"blue": true}}
			w.expect("blue is lost", green...)
			w.replace(func() { w.state.Lost = nil })
			w.time = w.time.Add(time.Hour)
			w.expect("it is believed, however late the API server answers", green...)
			w.time = w.time.Add(unconfirmedFor - time.Millisecond)
			w.expect("for some seconds from then on", green...)
			w.replace(func() {})
			w.expect("by the agent after it as well", green...)
			w.time = w.time.Add(unconfirmedFor)
			w.expect("and then no more")
		},
		"a NIC that came back while no agent ran": func(w *world) {
			w.kernel.main(toB)
			w.expect("all is well")
			w.kernel.setDown(1)
			w.expect("blue is down", green...)
			w.kernel.carrier(1, true)
			w.kernel.main(toB)
			w.restart()
			w.expect("nothing is left")
		},
		"a NIC that is gone and comes with another number": func(w *world) {
			w.kernel.main(toB)
			w.expect("all is well")
			w.kernel.setDown(1)
			delete(w.kernel.up, 1)
			w.state.Paths[0].NIC = NIC{}
			w.expect("blue is unplugged", green...)
			w.kernel.up[9], w.state.Paths[0].NIC = true, NIC{Name: "blue", Index: 9, Up: true}
			w.state.Paths[0].Usable = true
			w.expect("blue is plugged in, its route is missing", "10.0.2.0/24 via 192.0.1.2 dev 9 metric 1", rule4)
			w.kernel.main(routeVia(9, podsOfB, "192.0.1.2"))
			w.expect("its route is back")
		},
		"a gateway on no path, by a NIC on no path": func(w *world) {
			w.state.Peers[0].Addresses = addrs("203.0.113.2")
			w.kernel.main(routeVia(9, podsOfB, "203.0.113.2"))
			w.expect("all is well")
			w.kernel.setDown(9)
			w.expect("it is down", "10.0.2.0/24 via 192.0.1.2 dev 1 metric 9", rule4)
		},
		"strangers' routes are left alone": func(w *world) {
			w.kernel.main(routeVia(1, "0.0.0.0/0", "192.0.1.254"), routeVia(1, "10.9.0.0/16", "192.0.1.99"))
			w.expect("all is well")
			w.kernel.carrier(1, false)
			w.expect("no carrier")
			w.kernel.setDown(1)
			w.expect("blue is down")
		},
		"a route that encapsulates packets is left alone": func(w *world) {
			encapsulating := toB
			encapsulating.Encap = &netlink.SEG6Encap{}
			w.kernel.main(encapsulating)
			w.kernel.carrier(1, false)
			w.expect("no carrier")
		},
		"a route into a tunnel to a peer is left alone": func(w *world) {
			w.kernel.tunnels = map[int]bool{9: true}
			w.kernel.main(routeVia(9, podsOfB, "192.0.1.2"))
			w.peer(0, "blue", false)
			w.expect("b's blue is down: a detour would send the packets bare")
		},
		"a route for one type of service is left alone": func(w *world) {
			special := routeVia(2, podsOfB, "192.0.2.2")
			special.Tos = 0x10
			w.kernel.main(special, toB)
			w.kernel.carrier(2, false)
			w.expect("no carrier")
		},
		"a route by two peers is left to the kernel": func(w *world) {
			w.kernel.main(multipath(podsOfB, hopTo(1, "192.0.1.2"), hopTo(1, "192.0.1.3")))
			w.kernel.carrier(1, false)
			w.expect("no carrier")
		},
		"one of several next hops of a route fails": func(w *world) {
			w.kernel.main(multipath(podsOfB, hopTo(1, "192.0.1.2"), hopTo(2, "192.0.2.2")))
			w.expect("all is well")
			w.kernel.carrier(2, false)
			w.expect("green has no carrier: half of the packets would be lost", "10.0.2.0/24 via 192.0.3.2 dev 3 metric 2", rule4)
			w.kernel.routes[0].MultiPath[1].Flags = unix.RTNH_F_DEAD
			w.expect("green is set down: the kernel leaves it out by itself")
		},
		"of several routes to one destination the best counts": func(w *world) {
			spare := routeVia(2, podsOfB, "192.0.2.2")
			spare.Priority = 100
			w.kernel.main(spare, toB)
			w.kernel.carrier(2, false)
			w.expect("the spare one has no carrier")
			w.kernel.carrier(2, true)
			w.kernel.setDown(1)
			w.expect("the spare one takes over by itself")
			w.kernel.carrier(2, false)
			w.expect("and fails", "10.0.2.0/24 via 192.0.3.2 dev 3 metric 2", rule4)
		},
		"more specific routes are not hidden by a wide detour": func(w *world) {
			connected := routeVia(9, "10.0.9.0/24", "0.0.0.0")
			connected.Gw = nil
			blackhole := routeVia(0, "10.0.8.0/24", "0.0.0.0")
			blackhole.Gw, blackhole.Type = nil, unix.RTN_BLACKHOLE
			outside := routeVia(9, "172.16.0.0/12", "203.0.113.1")
			w.kernel.main(routeVia(1, "10.0.0.0/8", "192.0.1.2"), toB, connected, blackhole, outside, routeVia(2, "10.0.3.0/24", "192.0.2.3"))
			w.expect("all is well")
			w.kernel.carrier(1, false)
			w.expect("no carrier",
				"10.0.0.0/8 via 192.0.2.2 dev 2 metric 1", "10.0.2.0/24 via 192.0.2.2 dev 2 metric 1", rule4,
				"throw 10.0.3.0/24", "throw 10.0.8.0/24", "throw 10.0.9.0/24")
			w.kernel.dropMain("10.0.9.0/24")
			w.kernel.main(routeVia(9, "10.0.7.0/24", "203.0.113.1"))
			w.expect("they follow the main table",
				"10.0.0.0/8 via 192.0.2.2 dev 2 metric 1", "10.0.2.0/24 via 192.0.2.2 dev 2 metric 1", rule4,
				"throw 10.0.3.0/24", "throw 10.0.7.0/24", "throw 10.0.8.0/24")
			w.kernel.carrier(1, true)
			w.expect("carrier is back")
		},
		"a path that packets do not fit is the last resort": func(w *world) {
			w.state.Paths[1].Usable = false
			w.kernel.main(toB)
			w.kernel.carrier(1, false)
			w.expect("red rather than green", "10.0.2.0/24 via 192.0.3.2 dev 3 metric 1", rule4)
			w.kernel.carrier(3, false)
			w.expect("green rather than nothing", green...)
		},
		"a gateway that the kernel refuses gives way to the next": func(w *world) {
			w.kernel.refuse = func(r *netlink.Route) error {
				if r.LinkIndex == 2 {
					return unix.EHOSTUNREACH
				}
				return nil
			}
			w.kernel.main(toB)
			w.kernel.carrier(1, false)
			w.apply()
			if diff := cmp.Diff([]string{"10.0.2.0/24 via 192.0.3.2 dev 3 metric 1", rule4}, w.kernel.table()); diff != "" {
				w.t.Errorf("table (-want +got):\n%s", diff)
			}
		},
		"what somebody else deletes is put back": func(w *world) {
			w.kernel.main(toB)
			w.kernel.carrier(1, false)
			w.expect("no carrier", green...)
			w.kernel.rules, w.kernel.routes = nil, w.kernel.routes[:1]
			w.expect("all of ours is gone", green...)
		},
		"a rule of ours in the wrong place is moved": func(w *world) {
			stray := *netlink.NewRule()
			stray.Family, stray.Table, stray.Priority, stray.Protocol = netlink.FAMILY_V4, DetourTable, 100, DetourProtocol
			w.kernel.rules = append(w.kernel.rules, stray)
			w.kernel.main(toB)
			w.kernel.carrier(1, false)
			w.expect("no carrier", green...)
		},
		"other things in the table, and other rules for it, are left alone": func(w *world) {
			foreign := inTable(DetourTable, routeVia(3, "10.0.2.0/24", "192.0.3.77"))
			foreign.Priority = 5
			foreignRule := *netlink.NewRule()
			foreignRule.Family, foreignRule.Table, foreignRule.Priority = netlink.FAMILY_V4, DetourTable, DetourRulePriority
			w.kernel.main(toB, foreign)
			w.kernel.rules = append(w.kernel.rules, foreignRule)
			w.expect("all is well")
			w.kernel.carrier(1, false)
			w.expect("no carrier", green...)
			if err := w.detours.Remove(); err != nil {
				w.t.Error(err)
			}
			if len(w.kernel.routes) != 2 || len(w.kernel.rules) != 1 {
				w.t.Errorf("left after removal: %v %v", w.kernel.routes, w.kernel.rules)
			}
		},
		"no paths, no detours; the routes are remembered nevertheless": func(w *world) {
			paths := w.state.Paths
			w.state.Paths = nil
			w.kernel.main(toB)
			w.expect("no paths yet")
			w.kernel.setDown(1)
			w.expect("nor now")
			w.state.Paths = paths
			w.expect("paths", green...)
			w.state.Paths = nil
			w.expect("no paths again")
		},
		"the own address of a peer that an overlay sends to": func(w *world) {
			w.overlay("192.0.1.2", "192.0.1.3")
			w.expect("all is well")
			w.kernel.carrier(1, false)
			w.expect("no carrier: c's address is nobody's Node's", overlaid, ownEnd, rule4)
			w.kernel.carrier(1, true)
			w.expect("carrier is back")
			w.kernel.setDown(1)
			w.expect("blue is set down", overlaid, ownEnd, rule4)
			w.kernel.carrier(1, true)
			w.kernel.main(blueNetwork)
			w.expect("blue is up again")
			w.peer(0, "blue", false)
			w.expect("b's blue is down", overlaid, rule4)
			w.peer(0, "blue", true)
			w.state.Lost = map[string]map[string]bool{"b": {"blue": true}}
			w.expect("blue is lost to b", overlaid, rule4)
			w.state.Lost["b"]["green"] = true
			w.expect("green is lost too", "192.0.1.2/32 via 192.0.3.2 dev 3 metric 1", rule4)
		},
		"without an overlay, or with one that sends elsewhere, it stays": func(w *world) {
			w.overlay("192.0.1.3")
			w.kernel.carrier(1, false)
			w.expect("no carrier")
			w.kernel.ends = nil
			w.expect("nor now")
		},
		"an address that only its agent speaks for stays": func(w *world) {
			w.overlay("192.0.1.2")
			w.state.Peers[0].OfNode = nil
			w.kernel.carrier(1, false)
			w.expect("no carrier")
		},
		"an address that is on another peer's path stays": func(w *world) {
			w.overlay("192.0.1.3")
			w.state.Peers[0].OfNode = addrs("192.0.1.3")
			w.kernel.carrier(1, false)
			w.expect("no carrier")
		},
		"a peer that is reached by a default route stays": func(w *world) {
			w.overlay("192.0.1.2")
			w.kernel.dropMain("192.0.1.0/24")
			w.kernel.main(routeVia(9, "0.0.0.0/0", "198.51.100.1"))
			w.kernel.carrier(9, false)
			w.expect("the way out is down")
		},
		"an overlay's end on a NIC that is no path": func(w *world) {
			w.overlay("198.51.100.2")
			w.state.Peers[0].Addresses, w.state.Peers[0].OfNode = addrs("198.51.100.2"), addrs("198.51.100.2")
			w.kernel.main(routeVia(9, "198.51.100.0/24", ""))
			w.kernel.carrier(9, false)
			w.expect("that NIC is down", "198.51.100.2/32 via 192.0.1.2 dev 1 metric 9", ownEnd, rule4)
		},
		"an IPIP route's next hop is an overlay's end": func(w *world) {
			w.kernel.tunnels = map[int]bool{9: true}
			w.state.Peers[0].OfNode = addrs("192.0.1.2")
			w.kernel.main(blueNetwork, routeVia(9, podsOfB, "192.0.1.2"))
			w.kernel.carrier(1, false)
			w.expect("no carrier: the pods' route stays", overlaid, rule4)
		},
		"an overlay's detours are taken over, and end with it": func(w *world) {
			w.overlay("192.0.1.2")
			w.kernel.setDown(1)
			w.expect("not known before")
			w.kernel.main(blueNetwork)
			w.kernel.carrier(1, true)
			w.expect("all is well")
			w.kernel.setDown(1)
			w.expect("blue is down", overlaid, ownEnd, rule4)
			w.restart()
			w.expect("another agent", overlaid, ownEnd, rule4)
			w.kernel.main(blueNetwork)
			w.kernel.carrier(1, true)
			w.expect("blue is back")
			w.kernel.setDown(1)
			w.expect("blue is down again", overlaid, ownEnd, rule4)
			w.kernel.ends = nil
			w.restart()
			w.expect("the overlay is gone, and the agent was not there")
		},
		"an overlay's NIC is set down while no agent runs": func(w *world) {
			w.overlay("192.0.1.2")
			w.expect("all is well")
			w.replace(func() { w.kernel.setDown(1) })
			w.expect("the next agent has it from the last one", overlaid, ownEnd, rule4)
			w.kernel.main(blueNetwork)
			w.kernel.carrier(1, true)
			w.expect("blue is back")
			w.replace(func() { w.kernel.setDown(1); w.kernel.ends = nil })
			w.expect("the overlay is gone, too")
		},
		"an overlay's path is lost, and its agent replaced": func(w *world) {
			w.overlay("192.0.1.2")
			w.state.Lost = map[string]map[string]bool{"b": {"blue": true}}
			w.expect("blue is lost", overlaid, rule4)
			w.replace(func() { w.state.Lost = nil })
			w.expect("the next agent believes the last one", overlaid, rule4)
			w.state.Alive = map[string]map[string]bool{"b": {"blue": true}}
			w.expect("b answers")
		},
		"removal and a new beginning": func(w *world) {
			w.kernel.main(toB)
			w.expect("all is well")
			w.kernel.setDown(1)
			w.expect("blue is down", green...)
			for range 2 {
				if err := w.detours.Remove(); err != nil {
					w.t.Error(err)
				}
				if left := w.kernel.table(); left != nil {
					w.t.Errorf("left after removal: %v", left)
				}
			}
			w.expect("the routes are still remembered", green...)
		},
	} {
		t.Run(name, func(t *testing.T) { scenario(newWorld(t)) })
	}
}

func TestTheAddressBookForgetsWhatNoRouteUses(t *testing.T) {
	var owners addressOwners
	for i := range 100 {
		claims := []Peer{{Name: "b", Addresses: addrs(fmt.Sprintf("192.0.2.%d", i))}}
		owners = owners.learn(claims, map[netip.Addr]bool{netip.MustParseAddr("192.0.2.7"): true})
	}
	if len(owners) != 2 || owners[netip.MustParseAddr("192.0.2.7")].peer != "b" {
		t.Errorf("got %v, wanted the last address and the one in use", owners)
	}
}

// A peer whose addresses a controller confirmed loses what is no longer among them,
// also where routes go by it.
func TestTheAddressBookKeepsNothingThatIsNotConfirmed(t *testing.T) {
	gateway := netip.MustParseAddr("192.0.2.254")
	inUse := map[netip.Addr]bool{gateway: true}
	owners := addressOwners{}.learn([]Peer{{Name: "b", Addresses: addrs("192.0.2.254"), Confirmed: true}}, inUse)
	owners = owners.learn([]Peer{{Name: "b", Addresses: addrs("192.0.2.2"), Confirmed: true}}, inUse)
	if owner, known := owners[gateway]; known {
		t.Errorf("the gateway is still %s's", owner.peer)
	}
}

func TestADetourOfAnEarlierAgentProvesNoGateway(t *testing.T) {
	w := newWorld(t)
	w.state.Peers[0].Confirmed = true
	w.kernel.main(routeVia(1, "10.9.0.0/16", "192.0.1.254"))
	w.kernel.main(inTable(DetourTable, routeVia(2, "10.9.0.0/16", "192.0.2.2")))
	for i := range w.kernel.routes {
		if w.kernel.routes[i].Table == DetourTable {
			w.kernel.routes[i].Protocol = DetourProtocol
		}
	}
	w.peer(0, "blue", false)
	w.expect("a route to nobody's gateway is left alone")
}

func TestDetoursAreReported(t *testing.T) {
	w := newWorld(t)
	w.kernel.main(routeVia(1, "10.0.3.0/24", "192.0.1.3"), routeVia(1, podsOfB, "192.0.1.2"))
	if got := w.apply(); got != nil {
		t.Errorf("detours while all is well: %v", got)
	}
	w.kernel.carrier(1, false)
	want := []Detour{
		{netip.MustParsePrefix(podsOfB), "b", "blue", "green"},
		{netip.MustParsePrefix("10.0.3.0/24"), "c", "blue", "green"},
	}
	if got := w.apply(); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestOneFailureDoesNotKeepOtherDetoursFromBeingMade(t *testing.T) {
	w := newWorld(t)
	for i := range 10 {
		w.kernel.main(routeVia(1, fmt.Sprintf("10.1.%d.0/24", i), "192.0.1.2"))
	}
	w.kernel.main(routeVia(1, podsOfB, "192.0.1.2"))
	w.kernel.refuse = func(r *netlink.Route) error {
		if r.Dst.String() != podsOfB {
			return unix.ENOMEM
		}
		return nil
	}
	w.kernel.carrier(1, false)
	detours, err := w.detours.Apply(w.state)
	if len(detours) != 1 || detours[0].Destination.String() != podsOfB {
		t.Errorf("got %v", detours)
	}
	if !errors.Is(err, unix.ENOMEM) || !strings.Contains(err.Error(), "10.1.0.0/24") || !strings.Contains(err.Error(), "and 7 more") {
		t.Errorf("got error %v", err)
	}
	w.kernel.unreadable = unix.EPERM
	if _, err := w.detours.Apply(w.state); !errors.Is(err, unix.EPERM) {
		t.Errorf("got error %v", err)
	}
	w.kernel.unreadable = nil
	if got := w.kernel.table(); len(got) != 2 {
		t.Errorf("a kernel that cannot be read changed the detours: %v", got)
	}
}

func TestAThousandDestinationsAreWrittenOnce(t *testing.T) {
	w := newWorld(t)
	for i := range 1000 {
		w.kernel.main(routeVia(1, fmt.Sprintf("10.%d.%d.0/24", i/250, i%250), "192.0.1.2"))
	}
	w.apply()
	w.kernel.carrier(1, false)
	if got := len(w.apply()); got != 1000 {
		t.Errorf("got %d detours", got)
	}
	if w.kernel.writes != 1001 { // and a rule
		t.Errorf("wrote %d times", w.kernel.writes)
	}
	w.apply()
	if w.kernel.writes != 1001 {
		t.Errorf("the same again wrote %d times", w.kernel.writes-1001)
	}
}

// What another wrote into an agent's record, or a later version, may be anything.
func TestAHandoverThatMakesNoSenseIsLeftOut(t *testing.T) {
	w := newWorld(t)
	w.kernel.setDown(1)
	prefix := netip.MustParsePrefix
	w.detours.TakeOver(Handover{
		Routes: []HandoverRoute{
			{Destination: prefix("10.0.2.0/24"), Peer: "b"},
			{Peer: "b", Hops: []HandoverHop{{Index: 1}}},
			{Destination: prefix("0.0.0.0/1"), Peer: "b", Hops: []HandoverHop{{Index: 1}}},
			{Destination: prefix("10.0.4.0/24"), Peer: "nobody", Hops: []HandoverHop{{Index: 1}}},
		},
		Lost: map[string]map[string]bool{"nobody": {"blue": true}, "b": nil},
	})
	w.expect("nothing is detoured")
}

func TestAHandoverIsEqualToOneThatSaysTheSame(t *testing.T) {
	handover := func(change func(*Handover)) Handover {
		h := Handover{
			Routes: []HandoverRoute{{Destination: netip.MustParsePrefix("10.0.2.0/24"), Peer: "b", Hops: []HandoverHop{{Gateway: addrs("192.0.1.2")[0], Index: 1}}}},
			Lost:   map[string]map[string]bool{"b": {"blue": true}},
		}
		change(&h)
		return h
	}
	one := handover(func(*Handover) {})
	if !one.Equal(handover(func(*Handover) {})) {
		t.Error("it is another")
	}
	for name, change := range map[string]func(*Handover){
		"destination": func(h *Handover) { h.Routes[0].Destination = netip.MustParsePrefix("10.0.3.0/24") },
		"peer":        func(h *Handover) { h.Routes[0].Peer = "c" },
		"gateway":     func(h *Handover) { h.Routes[0].Hops[0].Gateway = addrs("192.0.1.3")[0] },
		"interface":   func(h *Handover) { h.Routes[0].Hops[0].Index = 2 },
		"missing":     func(h *Handover) { h.Routes[0].Missing = true },
		"end":         func(h *Handover) { h.Routes[0].End = true },
		"no route":    func(h *Handover) { h.Routes = nil },
		"lost path":   func(h *Handover) { h.Lost["b"]["green"] = true },
		"lost peer":   func(h *Handover) { h.Lost["c"] = map[string]bool{"blue": true} },
	} {
		if other := handover(change); one.Equal(other) || other.Equal(one) {
			t.Errorf("another %s makes no difference", name)
		}
	}
}
