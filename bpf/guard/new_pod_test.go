// SPDX-License-Identifier: Apache-2.0

package guard_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"braid.dev/braid/bpf/guard"
	"braid.dev/braid/internal/lab/network"
)

// fresh is the row of a pod that nobody knows yet.
const fresh = 1000

// newPod is an interface with routes to addresses, and nothing else that tells whose
// it is.
type newPod struct {
	end      uint32
	own      []netip.Addr // IPv4 and IPv6
	neighbor []netip.Addr // likewise, of another such pod
}

var versionOf = map[bool]string{true: "net.ipv4.ip_forward", false: "net.ipv6.conf.all.forwarding"}

func (n *node) newPod(t testing.TB, allowance guard.MeterAllowance) newPod {
	t.Helper()
	for _, forwarding := range versionOf {
		require.NoError(t, n.Sysctl(forwarding, "1"))
	}
	ip := netip.MustParseAddr
	p := newPod{n.routed(t, "new", "10.244.1.20", "fd00:244:1::20"), []netip.Addr{ip("10.244.1.20"), ip("fd00:244:1::20")}, []netip.Addr{ip("10.244.1.21"), ip("fd00:244:1::21")}}
	n.routed(t, "other", "10.244.1.21", "fd00:244:1::21")
	for _, address := range []string{"192.0.2.1/24", "2001:db8::1/64"} {
		require.NoError(t, n.AddAddress("blue", address))
	}
	require.NoError(t, n.AddRoute(network.Route{Destination: "0.0.0.0/0", Gateway: "192.0.2.254", Interface: "blue"}))
	require.NoError(t, n.AddRoute(network.Route{Destination: "::/0", Gateway: "2001:db8::fe", Interface: "blue"}))
	n.allow(t, fresh, allowance)
	require.NoError(t, n.maps.Interfaces.Put(p.end, uint32(fresh)))
	return p
}

// routed is an interface to which the node routes these addresses.
func (n *node) routed(t testing.TB, name string, addresses ...string) uint32 {
	t.Helper()
	require.NoError(t, network.Connect(n.Namespace, name, network.NamespaceForTest(t), name, network.Options{}))
	for _, address := range addresses {
		prefix := netip.MustParseAddr(address)
		require.NoError(t, n.AddRoute(network.Route{Destination: netip.PrefixFrom(prefix, prefix.BitLen()).String(), Interface: name}))
	}
	index, err := n.Index(name)
	require.NoError(t, err)
	return uint32(index)
}

func TestSourcesOfANewPodAreThoseThatAreRoutedToIt(t *testing.T) {
	n := newNode(t)
	p := n.newPod(t, guard.MeterAllowance{Flags: guard.SpoofCheck | guard.NewPod})
	ip := netip.MustParseAddr
	tagged := func(from netip.Addr, tags ...uint16) []byte {
		return datagram{from: from, size: 60, tags: tags}.frame()
	}
	for name, test := range map[string]struct {
		frame    []byte
		expected verdict
	}{
		"its IPv4 address":               {whole(p.own[0], 100), next},
		"its IPv6 address":               {whole(p.own[1], 100), next},
		"another new pod's IPv4 address": {whole(p.neighbor[0], 100), dropped},
		"another new pod's IPv6 address": {whole(p.neighbor[1], 100), dropped},
		"a known pod's IPv4 address":     {whole(addressesOf[one][0], 100), dropped},
		"a known pod's IPv6 address":     {whole(addressesOf[one][1], 100), dropped},
		"the node's IPv4 address":        {whole(ip("192.0.2.1"), 100), dropped},
		"the node's IPv6 address":        {whole(ip("2001:db8::1"), 100), dropped},
		"a stranger's IPv4 address":      {whole(ip("203.0.113.7"), 100), dropped},
		"a stranger's IPv6 address":      {whole(ip("2001:db8:1::1"), 100), dropped},
		"loopback":                       {whole(ip("127.0.0.1"), 100), dropped},
		"IPv6's loopback":                {whole(ip("::1"), 100), dropped},
		"a broadcast":                    {whole(ip("255.255.255.255"), 100), dropped},
		"its IPv4 address mapped":        {datagram{from: netip.AddrFrom16(p.own[0].As16()), size: 60}.frame6(), dropped},
		"link-local IPv6":                {whole(ip("fe80::1234"), 100), next},
		"no address yet, IPv6":           {whole(ip("::"), 100), next},
		"no address yet, IPv4":           {whole(ip("0.0.0.0"), 100), next},
		"ARP":                            {arp(p.neighbor[0]), next},
		"its IPv4 address in a VLAN":     {tagged(p.own[0], etherVLAN), next},
		"its IPv6 address in two VLANs":  {tagged(p.own[1], etherQinQ, etherVLAN), next},
		"another's IPv4 in a VLAN":       {tagged(p.neighbor[0], etherVLAN), dropped},
		"another's IPv6 in two VLANs":    {tagged(p.neighbor[1], etherQinQ, etherVLAN), dropped},
		"whatever behind more tags":      {tagged(p.own[0], etherVLAN, etherVLAN, etherVLAN), dropped},
		"a later fragment of another's":  {datagram{from: p.neighbor[0], size: 60, fragment: 0x00b9}.frame(), dropped},
	} {
		t.Run(name, func(t *testing.T) {
			before := n.usage(t, fresh).SpoofedPackets
			v := n.run(t, n.source, test.frame, skBuff{Ifindex: p.end})
			if v != test.expected {
				t.Errorf("the verdict is %d instead of %d", v, test.expected)
			}
			if counted := n.usage(t, fresh).SpoofedPackets > before; counted != (v == dropped) {
				t.Errorf("it was counted: %t", counted)
			}
		})
	}
}

