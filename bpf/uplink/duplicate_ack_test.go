// SPDX-License-Identifier: Apache-2.0

package uplink_test

import (
	"encoding/binary"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"

	"braid.dev/braid/bpf/packettest"
	"braid.dev/braid/bpf/uplink"
	"braid.dev/braid/internal/testutil"
)

// saying is what an acknowledgement without data has beside its number.
type saying struct {
	sacks bool
	flags uint8 // of the DSS
	data  uint64
}

// Flags of a DSS.
const (
	hasDataACK  = 0x01
	dataACKLong = 0x02
	hasMapping  = 0x04
	endsTheData = 0x10
	someDataACK = 0x0001_0007_0000_004d
	olderThanIt = 0x0000_0008_0000_004d
)

// options are as Linux writes them.
func (s saying) options() []byte {
	all := slices.Concat(nop, nop, timestamps)
	if s.sacks {
		all = slices.Concat(all, nop, nop, sack)
	}
	dss := []byte{30, 0, 2 << 4, s.flags}
	if s.flags&dataACKLong != 0 {
		dss = binary.BigEndian.AppendUint64(dss, s.data)
	} else {
		dss = binary.BigEndian.AppendUint32(dss, uint32(s.data))
	}
	dss[1] = uint8(len(dss))
	return append(all, dss...)
}

// way is one of the two that acknowledgements go.
type way struct {
	name    string
	counted uint32
	acks    func(e ends, number uint32, s saying) segment
	pass    func(n *node, t testutil.TB, frame []byte) []byte
}

var ways = []way{
	{"sent", uplink.ACKSent,
		func(e ends, number uint32, s saying) segment {
			return e.out().with(func(o *segment) { o.sequence, o.answer, o.options = mine+100, theirs+number, s.options() })
		},
		func(n *node, t testutil.TB, frame []byte) []byte {
			return n.after(t, n.to, skBuff{Ifindex: n.nics[green]}, frame)
		}},
	{"received", uplink.ACKReceived,
		func(e ends, number uint32, s saying) segment {
			return e.hears(number, 0).with(func(o *segment) { o.options = s.options() })
		},
		func(n *node, t testutil.TB, frame []byte) []byte {
			return n.after(t, n.from, skBuff{Ifindex: n.nics[green], IngressIfindex: n.nics[green]}, frame)
		}},
}

// after is what a program makes of a frame that passes.
func (n *node) after(t testutil.TB, program *ebpf.Program, context skBuff, frame []byte) []byte {
	t.Helper()
	n.answersOthers(t)
	v, after := n.changed(t, program, frame, context)
	require.Equal(t, next, v)
	return after
}

// withdrawn is how many DATA_ACKs were made older.
func (n *node) withdrawn(t testutil.TB, w way) (sum uint64) {
	t.Helper()
	for _, count := range *lookup[[]uint64](t, n.maps.Withdrawn, w.counted) {
		sum += count
	}
	return sum
}

// eachWay runs a test for acknowledgements of flows that several packets come by of, and of others.
func eachWay(t *testing.T, f func(t *testing.T, n *node, w way, acks func(number uint32, s saying) segment, pass func(s segment) []byte)) {
	n := newNode(t)
	first := uint32(0) // what flows before have acknowledged is not forgotten
	for _, w := range ways {
		for rests, pause := range map[string]time.Duration{"at once": 0, "now and then": 10 * time.Millisecond} {
			t.Run(w.name+" "+rests, func(t *testing.T) {
				eachRole(t, n, func(t *testing.T, e ends) {
					first += 1000
					acks := func(number uint32, s saying) segment { return w.acks(e, first+number, s) }
					f(t, n, w, acks, func(s segment) []byte {
						time.Sleep(pause)
						return w.pass(n, t, s.frame())
					})
				})
			})
		}
	}
}

