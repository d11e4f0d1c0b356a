// SPDX-License-Identifier: Apache-2.0

package endpoint_test

import (
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"

	"braid.dev/braid/bpf/endpoint"
	"braid.dev/braid/bpf/packettest"
)

// many packets are more than pass in a tick of the clock, and few enough for some to
// follow each other within one.
const many = 20_000

// longerThanATick is longer than one of any kernel.
const longerThanATick = 25 * time.Millisecond

// repeats has a segment pass many times at once; a pure ACK may, as often as it likes.
func (h *host) repeats(t *testing.T, e ends, s segment) {
	t.Helper()
	program, context := h.from, skBuff{Ifindex: h.pod}
	if s.from == e.remote {
		program, context = h.to, skBuff{Ifindex: h.pod, IngressIfindex: h.nics[blue]}
	}
	require.NoError(t, h.Do(func() error {
		_, err := program.Run(&ebpf.RunOptions{Data: s.frame(), Repeat: many, Context: context})
		return err
	}))
}

// behind is how many packets the record itself does not know of yet.
func (h *host) behind(t *testing.T, e ends, direction int) uint64 {
	t.Helper()
	var raw endpoint.FromEndpointSubflow
	require.NoError(t, h.maps.Subflows.Lookup(keyOf(e), &raw))
	return h.mustSubflow(t, e).Traffic[direction].Packets - raw.Traffic[direction].Packets
}

var someActions = []action{
	{Kind: actionRateLimit, Mechanism: 1, Rate: 1 << 30}, {Kind: actionReportSubflow}, {Kind: actionRecord},
}

// steady is a subflow whose acknowledgements pass in great numbers.
func (h *host) steady(t *testing.T, e ends, rules ...rule) {
	t.Helper()
	h.forget(t)
	h.use(t, build(append(rules, rule{do: someActions})...))
	h.begin(t, e)
	h.repeats(t, e, e.out().carrying(timestamps(9, 9), dataAck()))
	h.repeats(t, e, e.in().carrying(timestamps(9, 9), dataAck()))
}

// acknowledges has the endpoint acknowledge the same many times, later than the last time.
func (h *host) acknowledges(t *testing.T, e ends, n int) {
	t.Helper()
	h.repeats(t, e, e.out().carrying(timestamps(uint32(10+n), 9), dataAck()))
}

// A signal in the midst of a run has it begin anew: that many packets passed is certain,
// how many it is not, but for the rule that counts them.
func TestPacketsThatPassWithoutTheRecordAreCounted(t *testing.T) {
	h := newHost(t)
	forEachVersion(t, func(t *testing.T, e ends) {
		h.steady(t, e)
		before := h.mustSubflow(t, e).Traffic[fromEndpoint].Packets
		hits := h.counters(t).Rule[0].Hits
		passed := false
		for n := range 20 {
			h.acknowledges(t, e, n)
			passed = passed || h.behind(t, e, fromEndpoint) > 0
		}
		if !passed {
			t.Error("each packet looked its record up")
		}
		sent := h.mustSubflow(t, e).Traffic[fromEndpoint].Packets - before
		if more := h.counters(t).Rule[0].Hits - hits; sent < 20*many || sent != more {
			t.Errorf("the record has %d packets more, and the rule %d hits", sent, more)
		}
	})
}

func TestAStreamIsRecordedAsFarAsItIs(t *testing.T) {
	h := newHost(t)
	forEachVersion(t, func(t *testing.T, e ends) {
		h.steady(t, e)
		before := h.mustSubflow(t, e).Traffic
		for n := range uint32(300) {
			h.sends(t, dataOf(e, n, 100))
			h.receives(t, e.in().at(5001+n*50).carrying(timestamps(9, 9), mapping(1, 1, 50)).data(50))
		}
		h.sends(t, dataOf(e, 100, 100))
		for direction, bytes := range []uint64{301 * 100, 300 * 50} {
			after := h.mustSubflow(t, e).Traffic[direction]
			if after.Bytes-before[direction].Bytes != bytes {
				t.Errorf("direction %d has %d bytes", direction, after.Bytes-before[direction].Bytes)
			}
			if expected := uint32(1 - direction); after.Retransmitted != expected || after.Reordered != 0 {
				t.Errorf("direction %d has %d repeated and %d overtaken segments", direction, after.Retransmitted, after.Reordered)
			}
		}
		if position := h.mustSubflow(t, e).Traffic[fromEndpoint].Position; position != 300*100 {
			t.Errorf("what was sent ends at %d", position)
		}
	})
}

