// SPDX-License-Identifier: Apache-2.0

package middlebox

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/bpf/packettest"
	"braid.dev/braid/internal/lab/network"
)

var (
	mpCapable = []byte{30, 4, 0x01, 0}
	mpJoinSYN = []byte{30, 12, 0x10, 1, 0, 0, 0, 0, 0, 0, 0, 0}
	dss       = []byte{30, 8, 0x20, 1, 0, 0, 0, 5}
)

// through is what a box of a kind makes of segments, each from the port of its number,
// also of what it held back.
func through(t *testing.T, name string, segments ...packettest.Segment) (out []*segment, later []time.Duration) {
	t.Helper()
	kind, known := Named(name)
	require.True(t, known)
	b := kind.New()
	var frames []network.Frame
	for _, s := range segments {
		frames = append(frames, b.Pass(0, frameOf(s))...)
	}
	frames = append(frames, b.Due(time.Now().Add(time.Hour))...)
	for _, frame := range frames {
		s, ok := decode(frame.From, frame.Data)
		require.True(t, ok)
		out, later = append(out, s), append(later, frame.Later)
	}
	return out, later
}

func forBoth(t *testing.T, test func(t *testing.T, flow ends)) {
	for version, flow := range flows {
		t.Run(version, func(t *testing.T) { test(t, flow) })
	}
}

func TestANATGivesWhoConnectsAnotherAddressAndPort(t *testing.T) {
	forBoth(t, func(t *testing.T, flow ends) {
		b := newTranslation()
		opened := func(of ends, flags uint8) *segment {
			s, ok := decode(0, frameOf(packettest.Segment{From: of.from, To: of.to, Flags: flags}))
			require.True(t, ok)
			return b.pass(s)[0].segment
		}
		outside := opened(flow, syn).ends
		require.Equal(t, flow.to, outside.to)
		require.NotEqual(t, flow.from.Addr(), outside.from.Addr())
		require.NotEqual(t, flow.from.Port(), outside.from.Port())
		require.Equal(t, flow.reversed(), opened(outside.reversed(), syn|ack).ends)
		require.Equal(t, outside, opened(flow, ack).ends)
	})
}

func TestSequenceNumbersAreOthersOutsideAndFitInside(t *testing.T) {
	forBoth(t, func(t *testing.T, flow ends) {
		segments, _ := through(t, "sequences",
			packettest.Segment{From: flow.from, To: flow.to, Flags: syn, Sequence: 100},
			packettest.Segment{From: flow.from, To: flow.to, Flags: ack, Sequence: 101},
		)
		by := segments[0].sequence() - 100
		require.NotZero(t, by)
		require.Equal(t, 101+by, segments[1].sequence())
		segments, _ = through(t, "sequences",
			packettest.Segment{From: flow.from, To: flow.to, Flags: syn, Sequence: 100},
			packettest.Segment{
				From: flow.to, To: flow.from, Flags: ack, Acknowledge: 101 + by,
				Options: append([]byte{5, 10}, append(big(150+by), big(160+by)...)...),
			},
		)
		require.EqualValues(t, 101, segments[1].acknowledged())
		require.Equal(t, append([]byte{5, 10}, append(big(150), big(160)...)...), []byte(segments[1].options[0]))
	})
}

func big(value uint32) []byte {
	return []byte{byte(value >> 24), byte(value >> 16), byte(value >> 8), byte(value)}
}

func TestPiecesHaveAllOptionsAndTheWholePayload(t *testing.T) {
	forBoth(t, func(t *testing.T, flow ends) {
		payload := bytes.Repeat([]byte("abc"), 300)
		pieces, _ := through(t, "split", packettest.Segment{From: flow.from, To: flow.to, Flags: fin | ack, Sequence: 10, Options: dss, Payload: payload})
		require.Len(t, pieces, 2)
		require.Equal(t, payload, append(bytes.Clone(pieces[0].payload), pieces[1].payload...))
		require.Equal(t, pieces[0].after(), pieces[1].sequence())
		require.True(t, pieces[0].is(fin, 0) && pieces[1].is(fin, fin))
		require.True(t, pieces[0].hasMPTCP() && pieces[1].hasMPTCP())
	})
}

