// SPDX-License-Identifier: Apache-2.0

package uplink_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/bpf/uplink"
	"braid.dev/braid/internal/testutil"
)

// The host's ends of the interfaces of the pod and of another one.
const (
	podInterface   = 901
	otherInterface = 902
)

// answered is subtype's bit of flows whose end has acknowledged something.
const answered = 1 << 7

// knowInterface tells the programs by which interface the pod's packets come.
func (n *node) knowInterface(t testutil.TB) {
	t.Helper()
	var value uplink.ToUplinkEndpoint
	for _, key := range keys[uplink.ToUplinkAddress](t, n.maps.Endpoints) {
		require.NoError(t, n.maps.Endpoints.Lookup(key, &value))
		value.Interface = podInterface
		put(t, n.maps.Endpoints, key, value)
	}
}

// egressFrom runs to_uplink on a frame that came into the node by an interface.
func (n *node) egressFrom(t testutil.TB, from uint32, s segment) verdict {
	t.Helper()
	return n.run(t, n.to, s.frame(), skBuff{Ifindex: n.nics[blue], IngressIfindex: from})
}

// Another pod of the node sends with the address of one of ours.
func TestPacketsFromAnotherInterfaceChangeNoFlow(t *testing.T) {
	forgeries := map[string]func(e ends) segment{
		"a SYN":               func(e ends) segment { return e.syn(capable(1)).with(func(s *segment) { s.sequence = 4242 }) },
		"a join":              func(e ends) segment { return e.syn(join(token)).with(func(s *segment) { s.sequence = 4242 }) },
		"a reset":             func(e ends) segment { return e.out().with(func(s *segment) { s.flags = rst | ack }) },
		"an end":              func(e ends) segment { return e.out().with(func(s *segment) { s.flags = fin | ack }) },
		"an answer to a SYN":  func(e ends) segment { return e.out().with(func(s *segment) { s.flags, s.answer = syn|ack, 1<<31 }) },
		"an acknowledgement":  func(e ends) segment { return e.out().with(func(s *segment) { s.answer = 1 << 31 }) },
		"a SYN of a new flow": func(e ends) segment { return e.port(41234).syn(capable(1)) },
	}
	n := newNode(t)
	for name, forgery := range forgeries {
		t.Run(name, func(t *testing.T) {
			forEachVersion(t, func(t *testing.T, version int, e ends) {
				for kind, begin := range kinds {
					n.reset(t)
					e := begin(n, t, e, green)
					n.knowInterface(t)
					n.egressFrom(t, podInterface, e.out())
					before, count := *n.mustFlow(t, e.out()), n.countFlows(t)
					n.egressFrom(t, otherInterface, forgery(e))
					if after := *n.mustFlow(t, e.out()); after != before || n.countFlows(t) != count {
						t.Errorf("%s: of %d flows this one was %+v, and of %d it is %+v", kind, count, before, n.countFlows(t), after)
					}
				}
			})
		})
	}
}

func TestPacketsOfTheNodeItselfAndOfUnknownInterfacesCount(t *testing.T) {
	n := newNode(t)
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		n.reset(t)
		n.egressFrom(t, otherInterface, e.syn(capable(1)))
		n.isAnswered(t, e, capableWithKey(key))
		n.mustFlow(t, e.out())
		n.knowInterface(t)
		n.egressFrom(t, 0, e.out().with(func(s *segment) { s.flags = rst }))
		if flow := n.mustFlow(t, e.out()); flow.Ended != endedBoth {
			t.Errorf("the flow is %+v", flow)
		}
	})
}

// Somebody behind a peer sends with the address of the flow's other end, and does not
// see the flow's packets.
func TestPacketsWithNumbersFarOffChangeNoFlow(t *testing.T) {
	flags := map[string]uint8{"a reset": rst | ack, "an end": fin | ack, "a SYN": syn, "data": ack | psh, "an answer to a SYN": syn | ack}
	n := newNode(t)
	for name, flag := range flags {
		t.Run(name, func(t *testing.T) {
			forEachVersion(t, func(t *testing.T, version int, e ends) {
				for kind, begin := range kinds {
					n.reset(t)
					e := begin(n, t, e, green)
					n.egress(t, blue, e.out().frame())
					before := *n.mustFlow(t, e.out())
					for number := uint32(1 << 26); number < 1<<32-1<<26; number += 1 << 26 {
						forged := e.out().flip().with(func(s *segment) {
							s.flags, s.sequence, s.options = flag, firstSYN+1+number, usual(capable(1))
						})
						n.ingress(t, red, forged.frame())
					}
					if after := *n.mustFlow(t, e.out()); after != before {
						t.Errorf("%s: the flow was %+v and is %+v", kind, before, after)
					}
				}
			})
		})
	}
}

// What this end expects moves on with what it acknowledges.
func TestEndsAreBelievedNearWhatIsExpected(t *testing.T) {
	n := newNode(t)
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		for kind, begin := range kinds {
			n.reset(t)
			e := begin(n, t, e, green)
			for number := uint32(1000); number < 1<<31; number += 1 << 27 {
				n.egress(t, blue, e.out().with(func(s *segment) { s.answer = number }).frame())
				far := e.out().flip().with(func(s *segment) { s.flags, s.sequence = rst, number+1<<19 })
				n.ingress(t, green, far.frame())
				if flow := n.mustFlow(t, e.out()); flow.Ended != 0 || flow.Subtype&answered == 0 {
					t.Fatalf("%s: the flow is %+v", kind, flow)
				}
			}
			last := e.out().with(func(s *segment) { s.answer = 77777 })
			n.egress(t, blue, last.frame())
			n.ingress(t, green, last.flip().with(func(s *segment) { s.flags, s.sequence = rst, 77777+1<<17 }).frame())
			if flow := n.mustFlow(t, e.out()); flow.Ended != endedBoth {
				t.Errorf("%s: the flow is %+v", kind, flow)
			}
		}
	})
}

func TestOnlyTheAnswerToTheSYNTeachesTheToken(t *testing.T) {
	n := newNode(t)
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		n.reset(t)
		n.egress(t, blue, e.syn(capable(1)).frame())
		n.ingress(t, blue, e.synAck(capableWithKey(1)).with(func(s *segment) { s.answer = 31337 }).frame())
		n.ingress(t, blue, e.out().flip().with(func(s *segment) { s.flags, s.answer = rst|ack, 31337 }).frame())
		n.ingress(t, blue, e.synAck(capableWithKey(2)).frame())
		if flow := n.mustFlow(t, e.out()); flow.Token != tokenOf(2) || flow.Ended != 0 {
			t.Errorf("the flow is %+v", flow)
		}
	})
}

// A pod that was given the address of another answers SYNs that the flow knows nothing of.
func TestAnAnswerToAnotherSYNEndsAnOldFlow(t *testing.T) {
	n := newNode(t)
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		n.reset(t)
		e = kinds["the responder"](n, t, e, green)
		n.egress(t, blue, e.out().frame())
		n.egress(t, blue, e.out().with(func(s *segment) { s.flags, s.answer = syn|ack, 1<<31 }).frame())
		if flow := n.flow(t, e.out()); flow != nil {
			t.Errorf("the flow is %+v", flow)
		}
	})
}
