// SPDX-License-Identifier: Apache-2.0

package actiontest_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"braid.dev/braid/bpf/endpoint/actiontest"
)

const (
	// heldRate lets holdUnused at once, in bytes: what 50 ms and a round trip of 10 ms bring.
	heldRate   = 500_000
	holdUnused = 30_000
	holdLeast  = 2 * 1460
)

// joined is known from the SYN to be a subflow that joined a connection.
func joined(s *actiontest.HarnessSubflow) { s.Known |= 1<<2 | 1<<3 }

// underWay makes the endpoint have sent up to a sequence number.
func underWay(sequence uint32) func(*actiontest.HarnessSubflow) {
	return func(s *actiontest.HarnessSubflow) { s.Traffic[fromEndpoint].Highest = sequence }
}

// acked is an acknowledgement of what the endpoint sent.
func acked(version int, number uint32) segment {
	return pureACK(version).flip().with(func(s *segment) { s.acked = number })
}

// hold begins a hold with an acknowledgement of `number`.
func (h *harness) hold(t *testing.T, version int, number, sent uint32) {
	t.Helper()
	h.begin(t, version, joined, underWay(sent))
	h.ask(t, fromEndpoint, action{kind: rateLimit, mechanism: window, rate: heldRate})
	out, verdict := h.run(t, fromEndpoint, pureACK(version).frame())
	mustPass(t, verdict)
	mustBe(t, out, pureACK(version))
	out, verdict = h.run(t, toEndpoint, acked(version, number).frame())
	mustPass(t, verdict)
	mustBe(t, out, acked(version, number))
}

func TestASenderIsToldOfWhatArrivedAsFastAsTheLimitLetsIt(t *testing.T) {
	h := newHarness(t)
	forEach(t, func(t *testing.T, version int, shape func(*segment)) {
		h.hold(t, version, 100_000, 400_000)
		s := acked(version, 200_000).with(shape)
		out, verdict := h.run(t, toEndpoint, s.frame())
		mustPass(t, verdict)
		mustBe(t, out, s.with(func(s *segment) { s.acked = 100_000 + holdUnused }))
		if _, verdict = h.run(t, toEndpoint, s.frame()); verdict != shot {
			t.Errorf("an acknowledgement that tells nothing has the verdict %d", verdict)
		}
	})
}

func TestWhatIsHeldBackAndWhatIsNot(t *testing.T) {
	const held = 100_000 + holdUnused
	for name, test := range map[string]struct {
		record func(*actiontest.HarnessSubflow)
		number uint32
		change func(*segment)
		told   uint32
	}{
		"little is told at once":                       {number: 100_000 + holdUnused, told: held},
		"a part of much":                               {number: 300_000, told: held},
		"an older acknowledgement stays":               {number: 90_000, told: 90_000},
		"a loss is told whole":                         {number: 300_000, change: func(s *segment) { s.options = oneSACK }, told: 300_000},
		"data carries the number as well":              {number: 300_000, change: func(s *segment) { s.payload = []byte("some data") }, told: held},
		"of an end nothing is held back":               {number: 300_000, change: func(s *segment) { s.flags |= fin }, told: 300_000},
		"a subflow that ends is told all":              {number: 300_000, record: func(s *actiontest.HarnessSubflow) { s.Ended = 1 }, told: 300_000},
		"what was under way with a loss is told whole": {number: 300_000, record: func(s *actiontest.HarnessSubflow) { s.Window[fromEndpoint].Congestion = 350_000 }, told: 300_000},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.hold(t, 4, 100_000, 400_000)
			if test.record != nil {
				record := h.subflow(t, 4)
				test.record(&record)
				h.begin(t, 4, func(s *actiontest.HarnessSubflow) { *s = record })
			}
			s := acked(4, test.number)
			if test.change != nil {
				s = s.with(test.change)
			}
			out, verdict := h.run(t, toEndpoint, s.frame())
			mustPass(t, verdict)
			mustBe(t, out, s.with(func(s *segment) { s.acked = test.told }))
		})
	}
}

// No other acknowledgement would come, and the sender would wait for a timeout.
func TestTheLastAcknowledgementTellsSomething(t *testing.T) {
	h := newHarness(t)
	h.hold(t, 4, 100_000, 200_000)
	h.run(t, toEndpoint, acked(4, 199_000).frame())
	for _, told := range []uint32{1, 2} {
		s := acked(4, 200_000)
		out, verdict := h.run(t, toEndpoint, s.frame())
		mustPass(t, verdict)
		if got := binary.BigEndian.Uint32(out[14+20+8:]); got < 100_000+holdUnused+told*1460 || got > 100_000+holdUnused+2*told*holdLeast {
			t.Errorf("the sender is told of %d bytes", got-100_000)
		}
	}
}

