// SPDX-License-Identifier: Apache-2.0

package paths

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"braid.dev/braid/api/v1alpha1"
)

const linkUp = unix.IFF_UP | unix.IFF_LOWER_UP

// fakeNIC is an interface and its addresses.
type fakeNIC struct {
	name      string
	kind      string // of `ip link`; "device" for hardware
	encap     string // "ether" if empty
	flags     uint32
	mtu       int // 1500 if 0
	addresses []string
	flagged   map[string]int // flags of addresses
	scoped    map[string]int // scopes of addresses
	master    int            // the index of the interface that it is a port of
}

func (f fakeNIC) link(index int) netlink.Link {
	attributes := netlink.NewLinkAttrs()
	attributes.Name, attributes.Index, attributes.RawFlags, attributes.MTU = f.name, index, f.flags, f.mtu
	attributes.EncapType, attributes.MasterIndex = f.encap, f.master
	attributes.HardwareAddr = net.HardwareAddr{2, 0, 0, 0, 0, byte(index)}
	if f.mtu == 0 {
		attributes.MTU = 1500
	}
	if f.encap == "" {
		attributes.EncapType = "ether"
	}
	if f.kind == "veth" {
		return &netlink.Veth{LinkAttrs: attributes}
	}
	if f.kind == "" || f.kind == "device" {
		return &netlink.Device{LinkAttrs: attributes}
	}
	return &netlink.GenericLink{LinkAttrs: attributes, LinkType: f.kind}
}

// fakeCandidates numbers the interfaces from 1.
func fakeCandidates(t *testing.T, nics []fakeNIC) []*candidate {
	t.Helper()
	var links []netlink.Link
	var addresses []netlink.Addr
	for i, nic := range nics {
		links = append(links, nic.link(i+1))
		for _, text := range nic.addresses {
			address, err := netlink.ParseAddr(text)
			if err != nil {
				t.Fatal(err)
			}
			address.LinkIndex, address.Flags, address.Scope = i+1, nic.flagged[text], nic.scoped[text]
			addresses = append(addresses, *address)
		}
	}
	return candidates(links, addresses)
}

func byName(path string, patterns ...v1alpha1.InterfacePattern) v1alpha1.PlanPath {
	return v1alpha1.PlanPath{Name: v1alpha1.PathName(path), Interfaces: patterns}
}

func byRange(path string, ranges ...v1alpha1.CIDR) v1alpha1.PlanPath {
	return v1alpha1.PlanPath{Name: v1alpha1.PathName(path), AddressRanges: ranges}
}

func ready(name string, addresses ...string) fakeNIC {
	return fakeNIC{name: name, flags: linkUp, addresses: addresses}
}

// summary is a path as a line: its name, its NIC, + if usable, its message.
func summary(p Path) string {
	usable := "-"
	if p.Usable {
		usable = "+"
	}
	return strings.TrimRight(p.Name+" "+usable+p.NIC.Name+" "+p.Message, " ")
}

