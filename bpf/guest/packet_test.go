// SPDX-License-Identifier: Apache-2.0

package guest_test

import (
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/bpf/guest"
	"braid.dev/braid/bpf/packettest"
)

var atOnce = guest.ToGuestGuest{Joins: joins}

// announced is the place of the first announcement of a connection.
func (c connection) announced(place int) []byte {
	return c.announcement(byte(guest.FirstAnnouncedID+place), uint16(announcedPort+place))
}

// whole fills an option up to words, with the timestamps before it where they fit.
func whole(option []byte) []byte {
	for len(option)%4 != 0 {
		option = append(option, 1)
	}
	if len(timestamps)+len(option) > 40 {
		return option
	}
	return slices.Concat(timestamps, option)
}

func TestAPacketOfAConnectionThatLastsBringsAnAnnouncementThatIsSigned(t *testing.T) {
	for name, payload := range map[string][]byte{"a pure ACK": nil, "data": make([]byte, 1400), "odd data": make([]byte, 11)} {
		t.Run(name, func(t *testing.T) {
			forBoth(t, func(t *testing.T, version int) {
				h, c := newHost(t, atOnce), connections[version]
				h.begin(t, h.one, c)
				comes := c.in()
				comes.Options, comes.Payload = slices.Concat(timestamps, dataAck), payload
				reaches := comes
				reaches.Sequence += uint32(len(payload))
				reaches.Options, reaches.Payload = whole(c.announced(0)), nil
				h.receives(t, h.one, comes, reaches)
				h.receives(t, h.one, comes, comes) // not again so soon
				require.EqualValues(t, 1, h.counts(t, h.one).Announcements)
			})
		})
	}
}

// The HMACs are openssl's, of id, address and port under both keys, the peer's first:
// printf '\xe1\x0a\xf4\x02\x02\xfa\x01' | openssl dgst -sha256 -mac hmac -macopt
// hexkey:11121314151617180102030405060708.
func TestTheAnnouncementHasTheBytesOfRFC8684(t *testing.T) {
	for version, want := range map[int]string{
		4: "1e1230e1" + "0af40202" + "fa01" + "09ce75b1dec660c4",
		6: "1e1e30e1" + "fd000244000200000000000000000002" + "fa01" + "f5d193f2c988063d",
	} {
		require.Equal(t, want, hex.EncodeToString(connections[version].announced(0)))
	}
}

func TestAConnectionIsAnnouncedNothingBeforeItLasts(t *testing.T) {
	h := newHost(t, atOnce)
	for name, c := range map[string]struct {
		want      guest.ToGuestGuest
		sent      uint32
		announced uint64
	}{
		"by its bytes, too few":   {guest.ToGuestGuest{Joins: joins, Bytes: 10_000}, 9_999, 0},
		"by its bytes":            {guest.ToGuestGuest{Joins: joins, Bytes: 10_000}, 10_000, 1},
		"by its age, too young":   {guest.ToGuestGuest{Joins: joins, Time: uint64(time.Hour)}, 1 << 20, 0},
		"by its age":              {guest.ToGuestGuest{Joins: joins, Time: 1}, 0, 1},
		"whichever comes first":   {guest.ToGuestGuest{Joins: joins, Bytes: 10_000, Time: uint64(time.Hour)}, 10_000, 1},
		"no further one is asked": {guest.ToGuestGuest{Bytes: 10_000}, 20_000, 0},
	} {
		t.Run(name, func(t *testing.T) {
			h.admit(t, h.one, c.want)
			connection := connections[4]
			h.begin(t, h.one, connection)
			time.Sleep(20 * time.Millisecond) // the programs' clock ticks
			comes := connection.in()
			comes.Acknowledge += c.sent
			h.run(t, h.to, h.one, comes.Frame())
			require.Equal(t, c.announced, h.counts(t, h.one).Announcements)
		})
	}
}

func TestKeysAreLearnedFromWhateverFollowsTheSYN(t *testing.T) {
	h, c := newHost(t, atOnce), connections[4]
	for name, test := range map[string]struct {
		options []byte
		learned uint64
	}{
		"the third ACK":                {c.keys(0x01), 1},
		"with checksums":               {c.keys(0x81), 1},
		"data":                         {c.keys(0x01, 0, 10), 1},
		"data with checksums":          {c.keys(0x81, 0, 10, 1, 2), 1},
		"behind timestamps":            {slices.Concat(timestamps, c.keys(0x01)), 1},
		"version 0":                    {append([]byte{30, 20, 0x00, 0x01}, c.keys(0)[4:]...), 0},
		"keys that are cut off":        {[]byte{30, 12, 0x01, 0x01, 1, 2, 3, 4, 5, 6, 7, 8}, 0},
		"no MPTCP":                     {timestamps, 0},
		"options that do not add up":   {slices.Concat([]byte{8, 60}, c.keys(0x01)), 0},
		"an option of another subtype": {dataAck, 0},
		"nothing":                      {nil, 0},
		"an end mark before":           {slices.Concat([]byte{0, 0, 0, 0}, c.keys(0x01)), 0},
	} {
		t.Run(name, func(t *testing.T) {
			first, before := c.out(), h.counts(t, h.one).Connections
			first.Flags, first.Options = syn, capable
			h.sends(t, h.one, first, first)
			third := c.out()
			third.Options = test.options
			h.sends(t, h.one, third, third)
			require.Equal(t, test.learned, h.counts(t, h.one).Connections-before)
		})
	}
}

