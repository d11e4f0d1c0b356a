// SPDX-License-Identifier: Apache-2.0

package uplink_test

import (
	"net/netip"
	"testing"

	"braid.dev/braid/internal/testutil"
)

const (
	entries = 4096
	most    = entries / 8
	least   = entries / 128

	maxHandshakes = 16384
)

func (n *node) begins(t testutil.TB, e ends, count int) (begun int) {
	t.Helper()
	before := n.countLiving(t)
	for port := range count {
		n.calls(t, e.port(uint16(10000+port)))
	}
	return n.countLiving(t) - before
}

func (n *node) calls(t testutil.TB, e ends) {
	t.Helper()
	n.egress(t, blue, e.syn(capable(1)).frame())
	n.isAnswered(t, e, capableWithKey(key))
}

func (n *node) isAskedBy(t testutil.TB, e ends, count int) (begun int) {
	t.Helper()
	before := n.countLiving(t)
	for port := range count {
		n.isCalled(t, e.port(uint16(10000+port)).flip(), green)
	}
	return n.countLiving(t) - before
}

func TestAFloodTakesItsPartOfTheTableAlone(t *testing.T) {
	n := newNode(t)
	n.load(t, entries)
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		n.reset(t)
		if begun := n.begins(t, e, 3*most); begun != most {
			t.Errorf("a pod has %d flows", begun)
		}
		if begun := n.isAskedBy(t, e.flip(), 3*most); begun != most {
			t.Errorf("a pod behind a peer has %d flows", begun)
		}
	})
}

// When the table fills up, those with few flows still get more, and those who end
// flows.
func TestWhoHasLittleGetsMore(t *testing.T) {
	n := newNode(t)
	n.load(t, entries)
	n.reset(t)
	e := endsOf[4]
	for i := range byte(6) {
		greedy := ends{pod: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 2, 100 + i}), 1), other: e.pod}
		n.isAskedBy(t, greedy, most)
	}
	if begun := n.begins(t, e, 2*least); begun != least {
		t.Errorf("a pod with few flows got %d", begun)
	}
	n.end(t, e.port(10000), fin|ack)
	if n.calls(t, e.port(20000)); n.flow(t, e.port(20000).out()) == nil {
		t.Error("a flow that ended made no room for another")
	}
}

// Nobody needs an agent for it.
func TestFlowsThatEndMakeRoom(t *testing.T) {
	n := newNode(t)
	n.load(t, entries)
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		for _, flags := range []uint8{fin | ack, rst | ack} {
			n.reset(t)
			for port := range uint16(2 * most) {
				again := e.port(10000 + port)
				n.calls(t, again)
				n.mustFlow(t, again.out())
				n.end(t, again, flags)
			}
			if left := n.countFlows(t); left > 16 {
				t.Errorf("%d flows that ended are left", left)
			}
		}
	})
}

func TestForgedJoinsDoNotFillTheTableOfConnections(t *testing.T) {
	const limit = 1024
	n := newNode(t)
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		n.reset(t)
		for i := range uint32(2 * limit) {
			port := e.port(10000 + uint16(i))
			n.egress(t, blue, port.syn(join(i+1)).frame())
			n.end(t, port, rst|ack)
		}
		if known := len(keys[[8]byte](t, n.maps.Connections)); known > limit {
			t.Errorf("%d connections that nobody has are known", known)
		}
	})
}

// A forger sees no answers, whether it uses the name of a pod of this node or of another.
func TestForgedSYNsCostTheirVictimNoRoom(t *testing.T) {
	n := newNode(t)
	n.load(t, entries)
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		n.reset(t)
		for i := range uint16(4 * most) {
			forged := e.port(20000 + i)
			n.egress(t, blue, forged.syn(capable(1)).frame())
			n.ingress(t, blue, forged.synAck(capableWithKey(key)).frame())
			n.egress(t, blue, forged.out().with(func(s *segment) { s.flags, s.sequence = rst, firstSYN+1 }).frame())
			called := ends{pod: e.other, other: e.pod}.port(20000 + i).flip()
			n.ingress(t, green, called.syn(capable(1)).flip().frame())
			n.egress(t, blue, called.synAck(capableWithKey(key)).flip().frame())
			n.ingress(t, green, called.third().flip().with(func(s *segment) { s.answer = uint32(i) }).frame())
		}
		if living := n.countLiving(t); living != 0 {
			t.Errorf("%d flows that nobody has", living)
		}
		n.calls(t, e)
		n.isCalled(t, e.flip().port(4242).flip(), green)
		if living := n.countLiving(t); living != 2 {
			t.Errorf("%d of 2 genuine flows are followed", living)
		}
	})
}

func TestForgedSYNsDoNotFillTheTableOfHandshakes(t *testing.T) {
	n := newNode(t)
	e := endsOf[4]
	for i := range 3 * maxHandshakes {
		from := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 2, byte(i >> 14)}), uint16(i))
		n.ingress(t, green, ends{pod: from, other: e.pod}.syn(capable(1)).frame())
	}
	if n.isCalled(t, e, red); n.countLiving(t) != 1 {
		t.Error("a genuine flow is not followed")
	}
	if known := n.countFlows(t); known > maxHandshakes+1 {
		t.Errorf("%d handshakes are known", known)
	}
}