func TestResolvePaths(t *testing.T) {
	for name, test := range map[string]struct {
		plans []v1alpha1.PlanPath
		nics  []fakeNIC
		want  []string
	}{
		"a NIC is found by its name": {
			plans: []v1alpha1.PlanPath{byName("blue", "eth1")},
			nics:  []fakeNIC{ready("eth0", "192.0.2.1/24"), ready("eth1", "198.51.100.1/24")},
			want:  []string{"blue +eth1"},
		},
		"a NIC is found by one of several patterns": {
			plans: []v1alpha1.PlanPath{byName("blue", "eth1", "ens*f0")},
			nics:  []fakeNIC{ready("ens3f1", "192.0.2.1/24"), ready("ens3f0", "198.51.100.1/24")},
			want:  []string{"blue +ens3f0"},
		},
		"a NIC is found by an address of either family": {
			plans: []v1alpha1.PlanPath{byRange("blue", "192.0.2.0/24"), byRange("green", "2001:db8::/32")},
			nics:  []fakeNIC{ready("a", "203.0.113.1/24", "2001:db8::1/64"), ready("b", "192.0.2.1/24")},
			want:  []string{"blue +b", "green +a"},
		},
		"name and range must both hold": {
			plans: []v1alpha1.PlanPath{{Name: "blue", Interfaces: []v1alpha1.InterfacePattern{"eth*"}, AddressRanges: []v1alpha1.CIDR{"192.0.2.0/24"}}},
			nics:  []fakeNIC{ready("eth0", "198.51.100.1/24"), ready("eth1", "192.0.2.1/24"), ready("wlan0", "192.0.2.2/24")},
			want:  []string{"blue +eth1"},
		},
		"nothing that matches is said so, with what was looked for": {
			plans: []v1alpha1.PlanPath{
				byName("blue", "eth1", "ens*"),
				{Name: "green", Interfaces: []v1alpha1.InterfacePattern{"eth*"}, AddressRanges: []v1alpha1.CIDR{"192.0.2.0/24"}},
				byRange("red", "2001:db8::/32"),
			},
			nics: []fakeNIC{ready("eth0", "198.51.100.1/24")},
			want: []string{
				"blue - no NIC is called eth1 or ens*",
				"green - no NIC is called eth* and has an address in 192.0.2.0/24",
				"red - no NIC has an address in 2001:db8::/32",
			},
		},
		"of several NICs the first by name is used, and the others are named": {
			plans: []v1alpha1.PlanPath{byName("blue", "eth*")},
			nics:  []fakeNIC{ready("eth2", "192.0.2.1/24"), ready("eth1", "198.51.100.1/24")},
			want:  []string{"blue +eth1 eth1 is used, the first by name; also matching: eth2"},
		},
		"of very many NICs only some are named": {
			plans: []v1alpha1.PlanPath{byName("blue", "*")},
			nics: []fakeNIC{
				ready("a", "192.0.2.1/24"), ready("b"), ready("c"), ready("d"), ready("e"), ready("f"),
			},
			want: []string{"blue +a a is used, the first by name; also matching: b, c, d and 2 more"},
		},
		"loopback forms no path": {
			plans: []v1alpha1.PlanPath{byName("blue", "lo"), byRange("green", "192.0.2.0/24")},
			nics:  []fakeNIC{{name: "lo", encap: "loopback", flags: linkUp | unix.IFF_LOOPBACK, mtu: 65536, addresses: []string{"192.0.2.1/32"}}},
			want:  []string{"blue - no NIC is called lo", "green - no NIC has an address in 192.0.2.0/24"},
		},
		"a pattern prefers a NIC to a pod's interface": {
			plans: []v1alpha1.PlanPath{byName("blue", "*")},
			nics: []fakeNIC{
				{name: "cali1", kind: "veth", flags: linkUp},
				{name: "cali2", kind: "veth", flags: linkUp, addresses: []string{"169.254.1.1/32"}},
				{name: "cali3", kind: "veth", flags: linkUp, addresses: []string{"10.1.1.1/32"}},
				ready("eth0", "192.0.2.1/24"),
			},
			want: []string{"blue +eth0 eth0 is used, the first by name; also matching: cali1, cali2, cali3"},
		},
		"a veth may be a NIC": {
			plans: []v1alpha1.PlanPath{byName("blue", "*")},
			nics: []fakeNIC{
				{name: "nic0", kind: "veth", flags: linkUp, addresses: []string{"192.0.2.1/24"}}, ready("z", "198.51.100.1/24"),
			},
			want: []string{"blue +nic0 nic0 is used, the first by name; also matching: z"},
		},
		"a tunnel is used only under its own name": {
			plans: []v1alpha1.PlanPath{byName("any", "*"), byName("named", "wg0")},
			nics: []fakeNIC{
				{name: "wg0", kind: "wireguard", encap: "none", flags: linkUp, addresses: []string{"192.0.2.1/24"}},
				{name: "vx0", kind: "vxlan", flags: linkUp, addresses: []string{"198.51.100.1/24"}},
			},
			want: []string{"any - no NIC is called *", "named +wg0"},
		},
		"a NIC stays with the first path by name, whatever their order": {
			plans: []v1alpha1.PlanPath{byName("green", "eth*"), byName("blue", "eth0")},
			nics:  []fakeNIC{ready("eth0", "192.0.2.1/24"), ready("eth1", "198.51.100.1/24")},
			want:  []string{"blue +eth0", "green - eth0 is the first NIC that qualifies, but belongs to path blue already"},
		},
		"a port of a bond or a bridge is of no use, and its owner is named": {
			plans: []v1alpha1.PlanPath{byName("blue", "eth1"), byName("green", "eth2")},
			nics: []fakeNIC{
				{name: "bond0", kind: "bond", flags: linkUp, addresses: []string{"192.0.2.1/24"}},
				{name: "br0", kind: "bridge", flags: linkUp},
				{name: "eth1", flags: linkUp, master: 1},
				{name: "eth2", flags: linkUp, master: 2, addresses: []string{"198.51.100.1/24"}},
			},
			want: []string{
				"blue -eth1 eth1 belongs to bond0 (bond), which has what comes in there: name bond0 in the MPTCPPath, or take eth1 out of it",
				"green -eth2 eth2 belongs to br0 (bridge), which has what comes in there: name br0 in the MPTCPPath, or take eth2 out of it",
			},
		},
		// As accelerated NICs of clouds: the port is first by name, and has the same hardware address.
		"a pattern passes the ports of bonds and the like over": {
			plans: []v1alpha1.PlanPath{byName("blue", "e*"), byName("green", "bond?", "p?")},
			nics: []fakeNIC{
				{name: "enP1s1", flags: linkUp, master: 2}, ready("eth0", "192.0.2.1/24"),
				{name: "bond0", kind: "bond", flags: linkUp, addresses: []string{"198.51.100.1/24"}},
				{name: "p1", flags: linkUp, master: 3}, {name: "p2", flags: linkUp, master: 3},
			},
			want: []string{"blue +eth0", "green +bond0"},
		},
		"a NIC in a VRF keeps what comes in": {
			plans: []v1alpha1.PlanPath{byName("blue", "eth0")},
			nics:  []fakeNIC{{name: "eth0", flags: linkUp, master: 2, addresses: []string{"192.0.2.1/24"}}, {name: "vrf0", kind: "vrf", flags: linkUp}},
			want:  []string{"blue +eth0"},
		},
		"down says why": {
			plans: []v1alpha1.PlanPath{byName("blue", "eth0"), byName("green", "eth1")},
			nics: []fakeNIC{
				{name: "eth0", addresses: []string{"192.0.2.1/24"}},
				{name: "eth1", flags: unix.IFF_UP, addresses: []string{"198.51.100.1/24"}},
			},
			want: []string{"blue -eth0 eth0 is set down", "green -eth1 eth1 has no carrier"},
		},
		"a NIC without a usable address is of no use": {
			plans: []v1alpha1.PlanPath{byName("blue", "eth0")},
			nics: []fakeNIC{{
				name: "eth0", flags: linkUp, addresses: []string{"fe80::1/64", "169.254.7.7/16", "2001:db8::1/64", "2001:db8::2/64", "192.0.2.1/24"},
				scoped:  map[string]int{"fe80::1/64": unix.RT_SCOPE_LINK, "192.0.2.1/24": unix.RT_SCOPE_LINK},
				flagged: map[string]int{"2001:db8::1/64": unix.IFA_F_TENTATIVE, "2001:db8::2/64": unix.IFA_F_DEPRECATED},
			}},
			want: []string{"blue -eth0 eth0 has no global address: give it one"},
		},
		"a NIC with a smaller MTU than another gets no subflows": {
			plans: []v1alpha1.PlanPath{byName("blue", "eth0"), byName("green", "eth1")},
			nics: []fakeNIC{
				{name: "eth0", flags: linkUp, mtu: 9000, addresses: []string{"192.0.2.1/24"}},
				{name: "eth1", flags: linkUp, mtu: 1500, addresses: []string{"198.51.100.1/24"}},
			},
			want: []string{"blue +eth0", "green -eth1 eth1 has an MTU of 1500 bytes where another has 9000: packets would not fit, give all paths the same MTU"},
		},
		"a path that cannot be read forms nothing, and the others work": {
			plans: []v1alpha1.PlanPath{byName("blue", "eth0"), byRange("bad", "192.0.2.0/99")},
			nics:  []fakeNIC{ready("eth0", "192.0.2.1/24")},
			want: []string{
				`bad - reading address range "192.0.2.0/99": netip.ParsePrefix("192.0.2.0/99"): prefix length out of range`,
				"blue +eth0",
			},
		},
		"a complaint stands before an oddity": {
			plans: []v1alpha1.PlanPath{byName("blue", "eth*")},
			nics:  []fakeNIC{{name: "eth0", flags: unix.IFF_UP, addresses: []string{"192.0.2.1/24"}}, ready("eth1", "198.51.100.1/24")},
			want:  []string{"blue -eth0 eth0 has no carrier; eth0 is used, the first by name; also matching: eth1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			result := resolve(Query{Paths: test.plans}, fakeCandidates(t, test.nics), nil, familiesSeen{})
			var got []string
			for _, path := range result.Paths {
				got = append(got, summary(path))
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("paths (-want +got):\n%s", diff)
			}
		})
	}
}