func TestAPeerThatForbidsJoinsToItsAddressGetsNone(t *testing.T) {
	h := newHost(t, atOnce)
	for flags, learned := range map[byte]uint64{0x01: 1, 0x81: 1, 0x21: 0} {
		c, before := connectionOf(4, uint16(flags)), h.counts(t, h.one).Connections
		first, answer, third := c.out(), c.in(), c.out()
		first.Flags, first.Options = syn, capable
		answer.Flags, answer.Options = syn|ack, append([]byte{30, 12, 0x01, flags}, c.keys(0)[12:20]...)
		third.Options = c.keys(0x01)
		h.sends(t, h.one, first, first)
		h.receives(t, h.one, answer, answer)
		h.sends(t, h.one, third, third)
		require.Equal(t, learned, h.counts(t, h.one).Connections-before, "flags %#x", flags)
	}
}

// connectionOf is one from another port.
func connectionOf(version int, port uint16) connection {
	c := connections[version]
	c.guest = netip.AddrPortFrom(c.guest.Addr(), port)
	return c
}

// offer has a guest be announced a port.
func (h *host) offer(t testing.TB, index int, c connection) {
	t.Helper()
	h.begin(t, index, c)
	comes := c.in()
	comes.Options = timestamps
	reaches := comes
	reaches.Options = whole(c.announced(0))
	h.receives(t, index, comes, reaches)
}

func TestAJoinHasTheRealPortOnTheHostAndTheAnnouncedOneInTheGuest(t *testing.T) {
	forBoth(t, func(t *testing.T, version int) {
		h, c := newHost(t, atOnce), connections[version]
		h.offer(t, h.one, c)
		sent := c.join(41000, announcedPort)
		for range 2 { // it may be repeated
			h.sends(t, h.one, sent, to(sent, 80))
		}
		require.EqualValues(t, 1, h.counts(t, h.one).Joins)
		answer := packettest.Segment{From: c.peer, To: sent.From, Sequence: 1, Acknowledge: 7001, Flags: syn | ack, Window: 9, Options: make([]byte, 16)}
		h.receives(t, h.one, answer, from(answer, announcedPort))
		for _, payload := range [][]byte{nil, []byte("odd"), make([]byte, 1400)} {
			data := packettest.Segment{From: sent.From, To: sent.To, Sequence: 7001, Acknowledge: 2, Flags: ack, Options: dataAck, Payload: payload}
			h.sends(t, h.one, data, to(data, 80))
			back := packettest.Segment{From: c.peer, To: sent.From, Sequence: 2, Acknowledge: 7001, Flags: ack, Options: dataAck, Payload: payload}
			h.receives(t, h.one, back, from(back, announcedPort))
		}
	})
}

func TestWhatIsNoJoinToAnAnnouncedPortKeepsItsPort(t *testing.T) {
	c := connections[4]
	h := newHost(t, atOnce)
	h.offer(t, h.one, c)
	forged := c.join(41000, announcedPort)
	forged.Options = joining([]byte{1, 2, 3, 4})
	plain := c.join(41001, announcedPort)
	plain.Options = nil
	elsewhere := c.join(41002, announcedPort)
	elsewhere.To = netip.MustParseAddrPort("10.244.3.3:64001")
	for name, segment := range map[string]packettest.Segment{
		"a token that nobody has":                forged,
		"a plain connection":                     plain,
		"a join to another address":              elsewhere,
		"a join to a port that is not announced": c.join(41003, announcedPort+1),
		"a join to the real port":                c.join(41004, 80),
	} {
		t.Run(name, func(t *testing.T) {
			h.sends(t, h.one, segment, segment)
			data := segment
			data.Flags, data.Options, data.Payload = ack, dataAck, []byte("data")
			h.sends(t, h.one, data, data)
		})
	}
	require.Zero(t, h.counts(t, h.one).Joins)
}