func TestTheDataACKOfADuplicateIsMadeOlder(t *testing.T) {
	eachWay(t, func(t *testing.T, n *node, w way, acks func(uint32, saying) segment, pass func(segment) []byte) {
		before := n.withdrawn(t, w)
		for _, c := range []struct {
			flags       uint8
			says, older uint64
		}{
			{hasDataACK | dataACKLong, someDataACK, olderThanIt},
			{hasDataACK | dataACKLong, 0x0000_0002_ffff_ffff, 0xffff_0002_ffff_ffff},
			{hasDataACK | dataACKLong, 0x1234_ffff_0000_0000, 0x1233_0001_0000_0000},
			{hasDataACK, 0x8000_004d, 0x4000_404d},
			{hasDataACK, 0x0001_0005, 0xc001_4004},
			{hasDataACK, 0x9abc_efff, 0x5abc_3000},
		} {
			says := saying{false, c.flags, c.says}
			first := acks(200, says)
			require.Equal(t, first.frame(), pass(first), "the first one")
			says.sacks = true
			missing := acks(200, says)
			says.data = c.older
			for range 3 {
				require.Equal(t, acks(200, says).frame(), pass(missing), "one that repeats it")
			}
			says.data = c.says
			overtaken := acks(150, says)
			says.data = c.older
			require.Equal(t, acks(150, says).frame(), pass(overtaken), "one that it has overtaken")
		}
		require.EqualValues(t, 24, n.withdrawn(t, w)-before)
	})
}

func TestOtherAcknowledgementsStayAsTheyAre(t *testing.T) {
	eachWay(t, func(t *testing.T, n *node, w way, acks func(uint32, saying) segment, pass func(segment) []byte) {
		long := uint8(hasDataACK | dataACKLong)
		before := n.withdrawn(t, w)
		for name, s := range map[string]segment{
			"one that acknowledges something new": acks(300, saying{true, long, someDataACK}),
			"one that lacks nothing":              acks(200, saying{false, long, someDataACK}),
			"one that says that the data ends":    acks(200, saying{true, long | endsTheData, someDataACK}),
			"one that maps data":                  acks(200, saying{true, long | hasMapping, someDataACK}),
			"one without a DATA_ACK":              acks(200, saying{true, dataACKLong, someDataACK}),
			"one that has data":                   acks(200, saying{true, long, someDataACK}).with(func(s *segment) { s.payload = make([]byte, 10) }),
			"one that ends":                       acks(200, saying{true, long, someDataACK}).with(func(s *segment) { s.flags |= fin }),
			"one whose DATA_ACK is cut off":       acks(200, saying{true, long, someDataACK}).with(func(s *segment) { s.options = cutDataACK(s.options) }),
		} {
			known := acks(200, saying{false, long, someDataACK})
			require.Equal(t, known.frame(), pass(known))
			require.Equal(t, s.frame(), pass(s), name)
		}
		require.Equal(t, before, n.withdrawn(t, w))
	})
}

// cutDataACK has a DSS of 8 bytes say that its DATA_ACK has 8.
func cutDataACK(options []byte) []byte {
	dss := len(options) - 12
	options[dss+1] = 8
	return options[:dss+8]
}

// What a NIC is to complete holds the sum of the pseudo header.
func TestAChecksumOfADuplicateThatIsBegunStaysSo(t *testing.T) {
	eachWay(t, func(t *testing.T, n *node, w way, acks func(uint32, saying) segment, pass func(segment) []byte) {
		says := saying{false, hasDataACK | dataACKLong, someDataACK}
		pass(acks(200, says))
		says.sacks = true
		before := begun(acks(200, says))
		says.data = olderThanIt
		require.Equal(t, begun(acks(200, says)), w.pass(n, t, before))
	})
}