func TestInterfacesThatBraidMakesFormNoPath(t *testing.T) {
	queue := fakeNIC{name: QueuePrefix + "0", kind: "veth", flags: linkUp, addresses: []string{"192.0.2.9/24"}}
	end := fakeNIC{name: QueueEndPrefix + "12", kind: "veth", flags: linkUp, addresses: []string{"192.0.2.10/24"}}
	all := fakeCandidates(t, []fakeNIC{queue, end, ready("braidqueue", "192.0.2.2/24"), ready("eth0", "192.0.2.1/24")})
	for name, test := range map[string]struct {
		plan v1alpha1.PlanPath
		want string
	}{
		"by a pattern":           {byName("blue", "braid?*"), "blue +braidqueue"},
		"by a pattern for all":   {byName("blue", "*0"), "blue +eth0"},
		"by their very names":    {byName("blue", v1alpha1.InterfacePattern(queue.name), v1alpha1.InterfacePattern(end.name)), "blue - no NIC is called braidq0 or braidx12"},
		"by an address":          {byRange("blue", "192.0.2.9/32", "192.0.2.10/32"), "blue - no NIC has an address in 192.0.2.9/32 or 192.0.2.10/32"},
		"as what the route uses": {byName("blue", "none"), "blue - no NIC is called none"},
	} {
		t.Run(name, func(t *testing.T) {
			query := Query{Paths: []v1alpha1.PlanPath{test.plan}, NodeAddresses: addrs("192.0.2.9", "192.0.2.10")}
			got := resolve(query, all, nil, familiesSeen{})
			if text := summary(got.Paths[0]); text != test.want {
				t.Errorf("got %q, want %q", text, test.want)
			}
			if len(got.Uplinks) > 0 {
				t.Errorf("uplinks: %+v", got.Uplinks)
			}
		})
	}
}