func TestAnAcknowledgementWithAnotherOptionPassesWithAnOldNumber(t *testing.T) {
	h := newHarness(t)
	h.hold(t, 4, 100_000, 400_000)
	h.run(t, toEndpoint, acked(4, 200_000).frame())
	s := acked(4, 201_000).with(func(s *segment) { s.options = fill(sayBackup) })
	out, verdict := h.run(t, toEndpoint, s.frame())
	mustPass(t, verdict)
	mustBe(t, out, s.with(func(s *segment) { s.acked = 100_000 + holdUnused }))
}

func TestALoneSubflowIsHeldByItsWindow(t *testing.T) {
	h := newHarness(t)
	h.begin(t, 4, isMPTCP, underWay(400_000))
	h.ask(t, fromEndpoint, action{kind: rateLimit, mechanism: window, rate: heldRate})
	h.run(t, fromEndpoint, pureACK(4).frame())
	for _, number := range []uint32{100_000, 200_000} {
		s := acked(4, number)
		out, _ := h.run(t, toEndpoint, s.frame())
		mustBe(t, out, s.with(func(s *segment) { s.window = (5000 + 127) / 128 }))
	}
}

func TestASenderLearnsAllWhenItsLimitEnds(t *testing.T) {
	h := newHarness(t)
	h.hold(t, 4, 100_000, 400_000)
	h.run(t, toEndpoint, acked(4, 200_000).frame())
	record := h.subflow(t, 4)
	record.Limit[fromEndpoint].Mechanism = police
	h.begin(t, 4, func(s *actiontest.HarnessSubflow) { *s = record })
	h.ask(t, fromEndpoint, action{})
	for _, number := range []uint32{210_000, 300_000} {
		out, verdict := h.run(t, toEndpoint, acked(4, number).frame())
		mustPass(t, verdict)
		mustBe(t, out, acked(4, number))
	}
}

// What was reported by SACK and is then not acknowledged with the rest is, to the
// sender, lost by its receiver.
func TestWhatWasReportedBySACKIsAcknowledgedWithTheRest(t *testing.T) {
	h := newHarness(t)
	h.hold(t, 4, 100_000, 400_000)
	s := acked(4, 100_000).with(func(s *segment) { s.options = oneSACK })
	out, verdict := h.run(t, toEndpoint, s.frame())
	mustPass(t, verdict)
	mustBe(t, out, s)
	out, verdict = h.run(t, toEndpoint, acked(4, 300_000).frame())
	mustPass(t, verdict)
	mustBe(t, out, acked(4, 300_000))
}

func TestAfterAPauseASenderIsToldAll(t *testing.T) {
	h := newHarness(t)
	h.hold(t, 4, 100_000, 400_000)
	h.run(t, toEndpoint, acked(4, 200_000).frame())
	h.wait(t, 300_000_000)
	out, verdict := h.run(t, toEndpoint, acked(4, 300_000).frame())
	mustPass(t, verdict)
	mustBe(t, out, acked(4, 300_000))
}

// held makes acknowledgements of what the endpoint receives be held back.
func held(s *actiontest.HarnessSubflow) {
	limited(action{mechanism: window, rate: 1_000_000})(s)
	joined(s)
	s.Traffic[toEndpoint].Highest = 1_000_000
	w := &s.Window[toEndpoint]
	w.Begun, w.Acknowledged, w.Marked, w.Congestion = 1|2, 4000, 1000, 1000
	w.MarkedAt = 1 << 62 // no pause
}

// onlyAcknowledgement wants the number lowered, and nothing else touched.
func onlyAcknowledgement(before, after []byte, l layout) error {
	number := func(frame []byte) uint32 { return binary.BigEndian.Uint32(frame[l.tcp+8:]) }
	if lowered := number(before) - number(after); lowered>>31 != 0 {
		return fmt.Errorf("the number was raised by %d", -lowered)
	}
	if before[l.tcp+13]&(syn|rst|fin) != 0 {
		return errors.New("a beginning or an end was touched")
	}
	return errors.Join(same(before, after, l.tcp+8, l.tcp+9, l.tcp+10, l.tcp+11, l.tcp+16, l.tcp+17), sameChecksums(before, after, l))
}

// tellsNothing tells whether a packet may be left out.
func tellsNothing(before []byte, l layout) bool {
	return l.packetEnd == l.end && before[l.tcp+13]&(syn|fin|rst|ack) == ack
}
