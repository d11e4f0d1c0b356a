// SPDX-License-Identifier: Apache-2.0

package paths

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/testutil"
)

// inRacks is a lab of four nodes in three racks, and the first node's network: node 4 is its
// neighbour, the others are beyond routers.
func inRacks(t *testing.T) (*network.Network, *Node) {
	t.Helper()
	lab := network.ForTest(t, network.Spec{Nodes: 4, Racks: 3, Paths: []string{"blue", "green"}, NoRoutes: true})
	return lab, openNode(t, lab.Nodes[0].Namespace)
}

func routedPaths(lab *network.Network) (plans []v1alpha1.PlanPath) {
	for i, path := range lab.Spec.Paths {
		plans = append(plans, v1alpha1.PlanPath{
			Name: v1alpha1.PathName(path), Interfaces: []v1alpha1.InterfacePattern{v1alpha1.InterfacePattern(path)}, Underlay: v1alpha1.UnderlayRouted,
			AddressRanges: []v1alpha1.CIDR{v1alpha1.CIDR(lab.Spec.PathRange(i, 4)), v1alpha1.CIDR(lab.Spec.PathRange(i, 6))},
		})
	}
	return plans
}

func peersIn(lab *network.Network) (peers []Peer) {
	for _, node := range lab.Nodes[1:] {
		peer := Peer{Name: node.NodeName(), Paths: map[string]PeerPath{}, Confirmed: true}
		for i, path := range lab.Spec.Paths {
			addresses := []netip.Addr{netip.MustParseAddr(node.Address(i, 4)), netip.MustParseAddr(node.Address(i, 6))}
			peer.Paths[path] = PeerPath{Addresses: addresses, Up: true}
			peer.Addresses = append(peer.Addresses, addresses...)
		}
		peer.OfNode = peer.Paths["blue"].Addresses
		peers = append(peers, peer)
	}
	return peers
}

func TestNextHopsOnRoutedPathsAreThoseOfTheNICsOwnRoutes(t *testing.T) {
	lab, node := inRacks(t)
	resolution, err := node.Resolve(Query{Paths: routedPaths(lab)})
	require.NoError(t, err)
	peers := peersIn(lab)
	led := node.Lead(resolution.Paths, peers)
	require.Empty(t, peers[0].Paths["green"].Routers, "what was given is as it was")
	for _, peer := range led {
		for path, there := range peer.Paths {
			require.Len(t, there.Addresses, 2, "%s on %s: %s", peer.Name, path, there.Unled)
		}
	}
	green := led[0].Paths["green"]
	require.Equal(t, netip.MustParseAddr("10.21.1.254"), green.NextHop(green.Addresses[0]))
	require.Equal(t, netip.MustParseAddr("fd00:21:0:1::fe"), green.NextHop(green.Addresses[1]))
	neighbour := led[2].Paths["green"]
	require.Equal(t, neighbour.Addresses[0], neighbour.NextHop(neighbour.Addresses[0]))
	require.Empty(t, neighbour.Routers)
}

// Hosts with several NICs often route by the address that a packet comes from.
func TestRulesOfPolicyRoutingSayWhichRouterLeadsThere(t *testing.T) {
	lab, node := inRacks(t)
	here := lab.Nodes[0]
	for _, line := range [][]string{
		{"route", "del", "10.21.0.0/16"},
		{"route", "add", "default", "via", "10.21.1.253", "dev", "green", "table", "101"},
		{"rule", "add", "from", here.Address(1, 4), "table", "101"},
	} {
		out, err := here.Run("ip", line...)
		require.NoError(t, err, out)
	}
	resolution, err := node.Resolve(Query{Paths: routedPaths(lab)})
	require.NoError(t, err)
	green := node.Lead(resolution.Paths, peersIn(lab))[0].Paths["green"]
	require.Equal(t, netip.MustParseAddr("10.21.1.253"), green.NextHop(green.Addresses[0]))
}

func TestChangesOfOtherTablesAreSeenWherePathsAreRouted(t *testing.T) {
	lab, node := inRacks(t)
	resolution, err := node.Resolve(Query{Paths: routedPaths(lab)})
	require.NoError(t, err)
	node.Lead(resolution.Paths, peersIn(lab)) // routed they are, from now on
	changes, err := node.Watch(t.Context())
	require.NoError(t, err)
	expectNotification(t, changes)
	time.Sleep(10 * quiet) // what is told together with it
	for len(changes) > 0 {
		<-changes
	}
	asked := 0
	ask := node.routers.ask
	node.routers.ask = func(to, from netip.Addr, nic int) (netip.Addr, error) {
		asked++
		return ask(to, from, nic)
	}
	node.Lead(resolution.Paths, peersIn(lab))
	require.Equal(t, 8, asked, "two peers beyond two routers, by both versions of IP")
	testutil.Retry(t, 10*time.Second, func() error { // the kernel may still tell of addresses
		before := asked
		if node.Lead(resolution.Paths, peersIn(lab)); asked > before {
			return fmt.Errorf("the kernel is asked again, %d times, though nothing changes", asked-before)
		}
		return nil
	})
	for _, line := range [][]string{
		{"route", "add", "default", "via", "10.21.1.253", "dev", "green", "table", "101"},
		{"rule", "add", "from", lab.Nodes[0].Address(1, 4), "table", "101"},
	} {
		out, err := lab.Nodes[0].Run("ip", line...)
		require.NoError(t, err, out)
		expectNotification(t, changes)
	}
	green := node.Lead(resolution.Paths, peersIn(lab))[0].Paths["green"]
	require.Equal(t, netip.MustParseAddr("10.21.1.253"), green.NextHop(green.Addresses[0]))
	resolution.Paths[0].Up = false
	asked = 0
	node.Lead(resolution.Paths, peersIn(lab))
	require.Equal(t, 4, asked, "of the path that is up")
}

