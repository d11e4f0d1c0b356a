// SPDX-License-Identifier: Apache-2.0

package endpoint_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/bpf/endpoint"
)

func TestWithoutAChainEverythingPasses(t *testing.T) {
	h := newHost(t)
	e := endsOf[4]
	h.expect(t, e, e.out(), false, "never attached")
	h.use(t, dropping(nil))
	h.expect(t, e, e.out(), true, "attached")
	h.attach(t, endpoint.FromEndpointAttachment{Interface: h.pod, Endpoint: theEndpoint})
	h.expect(t, e, e.out(), false, "no chain any more")
	h.attach(t, endpoint.FromEndpointAttachment{Interface: h.pod, Endpoint: theEndpoint, Chain: word(99, 1, 1)})
	h.expect(t, e, e.out(), false, "an empty slot")
	h.attach(t, endpoint.FromEndpointAttachment{Interface: h.pod, Endpoint: theEndpoint, Chain: word(0xffff, 0xffff, 1)})
	h.expect(t, e, e.out(), false, "a slot that does not exist")
}

// One word changes the chain of all subflows, whatever was known of them.
func TestAChainIsReplacedByOneWord(t *testing.T) {
	h := newHost(t)
	h.put(t, 1, nothing())
	h.put(t, 2, dropping(nil))
	h.put(t, 3, dropping(is(direction(toEndpoint))))
	for epoch := range uint32(30) {
		slot := 1 + epoch%3
		h.attach(t, endpoint.FromEndpointAttachment{Interface: h.pod, Endpoint: theEndpoint, Chain: word(slot, 1, epoch+1)})
		for range 12 {
			for _, version := range versions {
				e := endsOf[version]
				h.expect(t, e, e.out(), slot == 2, "out")
				h.expect(t, e, e.in(), slot != 1, "in")
			}
		}
	}
}

func TestEndpointsShareAChainAndCountForThemselves(t *testing.T) {
	h := newHost(t)
	e := endsOf[4]
	h.put(t, 5, build(rule{do: noops(1)}))
	for i, index := range []uint32{h.pod, h.nics[blue]} {
		require.NoError(t, h.maps.ChainCounters.Put(uint32(i), endpoint.FromEndpointCounters{}))
		h.attach(t, endpoint.FromEndpointAttachment{Interface: index, Endpoint: uint32(i), Chain: word(5, uint32(i), 1)})
	}
	for range 3 {
		h.run(t, h.from, e.out().frame(), skBuff{Ifindex: h.pod})
	}
	h.run(t, h.from, e.out().frame(), skBuff{Ifindex: h.nics[blue]})
	if first, second := h.countersAt(t, 0).Rule[0].Hits, h.countersAt(t, 1).Rule[0].Hits; first != 3 || second != 1 {
		t.Errorf("the hits are %d and %d", first, second)
	}
}

// addInterface makes an interface with this index.
func (h *host) addInterface(t *testing.T, name string, index uint32) {
	t.Helper()
	_, err := h.Run("ip", "link", "add", name, "index", strconv.Itoa(int(index)), "type", "bridge")
	require.NoError(t, err)
}

func TestInterfacesThatShareASlotAreToldApart(t *testing.T) {
	h := newHost(t)
	e := endsOf[4]
	const first, second, third = 3000, 3000 + 65536, 3000 + 2*65536
	for name, index := range map[string]uint32{"first": first, "second": second, "third": third} {
		h.addInterface(t, name, index)
	}
	h.put(t, 1, dropping(nil))
	h.put(t, 2, dropping(is(direction(toEndpoint))))
	h.attach(t, endpoint.FromEndpointAttachment{Interface: first, Endpoint: 1, Chain: word(1, 1, 1)})
	overflow := endpoint.FromEndpointAttachment{Interface: second, Endpoint: 2, Chain: word(2, 2, 1)}
	require.NoError(t, h.maps.AttachmentsOverflow.Put(uint32(second), overflow))
	for index, expected := range map[uint32][2]verdict{first: {dropped, dropped}, second: {next, dropped}, third: {next, next}} {
		for i, program := range h.programs() {
			s := e.out()
			if i == toEndpoint {
				s = e.in()
			}
			if v := h.run(t, program, s.frame(), skBuff{Ifindex: index}); v != expected[i] {
				t.Errorf("interface %d, direction %d: the verdict is %d", index, i, v)
			}
		}
	}
}