func TestWhatIsJoinedHasTheOptionsOfTheFirst(t *testing.T) {
	forBoth(t, func(t *testing.T, flow ends) {
		first := packettest.Segment{From: flow.from, To: flow.to, Flags: ack, Sequence: 10, Options: dss, Payload: []byte("ab")}
		second := first
		second.Sequence, second.Options, second.Acknowledge = 12, append(dss[:7:7], 9), 5
		joined, _ := through(t, "join", first, second)
		require.Len(t, joined, 1)
		require.Equal(t, "abab", string(joined[0].payload))
		require.Equal(t, dss, []byte(joined[0].options[0]))
		require.EqualValues(t, 5, joined[0].acknowledged())
		second.Sequence = 13
		apart, _ := through(t, "join", first, second)
		require.Len(t, apart, 2)
	})
}

func TestAByteIsTakenOutAndNumbersFit(t *testing.T) {
	forBoth(t, func(t *testing.T, flow ends) {
		opening := packettest.Segment{From: flow.from, To: flow.to, Flags: syn, Sequence: 99}
		data := packettest.Segment{From: flow.from, To: flow.to, Flags: ack, Sequence: 100 + Every - 3, Payload: []byte("abcdef")}
		answer := packettest.Segment{From: flow.to, To: flow.from, Flags: ack, Acknowledge: 100 + Every - 1}
		passed, _ := through(t, "shorten", opening, data, data, answer)
		require.Equal(t, "abdef", string(passed[1].payload))
		require.EqualValues(t, 100+Every-3, passed[1].sequence())
		require.Equal(t, passed[1].payload, passed[2].payload, "the same when it is sent again")
		require.EqualValues(t, 100+Every, passed[3].acknowledged())
		data.Sequence += 6
		passed, _ = through(t, "shorten", opening, data)
		require.EqualValues(t, 100+Every+3-1, passed[1].sequence())
	})
}

func TestOptionsAreTakenWhereTheNameSays(t *testing.T) {
	flow := flows["IPv4"]
	for name, want := range map[string][3]bool{ // of SYN, SYN/ACK and what comes later
		"strip_syn": {false, true, true}, "strip_synack": {true, false, true}, "strip_later": {true, true, false}, "nop": {},
		"strip_join": {true, true, true}, "strip_add_addr": {true, true, true}, "sequences": {true, true, true},
	} {
		for i, flags := range []uint8{syn, syn | ack, ack} {
			passed, _ := through(t, name, packettest.Segment{From: flow.from, To: flow.to, Flags: flags, Options: mpCapable})
			require.Equal(t, want[i], passed[0].hasMPTCP(), "%s, flags %#x", name, flags)
		}
	}
	passed, _ := through(t, "strip_join", packettest.Segment{From: flow.from, To: flow.to, Flags: syn, Options: mpJoinSYN})
	require.False(t, passed[0].hasMPTCP())
}

func TestOptionsAreTakenFromTheMiddleOfAConnectionOn(t *testing.T) {
	forBoth(t, func(t *testing.T, flow ends) {
		data := packettest.Segment{From: flow.from, To: flow.to, Flags: ack, Options: dss, Payload: []byte("a")}
		answer := packettest.Segment{From: flow.to, To: flow.from, Flags: ack, Options: dss}
		segments := append(slices.Repeat([]packettest.Segment{data}, untouched+1), answer)
		passed, _ := through(t, "strip_midway", segments...)
		require.True(t, passed[untouched-1].hasMPTCP())
		require.False(t, passed[untouched].hasMPTCP())
		require.True(t, passed[untouched+1].hasMPTCP(), "the other direction counts for itself")
	})
}

func TestSYNsAreDroppedWhereTheNameSays(t *testing.T) {
	flow := flows["IPv4"]
	for name, want := range map[string][3]int{"drop_syn": {0, 0, 1}, "drop_join": {1, 0, 1}} {
		for i, options := range [][]byte{mpCapable, mpJoinSYN, nil} {
			passed, _ := through(t, name, packettest.Segment{From: flow.from, To: flow.to, Flags: syn, Options: options})
			require.Len(t, passed, want[i], "%s, options % x", name, options)
		}
	}
}

func TestSomeSegmentsComeLateOrTwice(t *testing.T) {
	flow := flows["IPv4"]
	data := packettest.Segment{From: flow.from, To: flow.to, Flags: ack, Payload: []byte("a")}
	many := make([]packettest.Segment, 40)
	for i := range many {
		many[i] = data
	}
	passed, later := through(t, "reorder", many...)
	require.Len(t, passed, 40)
	require.NotZero(t, later[19])
	require.Zero(t, later[0])
	passed, _ = through(t, "duplicate", many...)
	require.Len(t, passed, 44)
}
