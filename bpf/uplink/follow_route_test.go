// SPDX-License-Identifier: Apache-2.0

package uplink_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/bpf/uplink"
)

// A virtual machine moves to another node with its address.
func TestAFlowGoesToThePeerThatTheRouteLeadsToNow(t *testing.T) {
	const otherPeer = thePeer + 1
	n := newNode(t)
	leadTo := func(peer uint32) {
		for _, version := range versions {
			put(t, n.maps.PeerAddresses, address(netip.MustParseAddr(nodeAddress(blue, 2, version))), peer)
		}
	}
	eachRole(t, n, func(t *testing.T, e ends) {
		other := lookup[uplink.ToUplinkPeer](t, n.maps.Peers, uint32(thePeer))
		other.Ipv4Paths, other.Ipv6Paths = 1<<red, 1<<red
		put(t, n.maps.Peers, uint32(otherPeer), *other)

		leadTo(otherPeer)
		n.requireGoesBy(t, green, e.sends(100), "new data while the node's clock stands")
		// By the program's own clock, which may be late where the host took processors away.
		sent := n.mustFlow(t, e.out()).Unanswered
		by := n.goesBy(t, e.sends(100))
		if took := tick(t) - sent; took <= uplink.Patience { // by then nothing counts as repeated
			require.Equal(t, pathNames[green], pathNames[by], "data that is repeated at once")
		} else {
			t.Logf("data was not repeated at once, but after %d ticks, by %s", took, pathNames[by])
		}
		time.Sleep(quiet)
		n.setAnswered(t, green, tick(t)) // to others: the node that the machine has left is alive
		n.requireGoesBy(t, red, e.sends(100), "data that is repeated")
		require.EqualValues(t, otherPeer, n.mustFlow(t, e.out()).Peer)

		leadTo(thePeer)
		n.requireGoesBy(t, red, e.sends(200), "new data while the node's clock stands")
		n.setClock(t, 16)
		n.requireGoesBy(t, green, e.sends(300), "when the clock has moved")

		clearMap[uplink.ToUplinkAddress](t, n.maps.PeerAddresses)
		n.setClock(t, 32)
		n.setAnswered(t, green, tick(t)) // however long that took
		n.requireGoesBy(t, green, e.sends(400), "where the route leads to no peer")
		require.EqualValues(t, thePeer, n.mustFlow(t, e.out()).Peer)
		for path := range paths {
			for _, version := range versions {
				put(t, n.maps.PeerAddresses, address(netip.MustParseAddr(nodeAddress(path, 2, version))), uint32(thePeer))
			}
		}
	})
}

// The node that it left is shut down, and nothing waits for an answer: what the old peer's
// paths do not take the cluster network delivers.
func TestAFlowWhosePeerNoPathLeadsToGoesWhereTheRouteLeads(t *testing.T) {
	const otherPeer = thePeer + 1
	n := newNode(t)
	eachRole(t, n, func(t *testing.T, e ends) {
		other := *lookup[uplink.ToUplinkPeer](t, n.maps.Peers, uint32(thePeer))
		put(t, n.maps.Peers, uint32(otherPeer), other)
		for _, version := range versions {
			put(t, n.maps.PeerAddresses, address(netip.MustParseAddr(nodeAddress(blue, 2, version))), uint32(otherPeer))
		}
		n.requireGoesBy(t, green, e.sends(100), "while paths lead to the peer")
		n.setPeer(t, 0)
		n.egress(t, blue, e.sends(200).frame())
		n.requireGoesBy(t, green, e.sends(300), "what comes after the first that no path took")
		require.EqualValues(t, otherPeer, n.mustFlow(t, e.out()).Peer)
	})
}