func TestAJoinThatWouldBecomeAnotherFlowIsRefused(t *testing.T) {
	h, c := newHost(t, atOnce), connections[4]
	h.offer(t, h.one, c)
	plain := packettest.Segment{From: netip.MustParseAddrPort("10.244.1.2:41000"), To: c.peer, Flags: syn}
	h.sends(t, h.one, plain, plain)
	v, _ := h.run(t, h.from, h.one, c.join(41000, announcedPort).Frame())
	require.Equal(t, dropped, v)
	require.EqualValues(t, 1, h.counts(t, h.one).Refused)
	plain.Flags = ack | fin
	h.sends(t, h.one, plain, plain)
	sent := c.join(41000, announcedPort)
	h.sends(t, h.one, sent, to(sent, 80))
}

func TestEchoesOfWhatThePeerNeverAnnouncedDoNotLeave(t *testing.T) {
	forBoth(t, func(t *testing.T, version int) {
		h, c := newHost(t, atOnce), connections[version]
		h.offer(t, h.one, c)
		echo, peers := c.echo(guest.FirstAnnouncedID, announcedPort), c.echo(7, 61001)
		for _, before := range [][]byte{nil, timestamps, {1}} {
			if len(before)+len(echo) > 40 {
				continue
			}
			sent := c.out()
			sent.Options = slices.Concat(before, echo)
			leaves := sent
			leaves.Options = slices.Concat(before, slices.Repeat([]byte{1}, len(echo)))
			h.begin(t, h.one, c)
			comes := c.in()
			h.run(t, h.to, h.one, comes.Frame())
			own := c.out()
			own.Options = peers
			h.sends(t, h.one, own, own)
			h.sends(t, h.one, sent, leaves)
		}
	})
}

func TestWhatThePeerAnnouncesItselfIsLeftToIt(t *testing.T) {
	forBoth(t, func(t *testing.T, version int) {
		h, c := newHost(t, guest.ToGuestGuest{Joins: joins, Bytes: 10_000}), connections[version]
		h.begin(t, h.one, c)
		byID, byPort := c.in(), c.in()
		byID.Options = whole(c.announcement(guest.FirstAnnouncedID, 61001))
		byPort.Options = whole(c.announcement(9, announcedPort+1))
		h.receives(t, h.one, byID, byID)
		h.receives(t, h.one, byPort, byPort)
		comes := c.in()
		comes.Options, comes.Acknowledge = timestamps, comes.Acknowledge+20_000
		reaches := comes
		reaches.Options = whole(c.announced(2))
		h.receives(t, h.one, comes, reaches)
	})
}

func TestNothingIsAnnouncedBeyondWhatThePolicyWants(t *testing.T) {
	h, c := newHost(t, guest.ToGuestGuest{Joins: 1}), connections[4]
	h.offer(t, h.one, c)
	sent := c.join(41000, announcedPort)
	h.sends(t, h.one, sent, to(sent, 80))
	time.Sleep(120 * time.Millisecond)
	comes := c.in()
	h.receives(t, h.one, comes, comes)
	closed := packettest.Segment{From: c.peer, To: sent.From, Flags: rst}
	h.receives(t, h.one, closed, from(closed, announcedPort))
	time.Sleep(220 * time.Millisecond) // one brought nothing in the end
	reaches := comes
	reaches.Options = c.announced(1)
	h.receives(t, h.one, comes, reaches)
}

func TestOneGuestDoesNotReachTheFlowsOfAnother(t *testing.T) {
	h, c := newHost(t, atOnce), connections[4]
	h.offer(t, h.one, c)
	sent := c.join(41000, announcedPort)
	h.sends(t, h.one, sent, to(sent, 80))

	t.Run("by its token", func(t *testing.T) {
		h.sends(t, h.two, c.join(42000, announcedPort), c.join(42000, announcedPort))
	})
	t.Run("by its addresses", func(t *testing.T) {
		closed := packettest.Segment{From: sent.From, To: sent.To, Flags: rst}
		h.sends(t, h.two, closed, closed)
		other := c.out()
		other.Flags = rst
		h.sends(t, h.two, other, other)
	})
	t.Run("by as many connections as it likes", func(t *testing.T) {
		random := rand.New(rand.NewPCG(1, 2))
		for i := range 3 * guest.MaxGuestFlows {
			forged := connection{
				netip.AddrPortFrom(c.guest.Addr(), uint16(random.Uint32())), netip.AddrPortFrom(c.peer.Addr(), uint16(i)),
				random.Uint64(), random.Uint64(),
			}
			first := forged.out()
			first.Flags, first.Options = syn, capable
			h.run(t, h.from, h.two, first.Frame())
			third := forged.out()
			third.Options = forged.keys(1)
			h.run(t, h.from, h.two, third.Frame())
		}
	})
	data := packettest.Segment{From: sent.From, To: sent.To, Flags: ack, Payload: []byte("data")}
	h.sends(t, h.one, data, to(data, 80))
	back := packettest.Segment{From: c.peer, To: sent.From, Flags: ack, Payload: []byte("data")}
	h.receives(t, h.one, back, from(back, announcedPort))
	require.EqualValues(t, 1, h.counts(t, h.one).Connections)
}

