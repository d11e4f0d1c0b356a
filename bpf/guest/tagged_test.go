// SPDX-License-Identifier: Apache-2.0

package guest_test

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"

	"braid.dev/braid/bpf/guest"
	"braid.dev/braid/bpf/packettest"
)

// tag is an 802.1Q tag.
type tag struct{ kind, id uint16 }

// within is a frame with tags, the outer one first.
func within(frame []byte, tags ...tag) []byte {
	out := slices.Clone(frame[:12])
	for _, tag := range tags {
		out = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(out, tag.kind), tag.id)
	}
	return append(out, frame[12:]...)
}

// becomes expects that a program makes one tagged frame of another.
func (h *host) becomes(t *testing.T, program *ebpf.Program, before, after packettest.Segment, tags ...tag) {
	t.Helper()
	v, out := h.run(t, program, h.one, within(before.Frame(), tags...))
	require.Equal(t, next, v)
	require.Equal(t, within(after.Frame(), tags...), out)
}

// beginWithin has the guest open a connection in a VLAN.
func (h *host) beginWithin(t *testing.T, c connection, tags ...tag) {
	t.Helper()
	first, third := c.out(), c.out()
	first.Sequence, first.Acknowledge, first.Flags, first.Options = 1000, 0, syn, capable
	third.Options = slices.Concat(timestamps, c.keys(0x01))
	h.becomes(t, h.from, first, first, tags...)
	h.becomes(t, h.from, third, third, tags...)
}

var tagged = map[string][]tag{
	"a tag":               {{0x8100, 10}},
	"a tag of priority":   {{0x8100, 0x6000}},
	"a tag of a provider": {{0x88a8, 20}},
	"two tags":            {{0x88a8, 20}, {0x8100, 10}},
}

func TestWhatIsDoneForAGuestIsDoneBehindTags(t *testing.T) {
	for name, tags := range tagged {
		t.Run(name, func(t *testing.T) {
			forBoth(t, func(t *testing.T, version int) {
				h, c := newHost(t, atOnce), connections[version]
				h.beginWithin(t, c, tags...)
				comes := c.in()
				comes.Options, comes.Payload = slices.Concat(timestamps, dataAck), make([]byte, 1400)
				reaches := comes
				reaches.Sequence += uint32(len(comes.Payload))
				reaches.Options, reaches.Payload = whole(c.announced(0)), nil
				h.becomes(t, h.to, comes, reaches, tags...)
				require.EqualValues(t, 1, h.counts(t, h.one).Announcements)

				echoed := c.out()
				echoed.Options = whole(c.echo(guest.FirstAnnouncedID, announcedPort))
				h.expectSwallowed(t, echoed, tags...)

				joins := c.join(41000, announcedPort)
				h.becomes(t, h.from, joins, to(joins, 80), tags...)
				answer := packettest.Segment{From: c.peer, To: joins.From, Sequence: 1, Acknowledge: 7001, Flags: syn | ack, Window: 9, Options: make([]byte, 16)}
				h.becomes(t, h.to, answer, from(answer, announcedPort), tags...)
				data := joins
				data.Flags, data.Options, data.Payload = ack, dataAck, make([]byte, 1400)
				h.becomes(t, h.from, data, to(data, 80), tags...)

				transport := map[int]int{4: 34, 6: 54}[version]
				quotes, quoted := tooLarge(to(data, 80)), tooLarge(to(data, 80))
				binary.BigEndian.PutUint16(quoted.About[transport+2:], announcedPort)
				v, out := h.run(t, h.to, h.one, within(quotes.Frame(), tags...))
				require.Equal(t, next, v)
				require.Equal(t, within(quoted.Frame(), tags...), out)
			})
		})
	}
}

// expectSwallowed: the guest's echo does not leave.
func (h *host) expectSwallowed(t *testing.T, echoes packettest.Segment, tags ...tag) {
	t.Helper()
	before := h.counts(t, h.one).Echoes
	_, out := h.run(t, h.from, h.one, within(echoes.Frame(), tags...))
	require.EqualValues(t, 1, h.counts(t, h.one).Echoes-before)
	require.Len(t, out, len(within(echoes.Frame(), tags...)))
	require.NotContains(t, string(out), string(echoes.Options[len(echoes.Options)-8:]))
}

func TestAConnectionOfAnotherVLANIsAnother(t *testing.T) {
	h, c := newHost(t, atOnce), connections[4]
	h.beginWithin(t, c, tag{0x8100, 10})
	comes := c.in()
	for _, tags := range [][]tag{nil, {{0x8100, 11}}, {{0x8100, 0}}, {{0x88a8, 20}, {0x8100, 10}}} {
		h.becomes(t, h.to, comes, comes, tags...)
	}
	require.Zero(t, h.counts(t, h.one).Announcements)
	h.run(t, h.to, h.one, within(comes.Frame(), tag{0x8100, 10}))
	require.EqualValues(t, 1, h.counts(t, h.one).Announcements)
}

func TestFramesWithMoreTagsOrHeadersThatAreCutOffPass(t *testing.T) {
	h, c := newHost(t, atOnce), connections[4]
	three := []tag{{0x88a8, 30}, {0x88a8, 20}, {0x8100, 10}}
	h.beginWithin(t, c, three...)
	h.becomes(t, h.to, c.in(), c.in(), three...)
	require.Zero(t, h.counts(t, h.one).Connections)

	for _, tags := range tagged {
		frame := within(c.in().Frame(), tags...)
		for length := 34; length < len(frame); length++ { // the kernel runs no shorter ones
			for _, program := range []*ebpf.Program{h.from, h.to} {
				v, out := h.run(t, program, h.one, frame[:length])
				require.Equal(t, next, v)
				require.Equal(t, frame[:length], out)
			}
		}
	}
}
