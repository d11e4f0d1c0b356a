// SPDX-License-Identifier: Apache-2.0

package uplink_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"braid.dev/braid/bpf/uplink"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/testutil"
)

func TestSegmentsFollowTheirFlow(t *testing.T) {
	n := newNode(t)
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		n.reset(t)
		e = n.begin(t, e, green)
		segments := map[string]func(*segment){
			"a pure ACK":           func(s *segment) { s.options = slices.Concat(nop, nop, timestamps) },
			"an ACK with SACK":     func(s *segment) { s.options = slices.Concat(nop, nop, timestamps, nop, nop, sack) },
			"data":                 func(s *segment) { s.options, s.payload = dataSignal(), make([]byte, 1400) },
			"no options":           func(*segment) {},
			"the third handshake":  func(s *segment) { s.options = append([]byte{30, 20, 1, 1}, make([]byte, 16)...) },
			"a FIN":                func(s *segment) { s.flags |= fin },
			"a reset":              func(s *segment) { s.flags = rst },
			"data after the reset": func(s *segment) { s.payload = make([]byte, 10) },
		}
		for name, change := range segments {
			frame := e.out().with(change).frame()
			if v := n.egress(t, blue, frame); v != redirect {
				t.Errorf("%s leaving by another NIC: the verdict is %d", name, v)
			}
			if v := n.egress(t, green, frame); v != next {
				t.Errorf("%s leaving by the path's NIC: the verdict is %d", name, v)
			}
		}
	})
}

func TestOtherFlowsOfThePodAreLeftAlone(t *testing.T) {
	n := newNode(t)
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		n.reset(t)
		e = n.begin(t, e, green)
		others := map[string]func(*segment){
			"another local port":     func(s *segment) { s.from = netip.AddrPortFrom(s.from.Addr(), 1) },
			"another remote port":    func(s *segment) { s.to = netip.AddrPortFrom(s.to.Addr(), 1) },
			"another remote address": func(s *segment) { s.to = netip.AddrPortFrom(s.to.Addr().Next(), s.to.Port()) },
			"another local address":  func(s *segment) { s.from = netip.AddrPortFrom(s.from.Addr().Next(), s.from.Port()) },
			"the ports exchanged": func(s *segment) {
				s.from, s.to = netip.AddrPortFrom(s.from.Addr(), s.to.Port()), netip.AddrPortFrom(s.to.Addr(), s.from.Port())
			},
		}
		for name, change := range others {
			if v := n.egress(t, blue, e.out().with(change).frame()); v != next {
				t.Errorf("%s: the verdict is %d", name, v)
			}
		}
	})
}

// The filter keeps the look-up from packets of addresses that have no flows: a
// flow that is there all the same is not found.
func TestAnUnselectedAddressCostsNoLookUp(t *testing.T) {
	n := newNode(t)
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		n.reset(t)
		unselected := ends{netip.AddrPortFrom(e.pod.Addr().Next(), e.pod.Port()), e.other}
		for name, option := range map[string][]byte{"MP_CAPABLE": capable(1), "MP_JOIN": join(token), "plain TCP": nil} {
			if v := n.egress(t, blue, unselected.syn(option).frame()); v != next || n.countFlows(t) != 0 {
				t.Errorf("a SYN with %s: verdict %d, %d flows", name, v, n.countFlows(t))
			}
		}
		n.putFlow(t, unselected.out(), uplink.ToUplinkFlow{Role: initiator, Peer: thePeer, Path: green, Allowed: allPaths})
		if v := n.egress(t, blue, unselected.out().frame()); v != next {
			t.Errorf("a segment that was to be spared the look-up: the verdict is %d", v)
		}
		n.noteLocal(t, unselected.pod.Addr())
		if v := n.egress(t, blue, unselected.out().frame()); v != redirect {
			t.Errorf("the same, with its address in the filter: the verdict is %d", v)
		}
	})
}

