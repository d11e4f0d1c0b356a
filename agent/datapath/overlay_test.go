// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netns"

	"braid.dev/braid/agent/paths"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

// newOverlay is a lab of two nodes with a pod each, whose packets are carried in others.
// Nothing is applied.
func newOverlay(t *testing.T, overlay network.Overlay) *lab {
	t.Helper()
	return newLabOf(t, network.Spec{Nodes: 2, Paths: threePaths, LinkMbit: 100, PodsPerNode: 1, Overlay: overlay}, Options{})
}

// withoutOffloads has all checksums made and checked, as on wires.
func (l *lab) withoutOffloads(t *testing.T) {
	t.Helper()
	l.least = 1.2 // it is the processor that limits them
	for _, node := range l.Nodes {
		run(t, node.Pods[0], "ethtool", "-K", "eth0", "tx", "off")
		for _, name := range append([]string{network.TunnelDevice, node.Pods[0].HostInterface}, threePaths...) {
			out, err := node.Run("ethtool", "-K", name, "tx", "off")
			require.NoError(t, err, out)
		}
	}
}

// layDevices has the nodes' pods reach each other by devices of this type, with an address
// for each end where they are Ethernet's.
func (l *lab) layDevices(t *testing.T, kind string, outer int) {
	t.Helper()
	const device = "tunnel9"
	mac := func(node *network.Node) string { return fmt.Sprintf("02:f2:00:00:00:%02x", node.Number) }
	for i, node := range l.Nodes {
		other := l.Nodes[1-i]
		ip := func(arguments string, values ...any) (string, error) {
			return node.Run("ip", strings.Fields(fmt.Sprintf(arguments, values...))...)
		}
		ends := fmt.Sprintf("local %s remote %s", node.Address(0, outer), other.Address(0, outer))
		if kind == "geneve" {
			ends = fmt.Sprintf("id 1 remote %s udpcsum", other.Address(0, outer))
		}
		if out, err := ip("link add %s mtu 1400 type %s %s", device, kind, ends); err != nil {
			t.Skipf("this kernel has no such devices: %s", out)
		}
		lines := []string{"link set " + device + " up", "link set " + node.Pods[0].HostInterface + " mtu 1400"}
		if kind == "geneve" {
			lines = append(lines, "link set "+device+" address "+mac(node))
		}
		for version, ends := range map[int]string{4: "10.99.0.%d/24", 6: "fd00:99::%d/64"} {
			next, _, _ := strings.Cut(fmt.Sprintf(ends, other.Number), "/")
			lines = append(lines, fmt.Sprintf("address add "+ends+" dev %s", node.Number, device))
			if kind == "geneve" {
				lines = append(lines, fmt.Sprintf("neighbour replace %s lladdr %s dev %s nud permanent", next, mac(other), device))
			}
			lines = append(lines, fmt.Sprintf("route replace %s via %s dev %s", other.PodCIDR(version), next, device))
		}
		for _, line := range lines {
			out, err := ip("%s", line)
			require.NoError(t, err, "%s: %s", line, out)
		}
		run(t, node.Pods[0], "ip", "link", "set", "eth0", "mtu", "1400")
	}
}

// applyOverlay applies the states with the tunnels that the agent finds.
func (l *lab) applyOverlay(t *testing.T) {
	t.Helper()
	for i, state := range l.states(t) {
		state.Tunnels = l.findTunnels(t, i)
		l.apply(t, i, state)
	}
}

func (l *lab) findTunnels(t *testing.T, node int) []paths.Tunnel {
	t.Helper()
	namespace, err := netns.GetFromPath(l.Nodes[node].Path())
	require.NoError(t, err)
	defer namespace.Close()
	found, err := paths.Open(namespace)
	require.NoError(t, err)
	defer found.Close()
	resolution, err := found.Resolve(paths.Query{})
	require.NoError(t, err)
	return resolution.Tunnels
}

func TestConnectionsInAnOverlayFillAllPaths(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name    string
		overlay network.Overlay
		bare    bool // without offloads
		inner   []transfers
	}{
		{"VXLAN over IPv4", network.Overlay{Outer: 4}, false, []transfers{{4, traffic.Up}, {6, traffic.Down}}},
		{"VXLAN over IPv6", network.Overlay{Outer: 6}, false, []transfers{{6, traffic.Up}}},
		{"external VXLAN over IPv4", network.Overlay{Outer: 4, External: true}, false, []transfers{{4, traffic.Down}}},
		{"external VXLAN over IPv6", network.Overlay{Outer: 6, External: true}, false, []transfers{{4, traffic.Up}}},
		{"VXLAN without offloads", network.Overlay{Outer: 4}, true, []transfers{{4, traffic.Up}, {6, traffic.Down}}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			l := newOverlay(t, c.overlay)
			if c.bare {
				l.withoutOffloads(t)
			}
			l.expectSpreads(t, c.inner)
		})
	}
}