// A guest that forges third ACKs and joins on its own connections gets what it forged, and
// nobody else: its other connections keep their ports.
func TestWhatAGuestForgesOfAnEstablishedConnectionIsNotLearned(t *testing.T) {
	h, c := newHost(t, atOnce), connections[4]
	h.offer(t, h.one, c)
	forged := c
	forged.guestKey, forged.peerKey = 1, 2
	third := forged.out()
	third.Options = forged.keys(1)
	h.sends(t, h.one, third, third)
	join := forged.join(41000, announcedPort)
	h.sends(t, h.one, join, join)
	genuine := c.join(41001, announcedPort)
	h.sends(t, h.one, genuine, to(genuine, 80))
}

func TestFramesThatAreNotUnderstoodPassUntouched(t *testing.T) {
	for _, version := range []int{4, 6} {
		c := connections[version]
		h := newHost(t, atOnce)
		h.begin(t, h.one, c)
		join := c.join(41000, announcedPort)
		for name, change := range map[string]func(*packettest.Segment){
			"with a VLAN tag": func(s *packettest.Segment) { s.VLAN = 5 },
			"of UDP":          func(s *packettest.Segment) { s.Protocol = packettest.UDP },
			"cut off":         func(s *packettest.Segment) { offset := uint8(15); s.DataOffset = &offset; s.Options = nil },
		} {
			t.Run(name, func(t *testing.T) {
				for _, segment := range []packettest.Segment{c.in(), join} {
					change(&segment)
					h.sends(t, h.one, segment, segment)
					h.receives(t, h.one, segment, segment)
				}
			})
		}
	}
}

// mutations is how many packets are tried of each version of IP; BRAID_MUTATIONS says another
// number.
func mutations(t *testing.T) int {
	t.Helper()
	number := os.Getenv("BRAID_MUTATIONS")
	if number == "" {
		return 20_000
	}
	count, err := strconv.Atoi(number)
	require.NoError(t, err)
	return count
}

// Whatever bits are turned over on the way, nothing but ports, checksums and echoes changes
// in what a guest sends, and in what it receives that or all of it, into an announcement.
func TestOfMutatedPacketsNothingElseChanges(t *testing.T) {
	for _, version := range []int{4, 6} {
		c := connections[version]
		h := newHost(t, atOnce)
		h.offer(t, h.one, c)
		join := c.join(41000, announcedPort)
		h.sends(t, h.one, join, to(join, 80))
		echo, data, back := c.out(), join, c.in()
		echo.Options = c.echo(guest.FirstAnnouncedID, announcedPort)
		data.Flags, data.Options, data.Payload = ack, dataAck, []byte("data")
		back.To = netip.AddrPortFrom(c.guest.Addr(), 41000)
		header := map[int]int{4: 34, 6: 54}[version]
		random := rand.New(rand.NewPCG(uint64(version), 1))
		seeds := [][]byte{join.Frame(), echo.Frame(), data.Frame(), back.Frame(), c.in().Frame()}
		for range mutations(t) {
			frame := slices.Clone(seeds[random.IntN(len(seeds))])
			for range 1 + random.IntN(3) {
				frame[12+random.IntN(len(frame)-12)] ^= 1 << random.IntN(8)
			}
			if etherType := binary.BigEndian.Uint16(frame[12:]); etherType == 0x86dd && len(frame) < 54 {
				continue // the kernel refuses the test run
			}
			v, out := h.run(t, h.from, h.one, frame)
			if v != next {
				require.Equal(t, dropped, v)
				require.NotZero(t, frame[header+13]&syn)
				continue
			}
			expectOnly(t, frame, out, header, 2)
			v, out = h.run(t, h.to, h.one, frame)
			require.Equal(t, next, v)
			if len(out) == len(frame) && frame[header+13] != ack|8 && out[header+13] == frame[header+13] && slices.Equal(out[header+4:header+16], frame[header+4:header+16]) {
				expectOnly(t, frame, out, header, 0)
			}
		}
	}
}

// expectOnly: but for one port, the checksum, and options that became NOPs, it is the same.
func expectOnly(t *testing.T, frame, out []byte, header, port int) {
	t.Helper()
	require.Len(t, out, len(frame))
	for i := range frame {
		at := i - header
		isPort, isChecksum := at == port || at == port+1, at == 16 || at == 17
		isOption := at >= 20 && out[i] == 1
		if frame[i] != out[i] && !isPort && !isChecksum && !isOption {
			t.Fatalf("byte %d changed:\n%x\n%x", i, frame, out)
		}
	}
}
