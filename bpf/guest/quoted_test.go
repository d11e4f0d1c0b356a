// SPDX-License-Identifier: Apache-2.0

package guest_test

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/bpf/packettest"
)

// tooLarge is what a router says of a segment of the guest.
func tooLarge(about packettest.Segment) packettest.ICMPError {
	e := packettest.ICMPError{From: netip.MustParseAddr("10.20.0.1"), To: about.From.Addr(), Type: 3, Code: 4, Rest: 1400, About: about.Frame()}
	if e.To.Is6() {
		e.From, e.Type, e.Code = netip.MustParseAddr("fd00:20::1"), 2, 0
	}
	return e
}

// errorReaches expects that an error for a guest reaches it as another.
func (h *host) errorReaches(t *testing.T, comes, reaches []byte) {
	t.Helper()
	v, out := h.run(t, h.to, h.one, comes)
	require.Equal(t, next, v)
	require.Equal(t, reaches, out)
}

func TestAnErrorAboutAJoinQuotesThePortThatTheGuestJoined(t *testing.T) {
	forBoth(t, func(t *testing.T, version int) {
		c := connections[version]
		h := newHost(t, atOnce)
		h.offer(t, h.one, c)
		join := c.join(41000, announcedPort)
		h.sends(t, h.one, join, to(join, 80))
		data := join
		data.Flags, data.Options, data.Payload = ack, dataAck, make([]byte, 1400)

		transport := map[int]int{4: 34, 6: 54}[version]
		for _, quoted := range []int{transport + 8, transport + 20, transport + 1000} {
			comes, reaches := tooLarge(to(data, 80)), tooLarge(to(data, 80))
			comes.About, reaches.About = comes.About[:quoted], reaches.About[:quoted]
			binary.BigEndian.PutUint16(reaches.About[transport+2:], announcedPort)
			h.errorReaches(t, comes.Frame(), reaches.Frame())
		}
	})
}

func TestOtherErrorsReachTheGuestAsTheyAre(t *testing.T) {
	forBoth(t, func(t *testing.T, version int) {
		c := connections[version]
		h := newHost(t, atOnce)
		h.offer(t, h.one, c)
		join := c.join(41000, announcedPort)
		h.sends(t, h.one, join, to(join, 80))
		data := to(join, 80)
		data.Flags, data.Options, data.Payload = ack, dataAck, make([]byte, 1400)
		later := data
		later.Fragment = 100
		for name, e := range map[string]packettest.ICMPError{
			"about the first subflow":  tooLarge(c.out()),
			"about no flow":            tooLarge(from(data, 41999)),
			"about UDP":                tooLarge(packettest.Segment{From: data.From, To: data.To, Protocol: packettest.UDP}),
			"about a later fragment":   tooLarge(later),
			"that are an echo's reply": {From: c.peer.Addr(), To: c.guest.Addr(), Type: map[int]uint8{4: 0, 6: 129}[version], About: data.Frame()},
		} {
			if version == 6 && name == "about a later fragment" {
				continue // it has an extension header, and the segment is not found
			}
			t.Run(name, func(t *testing.T) { h.errorReaches(t, e.Frame(), e.Frame()) })
		}
		cut := tooLarge(data).Frame()
		for length := 34; length < len(cut) && length < 120; length++ {
			if version == 6 && length < 54 {
				continue // the kernel refuses the test run
			}
			v, _ := h.run(t, h.to, h.one, cut[:length])
			require.Equal(t, next, v)
		}
	})
}