func TestAddressesOfAPathComeInAStableOrder(t *testing.T) {
	nic := fakeNIC{
		name: "eth0", flags: linkUp,
		addresses: []string{
			"2001:db8::9/64", "2001:db8::8/64", "203.0.113.1/32", "198.51.100.2/24", "198.51.100.1/24", "192.0.2.1/24", "2001:db8::7/64",
		},
		flagged: map[string]int{"198.51.100.1/24": unix.IFA_F_SECONDARY, "2001:db8::7/64": unix.IFA_F_TEMPORARY},
	}
	plan := byRange("blue", "2001:db8::8/128", "192.0.2.0/24")
	result := resolve(Query{Paths: []v1alpha1.PlanPath{plan}}, fakeCandidates(t, []fakeNIC{nic}), nil, familiesSeen{})
	want := []string{ // in range, IPv4 first; a VIP after the networks; a secondary after its primary
		"192.0.2.1", "2001:db8::8", "198.51.100.2", "198.51.100.1", "203.0.113.1", "2001:db8::9",
	}
	if diff := cmp.Diff(want, result.Paths[0].Status().Addresses); diff != "" {
		t.Errorf("addresses (-want +got):\n%s", diff)
	}
}

func routeVia(index int, destination, gateway string) netlink.Route {
	prefix := netip.MustParsePrefix(destination)
	return netlink.Route{
		Table: unix.RT_TABLE_MAIN, Type: unix.RTN_UNICAST, LinkIndex: index, Dst: ipNet(prefix), Gw: net.ParseIP(gateway),
		Family: familyOf(prefix.Addr()),
	}
}