// usable sets the paths that can be used, at the node or at the peer.
var usable = map[string]func(n *node, t testutil.TB, up uint8){
	"at the node": func(n *node, t testutil.TB, up uint8) { n.setNode(t, uint32(up)) },
	"at the peer": func(n *node, t testutil.TB, up uint8) { n.setPeer(t, up) },
}

func TestAnotherPathStandsInForADeadOne(t *testing.T) {
	n := newNode(t)
	for where, setUsable := range usable {
		t.Run(where, func(t *testing.T) {
			forEachVersion(t, func(t *testing.T, version int, e ends) {
				n.reset(t)
				e = n.begin(t, e, green)
				leaves := func(path int) verdict {
					n.arrives(t, e.out())
					return n.egress(t, path, e.out().frame())
				}
				leaves(green)
				before := *n.mustFlow(t, e.out())
				setUsable(n, t, 1<<blue|1<<red)
				onBlue, onRed := leaves(blue) == next, leaves(red) == next
				if onBlue == onRed {
					t.Errorf("the flow leaves by blue: %t, by red: %t", onBlue, onRed)
				}
				setUsable(n, t, 1<<red)
				if v := leaves(red); v != next {
					t.Errorf("with red alone, the verdict at red is %d", v)
				}
				if v := leaves(blue); v != redirect {
					t.Errorf("with red alone, the verdict at blue is %d", v)
				}
				setUsable(n, t, 0)
				for path := range paths {
					if v := leaves(path); v != next {
						t.Errorf("with no path, the verdict at path %d is %d", path, v)
					}
				}
				setUsable(n, t, allPaths)
				if v := leaves(green); v != next {
					t.Errorf("after the path's return its verdict is %d", v)
				}
				if after := *n.mustFlow(t, e.out()); after != before {
					t.Errorf("the flow was %+v and is %+v", before, after)
				}
			})
		})
	}
}

func TestTheFlowsOfADeadPathAreSpread(t *testing.T) {
	n := newNode(t)
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		for _, step := range []uint16{1, 2, 4, 256} { // Linux gives clients every second port
			n.reset(t)
			n.setNode(t, 1<<blue|1<<red)
			const flows = 100
			onRed := 0
			for i := range uint16(flows) {
				e := e.port(32768 + step*i)
				turn := n.turn(t, e)
				n.putFlow(t, e.out(), uplink.ToUplinkFlow{Role: initiator, Peer: thePeer, Path: green, Allowed: allPaths, Turn: turn})
				if n.egress(t, red, e.out().frame()) == next {
					onRed++
				}
			}
			if onRed < flows/4 || onRed > flows*3/4 {
				t.Errorf("every %dth port: red stands in for %d of %d flows", step, onRed, flows)
			}
		}
	})
}

// turn is that of the flow which a SYN begins here.
func (n *node) turn(t testutil.TB, e ends) uint8 {
	t.Helper()
	n.egress(t, blue, e.syn(capable(1)).frame())
	return n.mustFlow(t, e.out()).Turn
}

// A path that the pod may not use does not stand in.
func TestOnlyAllowedPathsStandIn(t *testing.T) {
	n := newNode(t)
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		n.reset(t)
		n.selectPod(t, weights(0, 1, 1))
		e = n.begin(t, e, green)
		n.setNode(t, 1<<blue|1<<red)
		if v := n.egress(t, red, e.out().frame()); v != next {
			t.Errorf("with blue and red alive, the verdict at red is %d", v)
		}
		n.setNode(t, 1<<blue)
		for path := range paths {
			if v := n.egress(t, path, e.out().frame()); v != next {
				t.Errorf("with no allowed path alive, the verdict at path %d is %d", path, v)
			}
		}
	})
}

func TestASlotWithoutNICIsNotUsed(t *testing.T) {
	n := newNode(t)
	e := n.begin(t, endsOf[4], green)
	value := uplink.ToUplinkNode{PathsUp: allPaths} // as torn by a writer
	value.Interface[blue] = n.nics[blue]
	put(t, n.maps.Node, uint32(0), value)
	if v := n.egress(t, blue, e.out().frame()); v != next {
		t.Errorf("the verdict is %d", v)
	}
}

