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
)

func (n *node) begins(t testutil.TB, e ends, count int) (begun int) {
	t.Helper()
	before := n.countFlows(t)
	for port := range count {
		n.egress(t, blue, e.port(uint16(10000+port)).syn(capable(1)).frame())
	}
	return n.countFlows(t) - before
}

func (n *node) isAskedBy(t testutil.TB, e ends, count int) (begun int) {
	t.Helper()
	before := n.countFlows(t)
	for port := range count {
		n.ingress(t, green, e.port(uint16(10000+port)).syn(capable(1)).frame())
	}
	return n.countFlows(t) - before
}

func TestAFloodTakesItsPartOfTheTableAlone(t *testing.T) {
	n := newNode(t)
	n.load(t, entries)
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		n.reset(t)
		if begun := n.begins(t, e, 3*most); begun != most {
			t.Errorf("a pod has %d flows", begun)
		}
		flipped := ends{pod: e.other, other: e.pod}
		if begun := n.isAskedBy(t, flipped, 3*most); begun != most {
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
	if n.egress(t, blue, e.port(20000).syn(capable(1)).frame()); n.flow(t, e.port(20000).out()) == nil {
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
				n.egress(t, blue, again.syn(capable(1)).frame())
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