func TestResolveUplinks(t *testing.T) {
	peers := []Peer{{Name: "b", Addresses: addrs("192.0.2.2"), Paths: map[string]PeerPath{"blue": {Addresses: addrs("2001:db8::2")}}}}
	nics := []fakeNIC{
		ready("eth0", "192.0.2.1/24"), // 1
		ready("eth1", "198.51.100.1/24"),
		ready("eth2", "2001:db8::1/64"),
		{name: "tunl0", kind: "ipip", encap: "ipip", flags: linkUp, addresses: []string{"10.244.0.1/32"}}, // 4
		{name: "lo", encap: "loopback", flags: linkUp | unix.IFF_LOOPBACK, addresses: []string{"203.0.113.1/32"}},
		{name: "eth3", addresses: []string{"203.0.113.9/24"}},
	}
	for name, test := range map[string]struct {
		plans  []v1alpha1.PlanPath
		node   []netip.Addr
		routes []netlink.Route
		want   []string
	}{
		"none if nothing routes":                     {},
		"the NIC that holds an InternalIP":           {node: addrs("198.51.100.1"), want: []string{"eth1"}},
		"also while it is down":                      {node: addrs("203.0.113.9"), want: []string{"eth3"}},
		"not loopback, whatever it holds":            {node: addrs("203.0.113.1")},
		"the NIC of a route to a peer":               {routes: []netlink.Route{routeVia(1, "10.0.0.0/8", "192.0.2.2")}, want: []string{"eth0"}},
		"the NIC of a route to a peer's path":        {routes: []netlink.Route{routeVia(3, "2001:db8:1::/48", "2001:db8::2")}, want: []string{"eth2"}},
		"not that of a route to a stranger":          {routes: []netlink.Route{routeVia(1, "10.0.0.0/8", "192.0.2.77")}},
		"not a tunnel that ends at a peer":           {routes: []netlink.Route{routeVia(4, "10.0.0.0/8", "192.0.2.2")}},
		"not a NIC that is on a path":                {plans: []v1alpha1.PlanPath{byName("blue", "eth0")}, routes: []netlink.Route{routeVia(1, "10.0.0.0/8", "192.0.2.2")}},
		"each NIC once, sorted by name":              {node: addrs("198.51.100.1", "192.0.2.1"), routes: []netlink.Route{routeVia(1, "10.0.0.0/8", "192.0.2.2")}, want: []string{"eth0", "eth1"}},
		"the NICs of all next hops of one route":     {routes: []netlink.Route{multipath("10.0.0.0/8", hopTo(1, "192.0.2.2"), hopTo(2, "192.0.2.2"))}, want: []string{"eth0", "eth1"}},
		"only the next hops that lead to a peer":     {routes: []netlink.Route{multipath("10.0.0.0/8", hopTo(1, "192.0.2.3"), hopTo(2, "192.0.2.2"))}, want: []string{"eth1"}},
		"nothing by routes that are not in use here": {routes: []netlink.Route{inTable(7, routeVia(1, "10.0.0.0/8", "192.0.2.2"))}},
	} {
		t.Run(name, func(t *testing.T) {
			query := Query{Paths: test.plans, NodeAddresses: test.node, Peers: peers}
			result := resolve(query, fakeCandidates(t, nics), test.routes, familiesSeen{})
			var got []string
			for _, uplink := range result.Uplinks {
				got = append(got, uplink.Name)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("uplinks (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAPathMustFitWhatAnotherUplinkSends(t *testing.T) {
	nics := []fakeNIC{ready("eth0", "192.0.2.1/24"), {name: "eth1", flags: linkUp, mtu: 9000, addresses: []string{"198.51.100.1/24"}}}
	query := Query{Paths: []v1alpha1.PlanPath{byName("blue", "eth0")}, NodeAddresses: addrs("198.51.100.1")}
	path := resolve(query, fakeCandidates(t, nics), nil, familiesSeen{}).Paths[0]
	if path.Usable || !strings.Contains(path.Message, "MTU of 1500 bytes where another has 9000") {
		t.Errorf("got %s", summary(path))
	}
	nics[1].flags = 0
	if down := resolve(query, fakeCandidates(t, nics), nil, familiesSeen{}).Paths[0]; !down.Usable {
		t.Errorf("an uplink that is down sends nothing, yet: %s", summary(down))
	}
	status := path.Status()
	if status.State != v1alpha1.LinkUp || status.Addresses != nil {
		t.Errorf("a NIC that is up but too small must invite no packets: %+v", status)
	}
}

func TestALostAddressFamilyIsSaidUntilItIsBack(t *testing.T) {
	seen := familiesSeen{}
	steps := []struct {
		nic  fakeNIC
		want string
	}{
		{ready("eth0", "192.0.2.1/24", "2001:db8::1/64"), "blue +eth0"},
		{fakeNIC{name: "eth0", addresses: []string{"192.0.2.1/24"}}, "blue -eth0 eth0 is set down"},
		{ready("eth0", "192.0.2.1/24"), "blue +eth0 eth0 has lost its IPv6 addresses"},
		{ready("eth0", "192.0.2.1/24", "2001:db8::1/64"), "blue +eth0"},
		{ready("eth0", "2001:db8::1/64"), "blue +eth0 eth0 has lost its IPv4 addresses"},
		{ready("eth0"), "blue -eth0 eth0 has lost its IPv4 and IPv6 addresses; eth0 has no global address: give it one"},
		{ready("eth1", "192.0.2.1/24"), "blue +eth1"}, // another NIC never had more
	}
	for i, step := range steps {
		result := resolve(Query{Paths: []v1alpha1.PlanPath{byName("blue", "eth*")}}, fakeCandidates(t, []fakeNIC{step.nic}), nil, seen)
		if got := summary(result.Paths[0]); got != step.want {
			t.Errorf("step %d: got %q, want %q", i, got, step.want)
		}
	}
}

func TestStatusOfAPath(t *testing.T) {
	for name, test := range map[string]struct {
		path Path
		want v1alpha1.NodePath
	}{
		"a working NIC": {
			path: Path{Name: "blue", Usable: true, NIC: NIC{Name: "eth0", Index: 2, Up: true, Addresses: prefixes("192.0.2.1/24", "2001:db8::1/64")}},
			want: v1alpha1.NodePath{Name: "blue", Interface: "eth0", State: v1alpha1.LinkUp, Addresses: []string{"192.0.2.1", "2001:db8::1"}},
		},
		"a NIC that is down keeps its addresses": {
			path: Path{Name: "blue", Message: "eth0 has no carrier", NIC: NIC{Name: "eth0", Index: 2, Addresses: prefixes("192.0.2.1/24")}},
			want: v1alpha1.NodePath{Name: "blue", Interface: "eth0", State: v1alpha1.LinkDown, Addresses: []string{"192.0.2.1"}, Message: "eth0 has no carrier"},
		},
		"no NIC": {
			path: Path{Name: "blue", Message: "no NIC is called eth9"},
			want: v1alpha1.NodePath{Name: "blue", State: v1alpha1.LinkDown, Message: "no NIC is called eth9"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, test.path.Status()); diff != "" {
				t.Errorf("status (-want +got):\n%s", diff)
			}
		})
	}
}

func TestStatusIsCappedAsTheAPIWants(t *testing.T) {
	var many []netip.Prefix
	for i := range 100 {
		many = append(many, netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), 24))
	}
	path := Path{Name: "blue", Usable: true, NIC: NIC{Name: "eth0", Index: 2, Up: true, Addresses: many}}
	if got := len(path.Status().Addresses); got != 16 {
		t.Errorf("got %d addresses of a path, want 16", got)
	}
	resolution := Resolution{Paths: []Path{path}}
	texts := resolution.Addresses(addrs("198.51.100.1", "192.0.2.0"))
	if len(texts) != 64 || texts[0] != "198.51.100.1" || texts[1] != "192.0.2.0" || texts[2] != "192.0.2.1" {
		t.Errorf("got %d addresses of a node: %v", len(texts), texts)
	}
}

func TestPeerOf(t *testing.T) {
	node := &v1alpha1.MPTCPNode{}
	node.Name = "b"
	node.Status.Addresses = []string{"192.0.2.2", "nonsense", "::ffff:198.51.100.2", strings.Repeat("1", 1<<20)}
	node.Status.Paths = []v1alpha1.NodePath{
		{Name: "blue", State: v1alpha1.LinkUp, Addresses: []string{"2001:db8::2", "192.0.2.254", "192.0.2.2", "fe80::2%eth0"}},
		{Name: "green", State: v1alpha1.LinkDown},
		{Name: "red", State: v1alpha1.LinkUp},
	}
	compare := func(what string, want, got Peer) {
		if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{}), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	compare("as its agent says", Peer{Name: "b", Addresses: addrs("192.0.2.2", "198.51.100.2"), Paths: map[string]PeerPath{
		"blue": {Addresses: addrs("2001:db8::2", "192.0.2.254", "192.0.2.2"), Up: true}, "green": {}, "red": {Up: true},
	}}, UnconfirmedPeerOf(node))
	compare("not judged", Peer{Name: "b", Confirmed: true, Paths: map[string]PeerPath{"blue": {Up: true}, "green": {}, "red": {Up: true}}}, PeerOf(node))
	node.Spec = &v1alpha1.MPTCPNodeSpec{Confirmed: []v1alpha1.ConfirmedAddress{
		{Address: "192.0.2.2", Path: "blue", Proof: v1alpha1.AddressProofNode}, {Address: "2001:db8::2", Path: "blue", Proof: v1alpha1.AddressProofRange},
		{Address: "203.0.113.2", Path: "green", Proof: v1alpha1.AddressProofFirstClaim}, {Address: "203.0.113.3", Path: "red"},
	}}
	compare("confirmed", Peer{
		Name: "b", Confirmed: true, Addresses: addrs("192.0.2.2", "2001:db8::2", "203.0.113.2", "203.0.113.3"), OfNode: addrs("192.0.2.2"),
		Paths: map[string]PeerPath{
			"blue":  {Addresses: addrs("2001:db8::2", "192.0.2.2"), Up: true},
			"green": {Addresses: addrs("203.0.113.2")}, // lost with its NIC, perhaps
			"red":   {Up: true},
		},
	}, PeerOf(node))
}

// FuzzParseAddress: whatever an agent writes becomes one form of an address, or none.
func FuzzParseAddress(f *testing.F) {
	for _, text := range []string{"192.0.2.1", "::ffff:192.0.2.1", "fe80::1%eth0", "2001:DB8::0:1", "01.2.3.4", ""} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		address, ok := parseAddress(text)
		if !ok {
			return
		}
		if again, ok := parseAddress(address.String()); !ok || again != address || address.Is4In6() || address.Zone() != "" || len(text) > maxAddressText {
			t.Errorf("%q became %v", text, address)
		}
	})
}

