// SPDX-License-Identifier: Apache-2.0

package uplink_test

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/bpf/packettest"
	"braid.dev/braid/bpf/uplink"
	"braid.dev/braid/internal/testutil"
)

// moves has the pod be a machine that may have come from another node.
func (n *node) moves(t testutil.TB) {
	t.Helper()
	n.prefer(t, uplink.ToUplinkPreference{Allowed: allPaths, Share: everyFlow, Flags: set | uplink.PreferencePickUp})
	value := lookup[uplink.ToUplinkNode](t, n.maps.Node, uint32(0))
	value.PicksUp = 1
	put(t, n.maps.Node, uint32(0), *value)
}

// comesIn is data for the pod in the middle of a connection.
func (e ends) comesIn() segment {
	return e.hears(100, 1000).with(func(s *segment) { s.options = dataSignal() })
}

// goesOn is what the pod answers.
func (e ends) goesOn() segment {
	return e.sends(100).with(func(s *segment) { s.answer = theirs + 1000 })
}

// serves is the same pair with the pod's as the well-known port: the other end began.
func (e ends) serves() ends {
	return ends{netip.AddrPortFrom(e.pod.Addr(), e.other.Port()), netip.AddrPortFrom(e.other.Addr(), e.pod.Port())}
}

func TestAFlowThatTheOtherEndBeganIsPickedUpWhereItComesIn(t *testing.T) {
	n := newNode(t)
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		n.reset(t)
		n.moves(t)
		e = e.serves()
		n.ingress(t, red, e.comesIn().frame())
		n.ingress(t, green, e.comesIn().frame())
		require.Zero(t, n.countLiving(t), "what comes in alone begins nothing")
		n.requireGoesBy(t, green, e.goesOn(), "the first answer")
		require.Equal(t, 1, n.countLiving(t))
		require.EqualValues(t, thePeer, n.mustFlow(t, e.out()).Peer)

		n.ingress(t, red, e.comesIn().with(func(s *segment) { s.sequence += 1000 }).frame())
		n.requireGoesBy(t, red, e.goesOn().with(func(s *segment) { s.sequence += 100; s.answer += 1000 }), "an answer when the other end has moved it")
	})
}

// Ports that are announced are above those that kernels take for what they begin.
func TestWhoBeganAFlowIsKnownByItsPortsWhenItIsPickedUp(t *testing.T) {
	n := newNode(t)
	for name, c := range map[string]struct {
		pod, other uint16
		begun      bool
	}{
		"to a well-known port":            {40_000, 443, true},
		"from a well-known port":          {443, 40_000, false},
		"to an announced port":            {40_000, 61_001, true},
		"from an announced port":          {61_001, 40_000, false},
		"both of the range, the higher":   {50_000, 40_000, true},
		"both of the range, the lower":    {40_000, 50_000, false},
		"neither of the range, the lower": {5_001, 61_001, false},
	} {
		t.Run(name, func(t *testing.T) {
			forEachVersion(t, func(t *testing.T, version int, e ends) {
				n.reset(t)
				n.moves(t)
				e = ends{netip.AddrPortFrom(e.pod.Addr(), c.pod), netip.AddrPortFrom(e.other.Addr(), c.other)}
				n.ingress(t, green, e.comesIn().frame())
				n.goesBy(t, e.goesOn())
				require.Equal(t, c.begun, n.mustFlow(t, e.out()).Role == uint8(initiator))
			})
		})
	}
}

// The other end's node follows, and all of them would stay where the first packets went.
func TestFlowsThatAMachineBeganAreSpreadWhereItIsNow(t *testing.T) {
	n := newNode(t)
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		n.reset(t)
		n.moves(t)
		n.selectPod(t, weights(1, 1, 1))
		counts := map[int]int{}
		for port := range uint16(6) {
			e := e.port(50_000 + port)
			n.ingress(t, blue, e.comesIn().frame())
			path := n.goesBy(t, e.goesOn())
			counts[path]++
			n.ingress(t, blue, e.comesIn().with(func(s *segment) { s.sequence += 1000 }).frame())
			n.requireGoesBy(t, path, e.goesOn().with(func(s *segment) { s.sequence += 100; s.answer += 1000 }), "the next one")
		}
		require.Equal(t, map[int]int{blue: 2, green: 2, red: 2}, counts)
	})
}