func TestCountersCountWhatMatches(t *testing.T) {
	h := newHost(t)
	forEachVersion(t, func(t *testing.T, e ends) {
		h.forget(t)
		h.use(t, build(
			rule{when: is(direction(fromEndpoint)), do: noops(1)},
			rule{when: is(types(typeData)), do: noops(2)},
			rule{when: is(port(selectRemotePort, 9)), do: noops(1)},
			rule{when: all(is(types(typeData)), is(direction(toEndpoint))), do: []action{drop}},
			rule{do: noops(1)},
		))
		h.sends(t, e.out())
		h.sends(t, e.out().data(100))
		h.receives(t, e.in().data(50))
		counters := h.counters(t)
		for i, expected := range [][3]uint64{{2, 100, 0}, {2, 150, 0}, {0, 0, 0}, {1, 50, 1}, {2, 100, 0}} {
			got := counters.Rule[i]
			if got.Hits != expected[0] || got.Bytes != expected[1] || got.Acted != expected[2] {
				t.Errorf("rule %d: %+v, expected %v", i, got, expected)
			}
		}
	})
}

func TestTheLargestChain(t *testing.T) {
	h := newHost(t)
	e := endsOf[4]
	rules := make([]rule, 64)
	for i := range rules {
		rules[i] = rule{when: all(is(types(typePureACK)), is(port(selectRemotePort, 80)), is(direction(fromEndpoint)), is(types(typePureACK))), do: noops(2)}
	}
	h.use(t, build(rules...))
	for range 2 {
		h.expect(t, e, e.out(), false, "64 rules, 256 selectors, 128 actions")
	}
	counters := h.counters(t)
	for i := range rules {
		if counters.Rule[i].Hits != 2 {
			t.Errorf("rule %d was hit %d times", i, counters.Rule[i].Hits)
		}
	}
	rules[63].do = []action{{Kind: actionStack}, drop}
	h.use(t, build(rules...))
	h.expect(t, e, e.out(), true, "the last action drops")
}

// What an agent must not write must not hurt either.
func TestChainsThatMakeNoSense(t *testing.T) {
	h := newHost(t)
	e := endsOf[4]
	loop := build(rule{when: is(types(typePureACK)), do: []action{drop}})
	loop.Selector[0].IfTrue, loop.Selector[0].IfFalse = 0, 0
	beyond := build(rule{when: is(types(typePureACK)), do: []action{drop}})
	beyond.Selector[0].IfTrue, beyond.Selector[0].IfFalse = 256, 5000
	many := build(rule{do: noops(1)})
	many.Rules, many.Rule[0].Actions, many.Rule[0].FirstAction = 1000, 255, 100
	unknown := build(rule{do: []action{{Kind: 200}}})
	noSlot := build(rule{do: []action{{Kind: actionRunProgram, Limit: 7}, {Kind: actionRunProgram, Limit: 1 << 30}}})
	for name, chain := range map[string]*endpoint.FromEndpointChain{
		"a loop": loop, "beyond the selectors": beyond, "too many actions": many, "an unknown action": unknown, "no such block": noSlot,
	} {
		t.Run(name, func(t *testing.T) {
			h.use(t, chain)
			for range 3 {
				h.expect(t, e, e.out(), false, "sent")
				h.expect(t, e, e.in(), false, "received")
			}
		})
	}
}

// The whole of a record: amounts, repetitions, order.
func TestRecords(t *testing.T) {
	h := newHost(t)
	forEachVersion(t, func(t *testing.T, e ends) {
		h.forget(t)
		h.use(t, build(rule{do: []action{{Kind: actionRecord}}}))
		h.begin(t, e)
		began := time.Now()
		for _, at := range []uint32{0, 1000, 3000, 2000, 4000} {
			h.receives(t, e.in().at(5001+at).data(1000))
		}
		// What comes later than that fills the gap again, for all that is known.
		overtaken := time.Since(began) < endpoint.ShortestPatienceNs
		for _, at := range []uint32{0, 1000, 0, 1000, 2000} {
			h.sends(t, e.out().at(1001+at).data(1000))
		}
		s := h.mustSubflow(t, e)
		in, out := s.Traffic[toEndpoint], s.Traffic[fromEndpoint]
		if in.Bytes != 5000 || in.Position != 5000 || in.Reordered+in.Retransmitted != 1 || overtaken && in.Reordered != 1 || in.Packets != 6 {
			t.Errorf("received: %+v", in)
		}
		if out.Bytes != 5000 || out.Position != 3000 || out.Reordered != 0 || out.Retransmitted != 2 || out.Packets != 7 {
			t.Errorf("sent: %+v", out)
		}
		if s.Recorded != 1 || s.FirstSeen == 0 || s.LastSeen < s.FirstSeen {
			t.Errorf("recorded %d, from %d to %d", s.Recorded, s.FirstSeen, s.LastSeen)
		}
	})
}