func addrs(texts ...string) (addresses []netip.Addr) {
	for _, text := range texts {
		addresses = append(addresses, netip.MustParseAddr(text))
	}
	return addresses
}

func prefixes(texts ...string) (list []netip.Prefix) {
	for _, text := range texts {
		list = append(list, netip.MustParsePrefix(text))
	}
	return list
}

func hopTo(index int, gateway string) *netlink.NexthopInfo {
	return &netlink.NexthopInfo{LinkIndex: index, Gw: net.ParseIP(gateway)}
}

func multipath(destination string, hops ...*netlink.NexthopInfo) netlink.Route {
	route := routeVia(0, destination, "0.0.0.0")
	route.Gw, route.MultiPath = nil, hops
	return route
}

func inTable(table int, route netlink.Route) netlink.Route {
	route.Table = table
	return route
}

func TestTunnelsAreToldByWhatTheyPutPacketsInto(t *testing.T) {
	up := func(name, kind string) netlink.LinkAttrs {
		return netlink.LinkAttrs{Name: name, Index: 7, RawFlags: linkUp, EncapType: kind}
	}
	down := up("tunl0", "ipip")
	down.RawFlags = 0
	for name, test := range map[string]struct {
		link netlink.Link
		want []Tunnel
	}{
		"VXLAN":                 {&netlink.Vxlan{LinkAttrs: up("flannel.1", "ether"), Port: 8472, VtepDevIndex: 2}, []Tunnel{{Name: "flannel.1", Index: 7, Kind: TunnelVXLAN, Port: 8472, device: 2}}},
		"external VXLAN":        {&netlink.Vxlan{LinkAttrs: up("cilium_vxlan", "ether"), Port: 8472, FlowBased: true}, []Tunnel{{Name: "cilium_vxlan", Index: 7, Kind: TunnelVXLAN, Port: 8472}}},
		"Geneve":                {&netlink.Geneve{LinkAttrs: up("cilium_geneve", "ether"), Dport: 6081}, []Tunnel{{Name: "cilium_geneve", Index: 7, Kind: TunnelGeneve, Port: 6081}}},
		"IP in IP":              {&netlink.Iptun{LinkAttrs: up("tunl0", "ipip")}, []Tunnel{{Name: "tunl0", Index: 7, Kind: TunnelIP}}},
		"IP in IP that is down": {&netlink.Iptun{LinkAttrs: down}, nil},
		"IP in IP in UDP":       {&netlink.Iptun{LinkAttrs: up("fou", "ipip"), EncapType: 1}, []Tunnel{{Name: "fou", Index: 7, Kind: TunnelUnknown}}},
		"WireGuard":             {&netlink.Wireguard{LinkAttrs: up("wg0", "none")}, []Tunnel{{Name: "wg0", Index: 7, Kind: TunnelEncrypted}}},
		"GRE":                   {&netlink.Gretun{LinkAttrs: up("gre1", "gre")}, []Tunnel{{Name: "gre1", Index: 7, Kind: TunnelUnknown}}},
		"a NIC":                 {&netlink.Device{LinkAttrs: up("eth0", "ether")}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, test.want, resolve(Query{}, candidates([]netlink.Link{test.link}, nil), nil, familiesSeen{}).Tunnels)
		})
	}
}

// No path has the NIC, and its address is none of the Node's.
func TestTheNICOfATunnelIsAnUplink(t *testing.T) {
	vxlan := &netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{Name: "flannel.1", Index: 9, RawFlags: linkUp, EncapType: "ether"}, SrcAddr: net.ParseIP("192.0.2.1")}
	all := append(fakeCandidates(t, []fakeNIC{ready("eth0", "192.0.2.1/24"), ready("eth1", "198.51.100.1/24")}), candidates([]netlink.Link{vxlan}, nil)...)
	result := resolve(Query{Paths: []v1alpha1.PlanPath{byName("blue", "eth1")}}, all, nil, familiesSeen{})
	require.Len(t, result.Uplinks, 1)
	require.Equal(t, "eth0", result.Uplinks[0].Name)
}