func TestAFlowInATunnelIsPickedUp(t *testing.T) {
	n := newNode(t)
	forEachTunnel(t, func(t *testing.T, tunnel packettest.Tunnel, e ends) {
		for _, e := range []ends{e, e.serves()} {
			n.withTunnels(t)
			n.moves(t)
			n.ingress(t, green, back(tunnel).Frame(e.comesIn().frame()))
			require.Equal(t, redirect, n.egressOf(t, blue, ofThePod, tunnel.Frame(e.goesOn().frame())))
			require.EqualValues(t, thePeer, n.mustFlow(t, e.out()).Peer)
		}
	})
}

func TestWhatDoesNotShowThatBothEndsKnowAFlowPicksUpNone(t *testing.T) {
	type change = func(s *segment)
	same := func(*segment) {}
	n := newNode(t)
	for name, c := range map[string]struct {
		in, out change
		from    uint32
		before  func(t *testing.T)
	}{
		"an endpoint that does not move": {same, same, podInterface, func(t *testing.T) {
			n.prefer(t, uplink.ToUplinkPreference{Allowed: allPaths, Share: everyFlow, Flags: set})
		}},
		"a node with none that moves": {same, same, podInterface, func(t *testing.T) { n.setNode(t, allPaths) }},
		"no peer": {same, same, podInterface, func(t *testing.T) {
			clearMap[uplink.ToUplinkAddress](t, n.maps.PeerAddresses)
		}},
		"plain TCP that comes in":                {func(s *segment) { s.options = timestamps }, same, podInterface, nil},
		"an end that comes in":                   {func(s *segment) { s.flags = fin | ack }, same, podInterface, nil},
		"a reset that comes in":                  {func(s *segment) { s.flags = rst | ack }, same, podInterface, nil},
		"an answer to something else":            {same, func(s *segment) { s.answer += 1 << 20 }, podInterface, nil},
		"an answer to what came long before":     {same, func(s *segment) { s.answer -= 1 << 20 }, podInterface, nil},
		"an answer from somewhere else":          {same, func(s *segment) { s.sequence += 1 << 24 }, podInterface, nil},
		"an end as answer":                       {same, func(s *segment) { s.flags = fin | ack }, podInterface, nil},
		"a reset as answer":                      {same, func(s *segment) { s.flags = rst | ack }, podInterface, nil},
		"an answer with another pod's interface": {same, same, otherInterface, nil},
	} {
		t.Run(name, func(t *testing.T) {
			forEachVersion(t, func(t *testing.T, version int, e ends) {
				n.reset(t)
				n.moves(t)
				n.knowInterface(t)
				if c.before != nil {
					c.before(t)
				}
				n.ingress(t, green, e.comesIn().with(c.in).frame())
				require.Equal(t, next, n.egressFrom(t, c.from, e.goesOn().with(c.out)))
				require.Zero(t, n.countLiving(t))
			})
		})
	}
}

func TestAConnectionBeginsWhereForgedDataCameBefore(t *testing.T) {
	n := newNode(t)
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		n.reset(t)
		n.moves(t)
		n.ingress(t, green, e.comesIn().frame())
		e = n.isCalled(t, e, red)
		require.EqualValues(t, red, n.mustFlow(t, e.out()).Path)
		require.Equal(t, 1, n.countFlows(t))

		n.reset(t)
		n.moves(t)
		n.ingress(t, green, e.comesIn().frame())
		n.egress(t, blue, e.syn(capable(1)).frame())
		n.isAnswered(t, e, capableWithKey(key))
		require.EqualValues(t, initiator, n.mustFlow(t, e.out()).Role)
		require.Equal(t, 1, n.countFlows(t))
	})
}

func TestAFlowIsNotPickedUpWhereItsBeginnerHasNoRoom(t *testing.T) {
	n := newNode(t)
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		n.reset(t)
		n.moves(t)
		put(t, n.maps.Owners, address(e.other.Addr()), uplink.ToUplinkOwner{Flows: 1 << 20})
		n.ingress(t, green, e.serves().comesIn().frame())
		require.Equal(t, next, n.egress(t, blue, e.serves().goesOn().frame()))
		require.Zero(t, n.countFlows(t))
		n.ingress(t, green, e.comesIn().frame())
		n.egress(t, blue, e.goesOn().frame())
		require.Equal(t, 1, n.countFlows(t), "its own")
	})
}