func TestAFlowOfAPeerThatIsGonePasses(t *testing.T) {
	n := newNode(t)
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		n.reset(t)
		e = n.begin(t, e, green)
		put(t, n.maps.Peers, uint32(thePeer), uplink.ToUplinkPeer{})
		if v := n.egress(t, blue, e.out().frame()); v != next {
			t.Errorf("the verdict is %d", v)
		}
		for _, peer := range []uint16{16383, 16384, 0xffff} {
			n.putFlow(t, e.out(), uplink.ToUplinkFlow{Role: initiator, Peer: peer, Path: green, Allowed: allPaths})
			if v := n.egress(t, blue, e.out().frame()); v != next {
				t.Errorf("peer %d: the verdict is %d", peer, v)
			}
		}
	})
}

// answer is a segment that the pod sends as the responder.
func (e ends) answer() segment { return e.out() }

func TestTheResponderAnswersWhereTheSYNCameIn(t *testing.T) {
	n := newNode(t)
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		for _, option := range [][]byte{capable(1), join(token)} {
			n.reset(t)
			n.ingress(t, green, e.syn(option).flip().frame())
			if flow := n.mustFlow(t, e.answer()); flow.Role != responder || flow.Path != green || flow.Peer != thePeer {
				t.Errorf("the flow is %+v", flow)
			}
			answer := e.answer().with(func(s *segment) { s.flags, s.options = syn|ack, capableWithKey(key) })
			if v := n.egress(t, blue, answer.frame()); v != redirect {
				t.Errorf("at the route's NIC the verdict is %d", v)
			}
			if v := n.egress(t, green, answer.frame()); v != next {
				t.Errorf("at the SYN's NIC the verdict is %d", v)
			}
		}
	})
}

// The responder's own pod need not be selected: the initiator decides.
func TestTheResponderNeedNotBeAnEndpoint(t *testing.T) {
	n := newNode(t)
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		n.reset(t)
		unselected := ends{netip.AddrPortFrom(e.pod.Addr().Next(), 80), e.other}
		n.ingress(t, red, unselected.syn(capable(1)).flip().frame())
		if v := n.egress(t, blue, unselected.answer().frame()); v != redirect {
			t.Errorf("the verdict is %d", v)
		}
	})
}

func TestTheResponderFollowsTheNICOfLaterSegments(t *testing.T) {
	n := newNode(t)
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		n.reset(t)
		n.isCalled(t, e, green)
		incoming := map[string]segment{
			"data":  e.out().flip().with(func(s *segment) { s.payload = make([]byte, 100) }),
			"a FIN": e.out().flip().with(func(s *segment) { s.flags |= fin }),
		}
		for name, s := range incoming {
			for _, path := range []int{red, blue, green} {
				n.ingress(t, path, s.frame())
				if flow := n.mustFlow(t, e.answer()); int(flow.Path) != path {
					t.Errorf("after %s on path %d the flow is on %d", name, path, flow.Path)
				}
			}
		}
	})
}

func TestAnotherPathStandsInForTheRespondersToo(t *testing.T) {
	n := newNode(t)
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		n.reset(t)
		n.ingress(t, green, e.syn(capable(1)).flip().frame())
		n.setNode(t, 1<<red)
		if v := n.egress(t, red, e.answer().frame()); v != next {
			t.Errorf("the verdict at red is %d", v)
		}
		if v := n.egress(t, blue, e.answer().frame()); v != redirect {
			t.Errorf("the verdict at blue is %d", v)
		}
	})
}

