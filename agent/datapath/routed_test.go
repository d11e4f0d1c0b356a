// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netns"

	"braid.dev/braid/agent/paths"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

// newRacks is a lab of three racks with a node each: every path has a subnet in each of
// them, and a router that knows these and no others. An overlay is between the nodes' addresses on the first
// path. Its packets are taken by their ends alone if they come from such an address, as filters of
// cluster networks have it.
func newRacks(t *testing.T, overlay network.Overlay) *lab {
	t.Helper()
	l := newLabOf(t, network.Spec{Nodes: 3, Racks: 3, Paths: threePaths, LinkMbit: 100, PodsPerNode: 1, Overlay: overlay}, Options{})
	filter := map[int]string{4: "iptables", 6: "ip6tables"}[overlay.Outer]
	for _, node := range l.Nodes {
		out, err := node.Run(filter, "-A", "INPUT", "-p", "udp", "--dport", fmt.Sprint(network.TunnelPort), "!", "-s", l.Spec.PathRange(0, overlay.Outer), "-j", "DROP")
		require.NoError(t, err, out)
	}
	return l
}

// applyRouted applies what the agent finds of paths that routers join.
func (l *lab) applyRouted(t *testing.T) {
	t.Helper()
	for i, state := range l.states(t) {
		l.apply(t, i, l.routed(t, i, state))
	}
}

func (l *lab) routed(t *testing.T, i int, state State) State {
	t.Helper()
	namespace, err := netns.GetFromPath(l.Nodes[i].Path())
	require.NoError(t, err)
	defer namespace.Close()
	found, err := paths.Open(namespace)
	require.NoError(t, err)
	defer found.Close()
	var query paths.Query
	for p, path := range l.Spec.Paths {
		plan := v1alpha1.PlanPath{Name: v1alpha1.PathName(path), Underlay: v1alpha1.UnderlayRouted}
		for _, version := range l.Versions() {
			plan.AddressRanges = append(plan.AddressRanges, v1alpha1.CIDR(l.Spec.PathRange(p, version)))
		}
		query.Paths = append(query.Paths, plan)
	}
	resolution, err := found.Resolve(query)
	require.NoError(t, err)
	for p := range state.Paths {
		at := resolution.Paths[p]
		require.Equal(t, state.Paths[p].Name, at.Name)
		require.Equal(t, state.Paths[p].Interface, at.Index)
		state.Paths[p].Routed, state.Paths[p].Addresses, state.Paths[p].MTU = at.Routed, at.Addresses, at.MTU
	}
	for p := range state.Peers {
		state.Peers[p].OfNode = l.inCluster(p, i)
	}
	state.NodeAddresses = l.ownAddresses(i)
	state.Tunnels, state.Peers = resolution.Tunnels, found.Lead(resolution.Paths, state.Peers)
	return state
}

// inCluster are the addresses that the peer with this index has in its Node, as seen by a node.
func (l *lab) inCluster(peer, node int) []netip.Addr {
	if peer >= node {
		peer++
	}
	return l.ownAddresses(peer)
}

func (l *lab) ownAddresses(node int) (addresses []netip.Addr) {
	for _, version := range l.Versions() {
		addresses = append(addresses, netip.MustParseAddr(l.Nodes[node].Address(0, version)))
	}
	return addresses
}

