// SPDX-License-Identifier: Apache-2.0

package actiontest_test

import (
	"bytes"
	"testing"
)

func TestARefusedPacketEndsHere(t *testing.T) {
	h := newHarness(t)
	forEach(t, func(t *testing.T, version int, shape func(*segment)) {
		h.begin(t, version)
		h.ask(t, fromEndpoint, action{kind: drop})
		s := pureACK(version).with(shape).with(func(s *segment) { s.flags = syn; s.options = joinSYN })
		out, verdict := h.run(t, fromEndpoint, s.frame())
		if verdict != shot || !bytes.Equal(out, s.frame()) {
			t.Errorf("the verdict is %d, the packet %x", verdict, out)
		}
	})
}

// resets are segments and the resets that answer them, as RFC 9293 says.
var resets = map[string]struct {
	change          func(*segment)
	flags           uint8
	sequence, acked uint32
}{
	"a SYN that joins":    {func(s *segment) { s.flags, s.acked, s.options = syn, 0, joinSYN }, rst | ack, 0, 1001},
	"a SYN with data":     {func(s *segment) { s.flags, s.acked, s.payload = syn, 0, make([]byte, 7) }, rst | ack, 0, 1008},
	"data":                {func(s *segment) { s.payload = make([]byte, 1000) }, rst, 5000, 0},
	"data of odd length":  {func(s *segment) { s.payload = []byte{1, 2, 3} }, rst, 5000, 0},
	"a pure ACK":          {func(s *segment) {}, rst, 5000, 0},
	"one without options": {func(s *segment) { s.options = nil }, rst, 5000, 0},
	"a FIN":               {func(s *segment) { s.flags |= fin }, rst, 5000, 0},
}

// answer is the reset to a segment.
func answer(s segment, flags uint8, sequence, acked uint32) segment {
	return s.flip().with(func(s *segment) {
		s.flags, s.sequence, s.acked, s.window, s.options, s.payload = flags, sequence, acked, 0, nil, nil
	})
}

func swapEthernet(frame []byte) []byte {
	return append(append(bytes.Clone(frame[6:12]), frame[:6]...), frame[12:]...)
}

func TestAResetGoesBackToTheSender(t *testing.T) {
	h := newHarness(t)
	h.ask(t, fromEndpoint, action{kind: reset})
	for name, c := range resets {
		t.Run(name, func(t *testing.T) {
			forEach(t, func(t *testing.T, version int, shape func(*segment)) {
				h.begin(t, version)
				s := pureACK(version).with(shape).with(c.change)
				out, verdict := h.run(t, fromEndpoint, s.frame())
				if verdict != shot {
					t.Fatalf("the verdict is %d", verdict)
				}
				mustBe(t, swapEthernet(out), answer(s, c.flags, c.sequence, c.acked))
			})
		})
	}
}

func TestAResetIsNotAnswered(t *testing.T) {
	h := newHarness(t)
	h.ask(t, fromEndpoint, action{kind: reset})
	h.begin(t, 4)
	s := pureACK(4).with(func(s *segment) { s.flags |= rst })
	out, verdict := h.run(t, fromEndpoint, s.frame())
	mustPass(t, verdict)
	mustBe(t, out, s)
}