func TestAChangeOfRulesHoldsForTheNextPacket(t *testing.T) {
	h := newHost(t)
	forEachVersion(t, func(t *testing.T, e ends) {
		for range 10 {
			h.steady(t, e)
			h.use(t, dropping(is(port(selectRemotePort, 80))))
			h.expect(t, e, e.out().carrying(timestamps(9, 9), dataAck()), true, "sent under other rules")
			h.expect(t, e, e.in().carrying(timestamps(9, 9), dataAck()), true, "received under other rules")
			h.use(t, nothing())
			h.expect(t, e, e.out().carrying(timestamps(9, 9), dataAck()), false, "sent under no rules")
		}
	})
}

func TestPacketsOfAnotherKindAskTheRules(t *testing.T) {
	h := newHost(t)
	forEachVersion(t, func(t *testing.T, e ends) {
		for range 10 {
			h.steady(t, e, rule{when: is(types(typeData)), do: []action{drop}})
			h.expect(t, e, e.out().carrying(timestamps(9, 9), mapping(1, 1, 10)).data(10), true, "data")
			h.expect(t, e, e.out().carrying(timestamps(9, 9), dataAck()), false, "an acknowledgement")
		}
	})
}

func TestRulesByAmountsAreAskedEachTime(t *testing.T) {
	h := newHost(t)
	forEachVersion(t, func(t *testing.T, e ends) {
		h.steady(t, e, rule{when: is(within(selectSubflowSent, 5000, 5999)), do: []action{drop}})
		for n := range uint32(100) {
			dropped := n >= 50 && n < 60
			h.expect(t, e, dataOf(e, n, 100), dropped, "segment")
		}
	})
}

func TestANewSubflowOnThePortsOfASteadyOneIsClassifiedAnew(t *testing.T) {
	h := newHost(t)
	forEachVersion(t, func(t *testing.T, e ends) {
		h.steady(t, e)
		h.sends(t, e.out().at(900_000).flagged(syn).carrying(usual(capable)))
		record := h.mustSubflow(t, e)
		if packets := record.Traffic[fromEndpoint].Packets; packets != 1 || record.Token != 0 {
			t.Errorf("it has %d packets and the token %x", packets, record.Token)
		}
	})
}

func TestARecordThatIsGoneIsMadeAgain(t *testing.T) {
	h := newHost(t)
	forEachVersion(t, func(t *testing.T, e ends) {
		h.steady(t, e)
		require.NoError(t, h.maps.Subflows.Delete(keyOf(e)))
		time.Sleep(longerThanATick)
		h.expect(t, e, e.out().carrying(timestamps(9, 9), dataAck()), false, "sent")
		if record := h.mustSubflow(t, e); record.Word == 0 {
			t.Error("it is not classified")
		}
	})
}

func TestASteadySubflowThatMovesIsLearntAtOnce(t *testing.T) {
	h := newHost(t)
	forEachVersion(t, func(t *testing.T, e ends) {
		for range 10 {
			h.steady(t, e)
			h.receivesBy(t, green, e.in().carrying(timestamps(9, 9), dataAck()))
			if path := h.mustSubflow(t, e).Path; path != green {
				t.Errorf("its path is %d", path)
			}
		}
	})
}