func TestSYNsThatAreNotFollowed(t *testing.T) {
	n := newNode(t)
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		stranger := map[int]string{4: "192.0.2.7", 6: "2001:db8::7"}
		n.reset(t)
		s := e.syn(capable(1)).flip()
		s.from = addrPort(stranger[version], 80)
		n.ingress(t, green, s.frame())
		if flows := n.countFlows(t); flows != 0 {
			t.Errorf("from behind no peer: %d flows", flows)
		}
		put(t, n.maps.Node, uint32(0), uplink.ToUplinkNode{Interface: [8]uint32{n.nics[blue]}, PathsUp: 1 << blue})
		n.ingress(t, green, e.syn(capable(1)).flip().frame())
		if flows := n.countFlows(t); flows != 0 {
			t.Errorf("on a NIC of no path: %d flows", flows)
		}
	})
}

func TestANewSYNAtTheResponderBeginsAnew(t *testing.T) {
	n := newNode(t)
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		n.reset(t)
		n.ingress(t, green, e.syn(capable(1)).flip().frame())
		again := e.syn(join(token)).with(func(s *segment) { s.sequence = 31337 })
		n.ingress(t, red, again.flip().frame())
		if flow := n.mustFlow(t, e.answer()); flow.Path != red || flow.Sequence != bigEndian32(31337) {
			t.Errorf("the flow is %+v", flow)
		}
	})
}

// Segments that came in on a NIC of no path do not move a responder's flow.
func TestAnUplinkOfNoPathDoesNotMoveAFlow(t *testing.T) {
	n := newNode(t)
	e := endsOf[4]
	n.isCalled(t, e, green)
	put(t, n.maps.Node, uint32(0), uplink.ToUplinkNode{Interface: [8]uint32{0, n.nics[green], 0}, PathsUp: 1 << green})
	n.ingress(t, blue, e.out().flip().frame())
	if flow := n.mustFlow(t, e.answer()); flow.Path != green {
		t.Errorf("the flow is on path %d", flow.Path)
	}
}

func TestAForgedSYNDoesNotTakeALivingFlow(t *testing.T) {
	n := newNode(t)
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		n.reset(t)
		e = n.begin(t, e, green)
		before := *n.mustFlow(t, e.out())
		for _, option := range [][]byte{capable(1), join(token), nil} {
			forged := e.syn(option).flip().with(func(s *segment) { s.sequence = 31337 })
			n.ingress(t, red, forged.frame())
			n.ingress(t, red, forged.with(func(s *segment) { s.sequence = e.syn(nil).sequence }).frame())
		}
		if after := *n.mustFlow(t, e.out()); after != before {
			t.Errorf("the flow was %+v and is %+v", before, after)
		}
		n.end(t, e, fin|ack)
		n.isCalled(t, e, red)
		if flow := n.mustFlow(t, e.out()); flow.Role != responder || flow.Path != red {
			t.Errorf("after its end, the flow is %+v", flow)
		}
	})
}

// What an initiator's flow receives does not move it.
func TestTheInitiatorKeepsItsPath(t *testing.T) {
	n := newNode(t)
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		n.reset(t)
		e = n.begin(t, e, green)
		for path := range paths {
			n.ingress(t, path, e.out().flip().frame())
		}
		if flow := n.mustFlow(t, e.out()); flow.Path != green {
			t.Errorf("the flow is on path %d", flow.Path)
		}
	})
}

// When a path dies, both nodes choose its stand-in by the flow's turn.
func TestBothEndsOfAFlowCountTheSameTurn(t *testing.T) {
	n := newNode(t)
	for version, pods := range map[int]string{4: "10.244.1.0/24", 6: "fd00:244:1::/64"} {
		// The same node stands for the other one: the pod is then behind the peer.
		require.NoError(t, n.AddRoute(network.Route{Destination: pods, Gateway: nodeAddress(blue, 2, version), Interface: pathNames[blue]}))
	}
	rapid.Check(t, func(t *rapid.T) {
		e := endsOf[rapid.SampledFrom(versions).Draw(t, "version")].port(rapid.Uint16().Draw(t, "port"))
		n.reset(t)
		here := n.turn(t, e)
		s := e.syn(capable(1))
		n.ingress(t, green, s.frame())
		if there := n.mustFlow(t, s.flip()).Turn; there != here {
			t.Fatalf("turn %d at one end and %d at the other", here, there)
		}
	})
}