func TestConnectionsOverRoutersFillAllPaths(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		overlay network.Overlay
		offload func(l *lab, t *testing.T)
		inner   []transfers
	}{
		{"VXLAN over IPv4", network.Overlay{Outer: 4}, nil, []transfers{{4, traffic.Up}, {6, traffic.Down}}},
		{"VXLAN over IPv6", network.Overlay{Outer: 6}, nil, []transfers{{4, traffic.Up}}},
		{"external VXLAN over IPv4", network.Overlay{Outer: 4, External: true}, nil, []transfers{{4, traffic.Down}}},
		{"VXLAN without offloads", network.Overlay{Outer: 4}, (*lab).withoutOffloads, []transfers{{4, traffic.Up}}},
		{"VXLAN of pods without offloads", network.Overlay{Outer: 4}, (*lab).withoutPodsOffloads, []transfers{{4, traffic.Up}}},
		{"VXLAN over IPv6 of pods without offloads", network.Overlay{Outer: 6}, (*lab).withoutPodsOffloads, []transfers{{4, traffic.Up}}},
		{"VXLAN over IPv6 without offloads", network.Overlay{Outer: 6}, (*lab).withoutOffloads, []transfers{{4, traffic.Down}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newRacks(t, c.overlay)
			if c.offload != nil {
				c.offload(l, t)
			}
			l.applyRouted(t)
			large := l.sizes(t, func() { l.expectTransfers(t, c.inner) })
			if c.offload == nil && large < 1600 {
				t.Errorf("packets were cut: they had %d bytes on average", large)
			}
			l.expectNoChecksumErrors(t)
		})
	}
}

// sizes is the average size of what the NICs of green took while f ran: both nodes' larger one,
// since the other one acknowledges.
func (l *lab) sizes(t *testing.T, f func()) (largest uint64) {
	t.Helper()
	count := func() (all []network.Counters) {
		for _, node := range l.Nodes[:2] {
			counters, err := l.NICCounters(node)
			require.NoError(t, err)
			all = append(all, counters["green"])
		}
		return all
	}
	before := count()
	f()
	for i, after := range count() {
		largest = max(largest, (after.TxBytes-before[i].TxBytes)/max(1, after.TxPackets-before[i].TxPackets))
	}
	t.Logf("packets of green have %d bytes on average", largest)
	return largest
}

// withoutPodsOffloads leaves it to the NICs to finish the outer checksums: the inner ones are
// whole.
func (l *lab) withoutPodsOffloads(t *testing.T) {
	t.Helper()
	l.least = 1.2
	for _, node := range l.Nodes {
		run(t, node.Pods[0], "ethtool", "-K", "eth0", "tx", "off")
	}
}

// expectNoChecksumErrors asks all kernels that looked at checksums.
func (l *lab) expectNoChecksumErrors(t *testing.T) {
	t.Helper()
	for _, node := range l.Nodes {
		for _, namespace := range []*network.Namespace{node.Namespace, node.Pods[0].Namespace} {
			out, err := namespace.Run("nstat", "-asz", "TcpInCsumErrors", "UdpInCsumErrors", "Udp6InCsumErrors")
			require.NoError(t, err, out)
			for _, name := range []string{"TcpInCsumErrors", "UdpInCsumErrors", "Udp6InCsumErrors"} {
				require.Regexp(t, name+` +0 `, out, namespace.Name)
			}
		}
	}
}

// A router that dies takes no carrier from anybody. The flows leave its path by themselves.
func TestConnectionsOutliveARouter(t *testing.T) {
	t.Parallel()
	for _, dying := range threePaths[:2] { // the overlay's own path, and another
		t.Run(dying, func(t *testing.T) {
			l := newRacks(t, network.Overlay{Outer: 4})
			l.applyRouted(t)
			serve(t, l.Pod("pod-2-1"), 4)
			announce(t, l.Pod("pod-1-1"), l.Pod("pod-2-1"), 4, 3)
			running := start(t, l.Pod("pod-1-1"), l.Pod("pod-2-1"), 4, traffic.Options{Duration: 3 * time.Second, Verify: true, Bin: 10 * time.Millisecond})
			running.awaitSubflows(t, 3)
			running.at(time.Second)
			require.NoError(t, l.SetRouter(dying, false))
			result := running.wait(t)
			t.Logf("%.1f Mbit/s, longest stop %s", result.Mbit, longestStop(result))
			if stop := longestStop(result); stop > 2*time.Second {
				t.Errorf("nothing arrived for %s", stop)
			}
			if !result.Multipath {
				t.Error("the connection is no longer MPTCP's")
			}
		})
	}
}