// A whole checksum looks as if it were begun once in 65,536 times.
func TestADuplicateOfWhichNobodyKnowsWhetherItsChecksumIsBegunIsChangedAsOthersAre(t *testing.T) {
	eachWay(t, func(t *testing.T, n *node, w way, acks func(uint32, saying) segment, pass func(segment) []byte) {
		says := saying{false, hasDataACK | dataACKLong, someDataACK}
		pass(acks(200, says))
		says.sacks = true
		ambiguous := acks(200, says).with(func(s *segment) {
			whole, at := s.frame(), len(s.frame())-len(s.options)-4 // the checksum
			sum := uint32(^binary.BigEndian.Uint16(begun(*s)[at:])) + uint32(binary.BigEndian.Uint16(whole[at:]))
			binary.BigEndian.PutUint16(s.options[4:], uint16(sum)+uint16(sum>>16)) // of the time
		})
		require.Equal(t, begun(ambiguous), ambiguous.frame(), "the test shows nothing")
		older := ambiguous.with(func(s *segment) {
			s.options = slices.Clone(s.options)
			binary.BigEndian.PutUint64(s.options[len(s.options)-8:], olderThanIt)
		})
		require.Equal(t, older.frame(), pass(ambiguous))
	})
}

// begun is a segment's frame whose checksum is not complete.
func begun(s segment) []byte {
	frame := s.frame()
	tcp := len(frame) - tcpLength - len(s.options)
	addresses := map[bool]int{true: 8, false: 32}[s.from.Addr().Is4()]
	pseudo := append(slices.Clone(frame[tcp-addresses:tcp]), 0, protocolTCP, 0, byte(len(frame)-tcp))
	binary.BigEndian.PutUint16(frame[tcp+16:], packettest.Sum(pseudo))
	return frame
}

func TestDuplicatesInTunnelsAreChanged(t *testing.T) {
	n := newNode(t)
	forEachTunnel(t, func(t *testing.T, tunnel packettest.Tunnel, e ends) {
		n.withTunnels(t)
		n.beginThrough(t, tunnel, e)
		says := saying{false, hasDataACK | dataACKLong, someDataACK}
		acks := func(s saying) []byte {
			return back(tunnel).Frame(e.flip().out().with(func(o *segment) { o.sequence, o.options = answerNumber+1, s.options() }).frame())
		}
		context := skBuff{Ifindex: n.nics[green], IngressIfindex: n.nics[green]}
		require.Equal(t, acks(says), n.after(t, n.from, context, acks(says)))
		says.sacks = true
		require.Equal(t, acks(saying{true, says.flags, olderThanIt}), n.after(t, n.from, context, acks(says)))
	})
}

// Another pod of the node acknowledges what has not come yet, with the address of one of ours.
func TestWhatAnotherInterfaceAcknowledgesIsNoFlows(t *testing.T) {
	n := newNode(t)
	says := saying{false, hasDataACK | dataACKLong, someDataACK}
	first := uint32(0) // what flows before have acknowledged is not forgotten
	for rests, pause := range map[string]time.Duration{"at once": 0, "now and then": 10 * time.Millisecond} {
		t.Run(rests, func(t *testing.T) {
			forEachVersion(t, func(t *testing.T, _ int, e ends) {
				n.reset(t)
				n.selectPod(t, weights(1, 0, 0))
				n.knowInterface(t)
				n.egressFrom(t, podInterface, e.syn(capable(1)))
				n.ingress(t, blue, e.synAck(capableWithKey(key)).frame())
				n.egressFrom(t, podInterface, e.third())
				first += 10_000
				acks := func(number uint32, sacks bool) segment {
					s := says
					s.sacks = sacks
					return e.out().with(func(o *segment) { o.answer, o.options = answerNumber+1+first+number, s.options() })
				}
				for range 3 {
					n.egressFrom(t, podInterface, acks(200, false))
				}
				time.Sleep(pause)
				n.egressFrom(t, otherInterface, acks(900, false))
				n.egressFrom(t, podInterface, acks(300, true)) // stays as it is
				_, after := n.changed(t, n.to, acks(300, true).frame(), skBuff{Ifindex: n.nics[blue], IngressIfindex: podInterface})
				require.NotEqual(t, acks(300, true).frame(), after, "what repeats the pod's own is changed")
			})
		})
	}
}
