// SPDX-License-Identifier: Apache-2.0

package health

import (
	"net/netip"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/internal/lab/network"
)

// racks are two nodes in a rack each, that probe each other over the routers of their paths.
func racks(t *testing.T, version int) (lab *network.Network, a, b *machine) {
	t.Helper()
	lab, nodes := cluster(t, network.Spec{Nodes: 2, Racks: 2, Paths: twoPaths, NoRoutes: true})
	a, b = nodes[0], nodes[1]
	for i, n := range nodes {
		var listeners []Listener
		var targets []Target
		other := nodes[1-i]
		for p, path := range twoPaths {
			listeners = append(listeners, Listener{n.nic(t, p), n.address(t, p, version), true})
			router := map[int]string{4: "10.2" + strconv.Itoa(p) + "." + strconv.Itoa(i+1) + ".254", 6: "fd00:2" + strconv.Itoa(p) + ":0:" + strconv.Itoa(i+1) + "::fe"}
			targets = append(targets, Target{
				Peer: other.NodeName(), Path: path, Interface: n.nic(t, p), Active: true, Routed: true,
				Local: n.address(t, p, version), Remote: other.address(t, p, version), Router: netip.MustParseAddr(router[version]),
			})
		}
		n.responder.SetListeners(listeners)
		n.prober.SetTargets(targets)
	}
	a.awaitState(t, "node2", "blue", Alive)
	a.awaitState(t, "node2", "green", Alive)
	return lab, a, b
}

func TestProbesGoOverRoutersAndFindOutThatOneIsGone(t *testing.T) {
	for _, version := range []int{4, 6} {
		t.Run("IPv"+strconv.Itoa(version), func(t *testing.T) {
			lab, a, b := racks(t, version)
			a.doubtNeighboursSoon(t, strconv.Itoa(version), "blue")
			b.doubtNeighboursSoon(t, strconv.Itoa(version), "blue")
			require.NoError(t, lab.SetRouter("blue", false))
			lost := func(s Sample) bool { return s.State == Dead && s.Lost }
			a.await(t, "node2", "blue", "dead and lost", lost)
			b.await(t, "node1", "blue", "dead and lost", lost)
			require.Equal(t, Alive, a.prober.View().Sample("node2", "green").State)
			require.NoError(t, lab.SetRouter("blue", true))
			found := func(s Sample) bool { return s.State == Alive && !s.Lost }
			a.await(t, "node2", "blue", "alive and not lost", found)
			b.await(t, "node1", "blue", "alive and not lost", found)
		})
	}
}

func TestOnARoutedPathProbesMayHavePassedFewRouters(t *testing.T) {
	_, a, b := racks(t, 4)
	request := packet{kind: kindRequest, nonce: 0x1122334455667788}.bytes()
	to := netip.AddrPortFrom(b.address(t, 0, 4), DefaultPort)
	for sent, answered := range map[int]bool{255: true, 248: true, 247: false, 64: false} { // one router is on the way
		by := datagrams(t, a.Namespace, netip.AddrPortFrom(a.address(t, 0, 4), 0))
		hops(t, by, sent)
		require.Equal(t, answered, len(replies(t, by, to, request[:])) > 0, "with a hop limit of %d", sent)
	}
}

// Of several peers behind one router each is told of its end.
func TestARouterThatCannotBeResolvedConcernsAllPeersBehindIt(t *testing.T) {
	s := simulate(usual, 2, true, "blue", "green")
	router := netip.MustParseAddr("192.0.2.254")
	wanted := append(pathsTo(1, true, "blue", "green"), pathsTo(2, true, "blue", "green")...)
	for i := range wanted {
		if wanted[i].Path == "blue" {
			wanted[i].Routed, wanted[i].Router = true, router
		}
	}
	s.setTargets(s.now, wanted)
	s.run(time.Second)
	for _, peer := range []string{"peer1", "peer2"} {
		s.wires[pair{peer, "blue"}].blocked = true
	}
	s.run(time.Second)
	of := s.targets[pair{"peer1", "blue"}]
	s.neighbourFailed(s.now, neighbour{of.Interface, of.Remote})
	require.Empty(t, s.view().Lost(), "what the kernel does not ask for says nothing")
	s.neighbourFailed(s.now, neighbour{of.Interface, router})
	require.True(t, s.view().Lost()["peer1"]["blue"] && s.view().Lost()["peer2"]["blue"], "%v", s.view().Lost())
	s.setTargets(s.now, nil)
	require.Empty(t, s.at)
}