func expectNotification(t *testing.T, changes <-chan struct{}) {
	t.Helper()
	select {
	case <-changes:
	case <-time.After(10 * time.Second):
		t.Fatal("nothing is told")
	}
}

func TestWhatNoRouterLeadsToIsLeftOut(t *testing.T) {
	lab, node := inRacks(t)
	out, err := lab.Nodes[0].Run("ip", "route", "del", "10.21.0.0/16")
	require.NoError(t, err, out)
	resolution, err := node.Resolve(Query{Paths: routedPaths(lab)})
	require.NoError(t, err)
	peers := peersIn(lab)
	far := netip.MustParseAddr("198.51.100.7") // the default route leads there, and the path does not
	peers[1].Paths["blue"] = PeerPath{Addresses: []netip.Addr{far}, Up: true}
	led := node.Lead(resolution.Paths, peers)
	require.Equal(t, "10.21.2.2 of node2 has no route by green over a router", led[0].Paths["green"].Unled)
	require.Len(t, led[0].Paths["green"].Addresses, 1)
	require.Equal(t, "198.51.100.7 of node3 is not in the path's addressRanges", led[1].Paths["blue"].Unled)
	require.Empty(t, led[1].Paths["blue"].Addresses)
	peers[1].OfNode = peers[1].OfNode[:1]
	require.Equal(t, "fd00:21:0:3::3 of node3 is of another version of IP than its Node's addresses", node.Lead(resolution.Paths, peers)[1].Paths["green"].Unled)

	resolution.TellOfRouters(led, nil, OwnPods{})
	messages := map[string]string{}
	for _, path := range resolution.Paths {
		require.True(t, path.Usable, path.Name)
		messages[path.Name] = path.Message
	}
	const alone = " leads over routers to node2, node3: they do not know pods' addresses, and this node has no overlay (VXLAN, Geneve, IP in IP) to take there; Braid's own encapsulation needs pods whose addresses are in the Nodes' spec.podCIDRs or the chart's controller.podRanges"
	require.Equal(t, map[string]string{
		"blue":  "blue does not lead everywhere: 198.51.100.7 of node3 is not in the path's addressRanges; blue leads over routers to node2: they do not know pods' addresses, and this node has no overlay (VXLAN, Geneve, IP in IP) to take there; Braid's own encapsulation needs pods whose addresses are in the Nodes' spec.podCIDRs or the chart's controller.podRanges",
		"green": "green does not lead everywhere: 10.21.2.2 of node2 has no route by green over a router, 10.21.3.3 of node3 has no route by green over a router; green" + alone,
	}, messages)

	resolution, err = node.Resolve(Query{Paths: routedPaths(lab)})
	require.NoError(t, err)
	again := node.Lead(resolution.Paths, peersIn(lab))
	resolution.Tunnels = []Tunnel{{Name: "flannel.1", Kind: TunnelVXLAN}}
	resolution.TellOfRouters(again, nil, OwnPods{})
	require.Empty(t, resolution.Paths[0].Message)
	own := []netip.Addr{netip.MustParseAddr(lab.Nodes[0].Address(0, 4)), netip.MustParseAddr(lab.Nodes[0].Address(1, 4))}
	resolution.Tunnels[0].local = own[0]
	resolution.TellOfRouters(again, own, OwnPods{})
	require.Empty(t, resolution.Paths[0].Message)
	resolution.Tunnels[0].local = own[1]
	resolution.TellOfRouters(again, own, OwnPods{})
	require.Equal(t, "blue is not used by flannel.1 over routers: that sends from 10.21.1.1, which is not the Node's first InternalIP", resolution.Paths[0].Message)
}

