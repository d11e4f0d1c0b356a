// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"net/netip"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netns"

	"braid.dev/braid/agent/paths"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

// overlay is how the pods of a lab reach each other: by packets within packets.
type overlay struct {
	outer int // IP version of the nodes' own packets
	// external: the routes say where to, as with Cilium, and not the device.
	external bool
	// bare: NICs and devices have no offloads, so that all checksums are made and checked.
	bare bool
	// nic is the path whose addresses the nodes use.
	nic int
}

const (
	tunnelDevice = "overlay0"
	tunnelPort   = 8472
	tunnelMTU    = 1430
)

// newOverlay is a lab of two nodes with a pod each behind tunnels. Nothing is applied.
func newOverlay(t *testing.T, o overlay) *lab {
	t.Helper()
	l := newLab(t, threePaths, 1, Options{})
	for i, node := range l.Nodes {
		o.addDevice(t, node, l.Nodes[1-i])
		pod := node.Pods[0]
		run(t, pod, "ip", "link", "set", "eth0", "mtu", strconv.Itoa(tunnelMTU))
		command(t, node, "ip", "link", "set", pod.HostInterface, "mtu", strconv.Itoa(tunnelMTU))
		if !o.bare {
			continue
		}
		run(t, pod, "ethtool", "-K", "eth0", "tx", "off")
		for _, name := range append([]string{tunnelDevice, pod.HostInterface}, threePaths...) {
			command(t, node, "ethtool", "-K", name, "tx", "off")
		}
	}
	return l
}

func command(t *testing.T, node *network.Node, name string, args ...string) {
	t.Helper()
	out, err := node.Run(name, args...)
	require.NoError(t, err, "%s %v: %s", name, args, out)
}

// addDevice makes a node's tunnel and its routes to the other one's pods, as flannel does.
func (o overlay) addDevice(t *testing.T, node, other *network.Node) {
	t.Helper()
	mac := func(node *network.Node) string { return fmt.Sprintf("0e:00:00:00:00:%02x", node.Number) }
	port := strconv.Itoa(tunnelPort)
	if o.external {
		command(t, node, "ip", "link", "add", tunnelDevice, "address", mac(node), "mtu", strconv.Itoa(tunnelMTU), "type", "vxlan", "external", "dstport", port, "udp6zerocsumrx")
	} else {
		command(t, node, "ip", "link", "add", tunnelDevice, "address", mac(node), "mtu", strconv.Itoa(tunnelMTU), "type", "vxlan", "id", "1",
			"local", node.Address(o.nic, o.outer), "remote", other.Address(o.nic, o.outer), "dstport", port, "nolearning")
	}
	command(t, node, "ip", "link", "set", tunnelDevice, "up")
	for version, network := range map[int]string{4: "10.99.0.%d/24", 6: "fd00:99::%d/64"} {
		next := netip.MustParsePrefix(fmt.Sprintf(network, other.Number)).Addr().String()
		command(t, node, "ip", "address", "add", fmt.Sprintf(network, node.Number), "dev", tunnelDevice)
		command(t, node, "ip", "neighbour", "replace", next, "lladdr", mac(other), "dev", tunnelDevice, "nud", "permanent")
		route := []string{"route", "replace", other.PodCIDR(version)}
		if o.external {
			encap := map[int]string{4: "ip", 6: "ip6"}[o.outer]
			route = append(route, "encap", encap, "id", "1", "src", node.Address(o.nic, o.outer), "dst", other.Address(o.nic, o.outer))
		}
		command(t, node, "ip", append(route, "via", next, "dev", tunnelDevice)...)
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
	type transfers struct {
		version   int
		direction traffic.Direction
	}
	cases := []struct {
		name    string
		overlay overlay
		inner   []transfers
	}{
		{"VXLAN over IPv4", overlay{outer: 4}, []transfers{{4, traffic.Up}, {6, traffic.Down}}},
		{"VXLAN over IPv6", overlay{outer: 6}, []transfers{{6, traffic.Up}}},
		{"external VXLAN over IPv4", overlay{outer: 4, external: true}, []transfers{{4, traffic.Down}}},
		{"external VXLAN over IPv6", overlay{outer: 6, external: true}, []transfers{{4, traffic.Up}}},
		{"VXLAN without offloads", overlay{outer: 4, bare: true}, []transfers{{4, traffic.Up}, {6, traffic.Down}}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			l := newOverlay(t, c.overlay)
			l.applyOverlay(t)
			for _, inner := range c.inner {
				serve(t, l.Pod("pod-2-1"), inner.version)
				announce(t, l.Pod("pod-1-1"), l.Pod("pod-2-1"), inner.version, 3)
				t.Run(fmt.Sprintf("IPv%d %s", inner.version, inner.direction), func(t *testing.T) {
					l.expectSpread(t, inner.version, inner.direction)
				})
			}
		})
	}
}

// expectSpread looks up to three times: other work on the machine takes from what a
// transfer gets.
func (l *lab) expectSpread(t *testing.T, version int, direction traffic.Direction) {
	t.Helper()
	sender := map[traffic.Direction]int{traffic.Up: 0, traffic.Down: 1}[direction]
	options := traffic.Options{Duration: time.Second, Warmup: 500 * time.Millisecond, Verify: true, Direction: direction}
	var result *traffic.Result
	for range 3 {
		sent := l.sent(t, sender, func() {
			result = transfer(t, l.Pod("pod-1-1"), l.Pod("pod-2-1"), version, options)
		})
		t.Logf("%.1f Mbit/s, sent %v", result.Mbit, sent)
		if result.Mbit >= 2.5*l.onOnePath() && result.Multipath && result.Subflows == 3 {
			sent.expectShares(t, "the sender", evenShares)
			return
		}
	}
	t.Errorf("%.1f Mbit/s over %d subflows, multipath %t", result.Mbit, result.Subflows, result.Multipath)
}

// onOnePath is what a connection gets of one link in an overlay, as it was measured.
func (l *lab) onOnePath() float64 { return 0.9 * float64(l.Spec.LinkMbit) }