func TestConnectionsInAnOverlayOfIPv6AloneFillAllPaths(t *testing.T) {
	l := newLabOf(t, network.Spec{Nodes: 2, Paths: threePaths, LinkMbit: 100, PodsPerNode: 1, IPv6: true, Overlay: network.Overlay{Outer: 6}}, Options{})
	l.expectSpreads(t, []transfers{{6, traffic.Up}, {6, traffic.Down}})
}

// A node may lack the version of IP on a path in which the overlay sends.
func TestAPathWithoutAnAddressForTheOverlayCarriesNothingOfIt(t *testing.T) {
	for _, outer := range []int{4, 6} {
		t.Run(fmt.Sprintf("IPv%d", outer), func(t *testing.T) {
			l := newOverlay(t, network.Overlay{Outer: outer})
			for i, state := range l.states(t) {
				state.Tunnels = l.findTunnels(t, i)
				lacking := state.Peers[0].Paths["green"]
				lacking.Addresses = slices.DeleteFunc(lacking.Addresses, func(a netip.Addr) bool { return a.Is4() == (outer == 4) })
				state.Peers[0].Paths["green"] = lacking
				l.apply(t, i, state)
			}
			l.serveAll(t, []transfers{{4, traffic.Up}})
			var result *traffic.Result
			sent := l.sent(t, 0, func() {
				result = transfer(t, l.Pod("pod-1-1"), l.Pod("pod-2-1"), 4, l.spreading(traffic.Up))
			})
			require.True(t, result.Multipath)
			require.Less(t, sent.share("green"), 0.01, "%v", sent)
			require.Greater(t, min(sent.share("blue"), sent.share("red")), 0.2, "%v", sent)
		})
	}
}

// hostEnds are the ends of a connection of which one is a node's own process, in no overlay.
func (l *lab) hostEnds(fromHost bool) (client, server *network.Pod) {
	if fromHost {
		node := l.Nodes[0]
		return &network.Pod{Namespace: node.Namespace, IPv4: node.Address(0, 4), Node: node}, l.Pod("pod-2-1")
	}
	node := l.Nodes[1]
	return l.Pod("pod-1-1"), &network.Pod{Namespace: node.Namespace, IPv4: node.Address(0, 4), Node: node}
}

// Pods with hostNetwork have their node's address. What a pod sends there is in no tunnel, and may be
// masqueraded; what such a pod sends to others is in one.
func TestPeersInTheNetworkOfTheirNodeAreReachedBesideAnOverlay(t *testing.T) {
	for _, c := range []struct {
		name                  string
		fromHost, masqueraded bool
	}{{"from a pod", false, false}, {"from a pod, masqueraded", false, true}, {"from a node", true, false}} {
		t.Run(c.name, func(t *testing.T) {
			l := newOverlay(t, network.Overlay{Outer: 4})
			l.applyOverlay(t)
			if c.masqueraded {
				out, err := l.Nodes[0].Run("iptables", "-t", "nat", "-A", "POSTROUTING", "-s", l.Nodes[0].PodCIDR(4), "!", "-d", "10.244.0.0/16", "-j", "MASQUERADE")
				require.NoError(t, err, out)
			}
			client, server := l.hostEnds(c.fromHost)
			serve(t, server, 4)
			var result *traffic.Result
			sent := l.sent(t, 0, func() { result = transfer(t, client, server, 4, l.spreading(traffic.Up)) })
			t.Logf("%.1f Mbit/s by %d subflows, sent %v", result.Mbit, result.Subflows, sent)
			require.True(t, result.Multipath)
			require.Greater(t, result.Mbit, 0.7*float64(l.Spec.LinkMbit))
		})
	}
}

func TestTheNICOfAnOverlayNeedNotBeOneOfAPath(t *testing.T) {
	const nic = "base"
	l := newLabOf(t, network.Spec{
		Nodes: 2, Paths: append([]string{nic}, threePaths...), LinkMbit: 100, PodsPerNode: 1, Overlay: network.Overlay{Outer: 4},
	}, Options{})
	for i, state := range l.states(t) {
		index, err := l.Nodes[i].Index(nic)
		require.NoError(t, err)
		state.Tunnels, state.Uplinks = l.findTunnels(t, i), []int{index}
		for e := range state.Endpoints {
			state.Endpoints[e].Paths = state.Endpoints[e].Paths[1:]
		}
		l.apply(t, i, without(state, nic))
	}
	serve(t, l.Pod("pod-2-1"), 4)
	announce(t, l.Pod("pod-1-1"), l.Pod("pod-2-1"), 4, 3)
	for _, direction := range []traffic.Direction{traffic.Up, traffic.Down} {
		l.expectSpread(t, 4, direction)
	}
}