func TestRoutesToANewPodMayLeadToItsBridge(t *testing.T) {
	n := newNode(t)
	p := n.newPod(t, guard.MeterAllowance{Flags: guard.SpoofCheck | guard.NewPod})
	require.NoError(t, n.Do(func() error {
		bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "cni0", Flags: 1}}
		return netlink.LinkAdd(bridge)
	}))
	require.NoError(t, n.SetUp("cni0"))
	require.NoError(t, n.AddRoute(network.Route{Destination: "10.250.0.0/24", Interface: "cni0"}))
	bridge, err := n.Index("cni0")
	require.NoError(t, err)
	ofBridge := whole(netip.MustParseAddr("10.250.0.7"), 100)
	if v := n.run(t, n.source, ofBridge, skBuff{Ifindex: p.end}); v != dropped {
		t.Errorf("an address of a bridge that does not have the interface: %d", v)
	}
	require.NoError(t, n.routedBy.Put(p.end, uint32(bridge)))
	for what, test := range map[string]struct {
		frame    []byte
		expected verdict
	}{
		"of the bridge": {ofBridge, next}, "its own": {whole(p.own[0], 100), next}, "another's": {whole(p.neighbor[0], 100), dropped},
		"of nobody": {whole(netip.MustParseAddr("127.0.0.1"), 100), dropped},
	} {
		if v := n.run(t, n.source, test.frame, skBuff{Ifindex: p.end}); v != test.expected {
			t.Errorf("%s: the verdict is %d instead of %d", what, v, test.expected)
		}
	}
}

func TestANewPodWithoutSpoofCheckMaySendFromAnyAddress(t *testing.T) {
	n := newNode(t)
	p := n.newPod(t, guard.MeterAllowance{Flags: guard.NewPod})
	for _, from := range p.neighbor {
		if v := n.run(t, n.source, whole(from, 100), skBuff{Ifindex: p.end}); v != next {
			t.Errorf("from %v: the verdict is %d", from, v)
		}
	}
}

// What a new pod sends is charged by its interface, whatever its source; behind a bridge
// it is charged where it comes from.
func TestANewPodIsHeldToItsRate(t *testing.T) {
	const mbit, bytes = 2, 1000
	for name, flags := range map[string]uint32{"at the NIC": guard.NewPod, "where it enters the node": guard.NewPod | guard.ChargedAtEntry} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			p := n.newPod(t, guard.MeterAllowance{Flags: flags, Price: price(mbit * 1e6)})
			begin, passed := time.Now(), 0
			for i := range 400 {
				frame := whole(p.own[i%2], bytes)
				v := n.run(t, n.source, frame, skBuff{Ifindex: p.end})
				if v == next && flags&guard.ChargedAtEntry == 0 {
					v = n.leaves(t, frame, p.end)
				}
				if v == next {
					passed++
				}
			}
			most := mbit*1e6/8*(time.Since(begin).Seconds()+0.05)/bytes + 2
			least := mbit * 1e6 / 8 * 0.05 / bytes
			if float64(passed) > most || float64(passed) < least {
				t.Errorf("%d frames passed, and between %.0f and %.0f may", passed, least, most)
			}
			var dropped uint64
			for _, packets := range n.usage(t, fresh).DroppedPackets {
				dropped += packets
			}
			if int(dropped) != 400-passed {
				t.Errorf("%d frames were dropped, and %d are counted", 400-passed, dropped)
			}
		})
	}
}