// Without an overlay Braid encapsulates itself, where all that needs is known.
func TestPathsTellWhomTheyEncapsulateTo(t *testing.T) {
	lab, node := inRacks(t)
	ranges := []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}
	for _, c := range []struct {
		what         string
		peers        func(peers []Peer)
		own          OwnPods
		encapsulated int
		message      string
	}{
		{"to all", func([]Peer) {}, OwnPods{Ranges: ranges}, 2, ""},
		{"to one", func(peers []Peer) { peers[0].Key = 0 }, OwnPods{Ranges: ranges}, 1, "leads over routers to node2: .*; their agents do not take Braid's own encapsulation off$"},
		{"to none", func([]Peer) {}, OwnPods{}, 0, "leads over routers to node2, node3: .*; Braid's own encapsulation needs pods"},
		{"to all, but not of all pods", func([]Peer) {}, OwnPods{Ranges: ranges, LeftOut: 3}, 2, "to and from 3 addresses of this node's pods: they are outside of the Nodes' spec.podCIDRs and the chart's"},
		{"to one whose pods are known", func(peers []Peer) { peers[1].PodRanges = nil }, OwnPods{Ranges: ranges}, 1, "leads over routers to node3: .*"},
	} {
		resolution, err := node.Resolve(Query{Paths: routedPaths(lab)})
		require.NoError(t, err)
		peers := peersIn(lab)
		for i := range peers {
			peers[i].Key, peers[i].PodRanges = 7, ranges
		}
		c.peers(peers)
		resolution.TellOfRouters(node.Lead(resolution.Paths, peers), nil, c.own)
		for _, path := range resolution.Paths {
			require.Equal(t, c.encapsulated, path.Encapsulated, c.what)
			require.EqualValues(t, c.encapsulated, path.Status().Encapsulated, c.what)
			require.Regexp(t, c.message, path.Message, c.what)
			require.Equal(t, c.message == "", path.Message == "", c.what)
		}
	}
}

func TestAPeersKeyAndPodsAreThoseOfItsObject(t *testing.T) {
	node := &v1alpha1.MPTCPNode{Spec: &v1alpha1.MPTCPNodeSpec{PodRanges: []string{"10.244.2.0/24", "fd00:244:2::/64", "nonsense", "10.0.0.7/8"}}}
	own := []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}
	peer := PeerOf(node)
	require.Equal(t, []netip.Prefix{netip.MustParsePrefix("10.244.2.0/24"), netip.MustParsePrefix("fd00:244:2::/64")}, peer.PodRanges)
	node.Spec.PodsLeftOut = 3
	require.Equal(t, OwnPods{Ranges: peer.PodRanges, LeftOut: 3}, OwnPodsOf(node))
	require.Zero(t, OwnPodsOf(&v1alpha1.MPTCPNode{}))
	require.False(t, peer.Decapsulates(own))
	for text, key := range map[string]uint64{"00000000000000ff": 255, "ffffffffffffffff": 1<<64 - 1, "": 0, "nonsense": 0, "-1": 0} {
		node.Status.EncapsulationKey = text
		peer = PeerOf(node)
		require.Equal(t, key, peer.Key, text)
		require.Equal(t, key != 0, peer.Decapsulates(own), text)
	}
}

// Packets of an overlay between other addresses are not to be changed at either end.
func TestAnOverlayThatSendsFromAnotherAddressHasNoneOfTheNode(t *testing.T) {
	ipv4, other, ipv6 := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.9"), netip.MustParseAddr("2001:db8::1")
	node := []netip.Addr{ipv4, other, ipv6}
	from := func(kind TunnelKind, local netip.Addr) []netip.Addr {
		return FromNode(node, []Tunnel{{Kind: kind, local: local}})
	}
	require.Equal(t, []netip.Addr{ipv4, ipv6}, FromNode(node, nil))
	require.Equal(t, []netip.Addr{ipv4, ipv6}, from(TunnelVXLAN, netip.Addr{}))
	require.Equal(t, []netip.Addr{ipv4, ipv6}, from(TunnelVXLAN, ipv4))
	require.Equal(t, []netip.Addr{ipv6}, from(TunnelVXLAN, other))
	require.Equal(t, []netip.Addr{ipv4}, from(TunnelIP, netip.MustParseAddr("2001:db8::9")))
	require.Equal(t, []netip.Addr{ipv4, ipv6}, from(TunnelEncrypted, other))
}

func TestSwitchedPathsAreAsTheyWere(t *testing.T) {
	lab, node := inRacks(t)
	plans := routedPaths(lab)
	for i := range plans {
		plans[i].Underlay = ""
	}
	resolution, err := node.Resolve(Query{Paths: plans})
	require.NoError(t, err)
	require.Equal(t, peersIn(lab), node.Lead(resolution.Paths, peersIn(lab)))
}

// All nodes have to agree about which of its addresses a node's overlay uses.
func TestTheOrderOfANodesAddressesIsThatOfItsAgent(t *testing.T) {
	node := &v1alpha1.MPTCPNode{Spec: &v1alpha1.MPTCPNodeSpec{}}
	for _, address := range []string{"192.0.2.7", "192.0.2.1", "192.0.2.9"} {
		node.Spec.Confirmed = append(node.Spec.Confirmed, v1alpha1.ConfirmedAddress{Address: address, Proof: v1alpha1.AddressProofNode})
	}
	node.Status.Addresses = []string{"192.0.2.9", "192.0.2.1"}
	require.Equal(t, []netip.Addr{netip.MustParseAddr("192.0.2.9"), netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.7")}, PeerOf(node).OfNode)
}