// Devices that not every kernel has.
func TestConnectionsInOtherTunnelsFillAllPaths(t *testing.T) {
	for _, c := range []struct {
		kind  string
		outer int
		inner []transfers
	}{
		{"geneve", 4, []transfers{{4, traffic.Up}, {6, traffic.Down}}},
		{"geneve", 6, []transfers{{4, traffic.Down}}},
		{"ipip", 4, []transfers{{4, traffic.Up}, {4, traffic.Down}}},
		{"sit", 4, []transfers{{6, traffic.Up}}},
		{"ip6tnl", 6, []transfers{{4, traffic.Up}, {6, traffic.Down}}},
	} {
		t.Run(fmt.Sprintf("%s over IPv%d", c.kind, c.outer), func(t *testing.T) {
			l := newOverlay(t, network.Overlay{})
			l.layDevices(t, c.kind, c.outer)
			l.least = leastOfOtherTunnels
			l.measureAlone(t, c.inner)
			l.expectSpreads(t, c.inner)
		})
	}
}

// leastOfOtherTunnels is how many times what one path carries a connection gets of three, in guests
// whose processor is emulated.
const leastOfOtherTunnels = 2.5

// measureAlone measures what a connection gets before there is a datapath: one path.
func (l *lab) measureAlone(t *testing.T, inner []transfers) {
	t.Helper()
	l.alone = map[transfers]float64{}
	l.serveAll(t, inner)
	for _, inner := range inner {
		l.alone[inner] = transfer(t, l.Pod("pod-1-1"), l.Pod("pod-2-1"), inner.version, l.spreading(inner.direction)).Mbit
	}
}

// transfers are of one version of IP, in one direction.
type transfers struct {
	version   int
	direction traffic.Direction
}

func (l *lab) expectSpreads(t *testing.T, inner []transfers) {
	t.Helper()
	l.applyOverlay(t)
	l.expectTransfers(t, inner)
}

func (l *lab) expectTransfers(t *testing.T, inner []transfers) {
	t.Helper()
	l.serveAll(t, inner)
	for _, inner := range inner {
		t.Run(fmt.Sprintf("IPv%d %s", inner.version, inner.direction), func(t *testing.T) {
			l.expectSpread(t, inner.version, inner.direction)
		})
	}
}

// serveAll answers in all versions of IP that are used, and gives connections three subflows.
func (l *lab) serveAll(t *testing.T, inner []transfers) {
	t.Helper()
	// With them there is no room to announce an IPv6 address and a port.
	require.NoError(t, l.Pod("pod-2-1").Sysctl("net.ipv4.tcp_timestamps", "0"))
	for _, inner := range inner {
		if !l.served[inner.version] {
			serve(t, l.Pod("pod-2-1"), inner.version)
			announce(t, l.Pod("pod-1-1"), l.Pod("pod-2-1"), inner.version, 3)
			l.served[inner.version] = true
		}
	}
}

func (l *lab) spreading(direction traffic.Direction) traffic.Options {
	return traffic.Options{Duration: time.Second, Warmup: 500 * time.Millisecond, Verify: true, Direction: direction}
}

// expectSpread looks up to three times: other work on the machine takes from what a
// transfer gets.
func (l *lab) expectSpread(t *testing.T, version int, direction traffic.Direction) {
	t.Helper()
	sender := map[traffic.Direction]int{traffic.Up: 0, traffic.Down: 1}[direction]
	single := l.onOnePath(transfers{version, direction})
	var result *traffic.Result
	for range 3 {
		sent := l.sent(t, sender, func() {
			result = transfer(t, l.Pod("pod-1-1"), l.Pod("pod-2-1"), version, l.spreading(direction))
		})
		t.Logf("%.1f Mbit/s, %.3f of three times %.1f, sent %v", result.Mbit, result.Mbit/3/single, single, sent)
		if result.Mbit >= cmp.Or(l.least, 2.5)*single && result.Multipath && result.Subflows == 3 {
			sent.expectShares(t, "the sender", evenShares)
			return
		}
	}
	t.Errorf("%.1f Mbit/s over %d subflows, multipath %t", result.Mbit, result.Subflows, result.Multipath)
}

// onOnePath is what a connection gets of one link in an overlay, as it was measured: here, or once
// of VXLAN.
func (l *lab) onOnePath(of transfers) float64 {
	return cmp.Or(l.alone[of], 0.9*float64(l.Spec.LinkMbit))
}