func TestGSOStaysWhole(t *testing.T) {
	n := newNode(t)
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		n.reset(t)
		e = n.begin(t, e, green)
		data := e.out().with(func(s *segment) { s.options, s.payload = dataSignal(), make([]byte, 3000) })
		for _, path := range []int{blue, green} {
			context := skBuff{Ifindex: n.nics[path], GSOSize: 1428, GSOSegs: 45, WireLen: 65000, Mark: 0xfee1dead, Priority: 6, Cb: [5]uint32{1, 2, 3, 4, 5}}
			expected := map[int]verdict{blue: redirect, green: next}[path]
			if v := n.run(t, n.to, data.frame(), context); v != expected {
				t.Errorf("the verdict at path %d is %d", path, v)
			}
			n.run(t, n.from, data.flip().frame(), context)
		}
	})
}

func (v verdict) String() string {
	switch v {
	case next:
		return "next"
	case redirect:
		return "redirect"
	}
	return fmt.Sprintf("verdict(%d)", int32(v))
}

// A peer that died without a word uses its ports again. The pod answers a SYN only where
// it knows of no such connection any more.
func TestAFlowThatDiedSilentlyIsReplacedByAnAnsweredOne(t *testing.T) {
	n := newNode(t)
	for kind, begin := range kinds {
		t.Run(kind, func(t *testing.T) {
			forEachVersion(t, func(t *testing.T, version int, e ends) {
				n.reset(t)
				e = begin(n, t, e, green)
				n.egress(t, blue, e.out().frame())
				before := *n.mustFlow(t, e.out())
				again := e.syn(capable(1)).flip().with(func(s *segment) { s.sequence = 1 << 31 })
				n.ingress(t, red, again.frame())
				if flow := *n.mustFlow(t, e.out()); flow != before {
					t.Errorf("a SYN that nobody answered changed the flow from %+v to %+v", before, flow)
				}
				answer := e.synAck(capableWithKey(key)).flip().with(func(s *segment) { s.sequence, s.answer = 1<<30, 1<<31+1 })
				if v := n.egress(t, red, answer.frame()); v != next {
					t.Errorf("the answer does not leave where the SYN came in: %d", v)
				}
				n.ingress(t, red, e.out().flip().with(func(s *segment) { s.sequence, s.answer = 1<<31+1, 1<<30+1 }).frame())
				if flow := n.mustFlow(t, e.out()); flow.Role != responder || flow.Path != red || flow.Token != 1<<30 || n.countLiving(t) != 1 {
					t.Errorf("of %d flows this one is %+v", n.countLiving(t), flow)
				}
				if all := lookup[uint32](t, n.maps.LivingFlows, uint32(0)); *all != 1 {
					t.Errorf("%d flows are counted", *all)
				}
			})
		})
	}
}

// The agent's clock is noted when a flow sends, so that it can tell which do.
func TestAFlowsLastUseIsNoted(t *testing.T) {
	n := newNode(t)
	for kind, begin := range kinds {
		forEachVersion(t, func(t *testing.T, version int, e ends) {
			n.reset(t)
			e = begin(n, t, e, green)
			for _, clock := range []uint32{30, 60} {
				n.setClock(t, clock)
				n.ingress(t, green, e.out().flip().frame())
				if flow := n.mustFlow(t, e.out()); flow.Used == clock {
					t.Errorf("%s: what comes in is a use", kind)
				}
				n.egress(t, blue, e.out().frame())
				if flow := n.mustFlow(t, e.out()); flow.Used != clock {
					t.Errorf("%s: the flow is %+v at %d", kind, flow, clock)
				}
			}
			if n.isCalled(t, e.flip().port(4242).flip(), green); n.mustFlow(t, e.flip().port(4242).flip().out()).Used != 60 {
				t.Error("a handshake's time is not noted")
			}
		})
	}
}