// In an overlay all come in by the tunnel's device, which is no path's. Others, as Cilium,
// set and clear the lowest bits between the two.
func TestThePathOfASubflowInATunnelIsTheOneThatWasNoted(t *testing.T) {
	h := newHost(t)
	by := map[int]*ebpf.Program{}
	for path := range 2 {
		const others = endpoint.ArrivalOthers
		marked, err := packettest.NewMarked(h.to, int32(endpoint.Arrival|path<<endpoint.ArrivalPathShift|others))
		require.NoError(t, err)
		t.Cleanup(func() { marked.Close() })
		by[path] = marked.Program
	}
	forEachVersion(t, func(t *testing.T, e ends) {
		h.steady(t, e)
		for _, path := range []int{green, blue, green} {
			s := e.in().carrying(timestamps(9, 9), dataAck())
			h.run(t, by[path], s.frame(), skBuff{Ifindex: h.pod, IngressIfindex: h.pod})
			require.EqualValues(t, path, h.mustSubflow(t, e).Path)
		}
		h.receivesBy(t, blue, e.in().carrying(timestamps(9, 9), dataAck()))
		require.EqualValues(t, blue, h.mustSubflow(t, e).Path, "out of no tunnel")
	})
}

func TestSubflowsThatShareAPlaceAmongTheSteadyOnesAreCountedApart(t *testing.T) {
	h := newHost(t)
	e := endsOf[4]
	other := e
	for number := uint16(1); ; number++ { // a few thousand ports on there is one
		other = e.port(number)
		a, b := keyOf(e), keyOf(other)
		if number != e.local.Port() && endpoint.SteadySlot(&a) == endpoint.SteadySlot(&b) {
			break
		}
	}
	h.steady(t, e)
	h.begin(t, other)
	packets := func(of ends) uint64 { return h.mustSubflow(t, of).Traffic[fromEndpoint].Packets }
	first, second, hits := packets(e), packets(other), h.counters(t).Rule[0].Hits
	for n := range 10 {
		h.acknowledges(t, e, n)
		h.acknowledges(t, other, n)
	}
	first, second, hits = packets(e)-first, packets(other)-second, h.counters(t).Rule[0].Hits-hits
	if first < 10*many || second < 10*many || first+second != hits {
		t.Errorf("they have %d and %d packets of %d", first, second, hits)
	}
}

func TestPacketsPassWhereTheirChainIsMissing(t *testing.T) {
	h := newHost(t)
	forEachVersion(t, func(t *testing.T, e ends) {
		h.steady(t, e)
		h.epoch++
		h.attach(t, endpoint.FromEndpointAttachment{Interface: h.pod, Endpoint: theEndpoint, Chain: word(77, 1, h.epoch)})
		h.expect(t, e, e.out().carrying(timestamps(9, 9), dataAck()), false, "sent")
		h.expect(t, e, e.in().carrying(timestamps(9, 9), dataAck()), false, "received")
	})
}

// What was kept of a stream is older than half of all sequence numbers then, and would look
// as if it were ahead.
func TestALongStreamLeavesBehindWhatWasKeptOfIt(t *testing.T) {
	const gap = 1 << 29
	h := newHost(t)
	forEachVersion(t, func(t *testing.T, e ends) {
		h.steady(t, e)
		h.use(t, build(rule{when: is(within(selectSubflowSent, 1<<60, 1<<61)), do: []action{drop}}))
		for n := range uint32(7) {
			h.sends(t, e.out().at(1001+n*gap).carrying(timestamps(9, 9), mapping(1, 1, 100)).data(100))
		}
		sent := h.mustSubflow(t, e).Traffic[fromEndpoint]
		if sent.Position != 6*gap+100 || sent.Retransmitted != 0 {
			t.Errorf("it is at %d, with %d repeated segments", sent.Position, sent.Retransmitted)
		}
	})
}

// The agent shares such a limit out by what the records say.
func TestARateThatPacedSocketsShareIsCountedInTheRecord(t *testing.T) {
	h := newHost(t)
	forEachVersion(t, func(t *testing.T, e ends) {
		h.forget(t)
		h.use(t, build(rule{do: []action{{Kind: actionRateLimit, Mechanism: 1, Rate: 1 << 30, Scope: 2}, {Kind: actionRecord}}}))
		h.begin(t, e)
		record := h.mustSubflow(t, e)
		record.Paced = 1 << 30
		require.NoError(t, h.maps.Subflows.Put(keyOf(e), record))
		for n := range 5 {
			h.acknowledges(t, e, n)
			if behind := h.behind(t, e, fromEndpoint); behind != 0 {
				t.Errorf("the record lacks %d packets", behind)
			}
		}
	})
}
