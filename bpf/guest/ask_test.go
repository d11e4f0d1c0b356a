// SPDX-License-Identifier: Apache-2.0

package guest_test

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"braid.dev/braid/bpf"
	"braid.dev/braid/bpf/guest"
	"braid.dev/braid/bpf/packettest"
	"braid.dev/braid/bpf/transport"
	"braid.dev/braid/internal/lab/network"
)

// asker is a namespace with the ends of two guests' interfaces, and the program that asks
// for them, attached nowhere.
type asker struct {
	host
	loaded *guest.AskPeersObjects
	tables map[int]*ebpf.Map
	inner  *ebpf.MapSpec
}

func newAsker(t testing.TB) *asker {
	t.Helper()
	spec, err := guest.LoadAskPeers()
	require.NoError(t, err)
	a := &asker{host: host{Namespace: network.NamespaceForTest(t)}, loaded: &guest.AskPeersObjects{}, tables: map[int]*ebpf.Map{}, inner: spec.Maps["asked_connections"].InnerMap}
	require.NoError(t, spec.LoadAndAssign(a.loaded, nil))
	t.Cleanup(func() { a.loaded.Close() })
	peer := network.NamespaceForTest(t)
	for name, index := range map[string]*int{"one": &a.one, "two": &a.two} {
		require.NoError(t, network.Connect(a.Namespace, name, peer, name, network.Options{MTU: 9000}))
		*index, err = a.Index(name)
		require.NoError(t, err)
	}
	return a
}

// The numbers that tests ask for.
var numbers = map[int]uint32{
	transport.RequestUserTimeout: 7, transport.RequestInitialWindow: 80, transport.RequestCongestionControl: 0xabcd,
	transport.RequestDelayedACK: 20, transport.RequestSchedule: 0x1234, transport.RequestDelayThreshold: 100, transport.RequestInactivityTimeout: 60,
}

// wants has the peers of a guest asked for these.
func (a *asker) wants(t testing.TB, index int, requests ...int) {
	t.Helper()
	want := guest.AskPeersAskingGuest{Revision: 1}
	for _, request := range requests {
		want.Asked |= 1 << request
		want.Number[request] = numbers[request]
	}
	table, err := ebpf.NewMap(a.inner)
	require.NoError(t, err)
	t.Cleanup(func() { table.Close() })
	a.tables[index] = table
	require.NoError(t, a.loaded.AskedConnections.Put(uint32(index), table))
	require.NoError(t, a.loaded.AskingGuests.Put(uint32(index), want))
}

func (a *asker) written(t testing.TB, index int) uint64 {
	t.Helper()
	var of guest.AskPeersAskingGuest
	require.NoError(t, a.loaded.AskingGuests.Lookup(uint32(index), &of))
	return of.Written
}

// leaves expects that what a guest sends leaves as another segment.
func (a *asker) leaves(t testing.TB, index int, sent, leaves packettest.Segment, tags ...tag) {
	t.Helper()
	v, out := a.run(t, a.loaded.AskPeers, index, within(sent.Frame(), tags...))
	require.Equal(t, next, v)
	require.Equal(t, within(leaves.Frame(), tags...), out)
}

// asking is the option with these requests.
func asking(requests ...int) []byte {
	option := []byte{transport.OptionExperiment, byte(4 + 4*len(requests)), transport.Experiment >> 8, transport.Experiment & 0xff}
	for _, request := range requests {
		option = append(option, byte(request), 4, byte(numbers[request]>>8), byte(numbers[request]))
	}
	return option
}

var (
	askingTimeout = []byte{transport.OptionUserTimeout, 4, 0, 7}
	sack          = []byte{1, 1, 5, 10, 0, 0, 0, 1, 0, 0, 0, 2}
	twoSacks      = []byte{1, 1, 5, 18, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4}
)

// with is a segment with more options behind its own.
func with(s packettest.Segment, more ...[]byte) packettest.Segment {
	s.Options = slices.Clone(s.Options)
	for len(s.Options)%4 != 0 {
		s.Options = append(s.Options, 1)
	}
	s.Options = append(s.Options, slices.Concat(more...)...)
	return s
}

func TestAnAcknowledgementAsksForAsMuchAsItHasRoomFor(t *testing.T) {
	const cc, delay, threshold = transport.RequestCongestionControl, transport.RequestDelayedACK, transport.RequestDelayThreshold
	all := []int{transport.RequestUserTimeout, cc, delay, threshold}
	for name, test := range map[string]struct {
		has    []byte
		rounds [][]byte // what the first acknowledgements say, one after another
	}{
		"no options":              {nil, [][]byte{slices.Concat(asking(cc, delay, threshold), askingTimeout)}},
		"timestamps":              {timestamps, [][]byte{slices.Concat(asking(cc, delay, threshold), askingTimeout)}},
		"timestamps and DSS":      {slices.Concat(timestamps, []byte{30, 12, 0x20, 0x03}, make([]byte, 8)), [][]byte{asking(cc, delay, threshold)[:16], askingTimeout}},
		"timestamps and a SACK":   {slices.Concat(timestamps, sack), [][]byte{asking(cc, delay, threshold), askingTimeout}},
		"timestamps and 2 SACKs":  {slices.Concat(timestamps, twoSacks), [][]byte{asking(cc), asking(delay), asking(threshold), askingTimeout}},
		"room for a word":         {slices.Concat(timestamps, twoSacks, []byte{1, 1, 1, 1}), [][]byte{askingTimeout, nil}},
		"all room taken":          {slices.Concat(timestamps, twoSacks, dataAck), [][]byte{nil, nil}},
		"an end mark":             {slices.Concat(timestamps, []byte{0, 0, 0, 0}), nil},
		"options that end abrupt": {slices.Concat(timestamps, []byte{8, 60, 0, 0}), [][]byte{nil, nil}},
	} {
		t.Run(name, func(t *testing.T) {
			forBoth(t, func(t *testing.T, version int) {
				a := newAsker(t)
				a.wants(t, a.one, all...)
				sent := connections[version].out()
				sent.Options = test.has
				if test.rounds == nil { // what follows an end mark would not be read: NOPs stand there
					sent.Options = slices.Concat(timestamps, []byte{0, 0, 0, 0})
					leaves := sent
					leaves.Options = slices.Concat(timestamps, []byte{1, 1, 1, 1}, asking(cc, delay, threshold), askingTimeout)
					a.leaves(t, a.one, sent, leaves)
					return
				}
				for _, says := range test.rounds {
					a.leaves(t, a.one, sent, with(sent, says))
				}
			})
		})
	}
}

func TestPeersAreAskedBehindTags(t *testing.T) {
	for name, tags := range tagged {
		t.Run(name, func(t *testing.T) {
			forBoth(t, func(t *testing.T, version int) {
				a := newAsker(t)
				a.wants(t, a.one, transport.RequestCongestionControl)
				sent := connections[version].out()
				sent.Options = timestamps
				a.leaves(t, a.one, sent, with(sent, asking(transport.RequestCongestionControl)), tags...)
			})
		})
	}
}

func TestTheThirdAcknowledgementAsksForAnInitialWindow(t *testing.T) {
	forBoth(t, func(t *testing.T, version int) {
		a, c := newAsker(t), connections[version]
		a.wants(t, a.one, transport.RequestInitialWindow, transport.RequestCongestionControl)
		first, third := c.out(), c.out()
		first.Sequence, first.Flags, first.Options = first.Sequence-1, syn, capable
		third.Options = slices.Concat(timestamps, c.keys(0x01))
		a.leaves(t, a.one, first, first)
		a.leaves(t, a.one, third, with(third, asking(transport.RequestInitialWindow)))
		a.grow(t, a.one, c)
		a.leaves(t, a.one, third, with(third, asking(transport.RequestInitialWindow)))
		a.leaves(t, a.one, third, with(third, asking(transport.RequestInitialWindow)))
		later := c.out()
		later.Acknowledge++
		a.leaves(t, a.one, later, with(later, asking(transport.RequestCongestionControl)))

		t.Run("after data of the guest's there is none to ask for", func(t *testing.T) {
			a.leaves(t, a.one, first, first)
			sent := c.out()
			sent.Sequence += 100
			a.leaves(t, a.one, sent, sent)
		})
	})
}

func TestAYoungConnectionAsksForAnInitialWindowAlone(t *testing.T) {
	a := newAsker(t)
	a.wants(t, a.one, transport.RequestInitialWindow, transport.RequestCongestionControl)
	for name, flags := range map[string]byte{"that the guest begins": syn, "that the other end begins": syn | ack} {
		t.Run(name, func(t *testing.T) {
			c := connectionOf(4, uint16(flags))
			first, sent := c.out(), c.out()
			first.Flags, sent.Sequence = flags, sent.Sequence+100
			a.leaves(t, a.one, first, first)
			a.leaves(t, a.one, sent, sent)
			a.grow(t, a.one, c)
			a.leaves(t, a.one, sent, with(sent, asking(transport.RequestCongestionControl)))
		})
	}
}

// grow makes a connection so old that all is asked for.
func (a *asker) grow(t testing.TB, index int, c connection) {
	t.Helper()
	a.change(t, index, c, func(known *guest.AskPeersAskedConnection) { known.Since -= uint64(100 * time.Millisecond) })
}

// keyOf is a connection in the programs' form.
func keyOf(c connection) (key guest.AskPeersAskedConnectionKey) {
	key.Guest.Word, key.Peer.Word = bpf.Words(c.guest.Addr()), bpf.Words(c.peer.Addr())
	key.GuestPort, key.PeerPort = bpf.Port(c.guest.Port()), bpf.Port(c.peer.Port())
	return key
}

// change changes what is known of a connection.
func (a *asker) change(t testing.TB, index int, c connection, change func(*guest.AskPeersAskedConnection)) {
	t.Helper()
	var known guest.AskPeersAskedConnection
	require.NoError(t, a.tables[index].Lookup(keyOf(c), &known))
	change(&known)
	require.NoError(t, a.tables[index].Put(keyOf(c), known))
}

func TestItIsAskedThreeTimesAtOnceAndThenOnceASecond(t *testing.T) {
	a, c := newAsker(t), connections[4]
	a.wants(t, a.one, transport.RequestDelayedACK)
	sent := c.out()
	asks := with(sent, asking(transport.RequestDelayedACK))
	for range 3 {
		a.leaves(t, a.one, sent, asks)
	}
	for range 3 {
		a.leaves(t, a.one, sent, sent)
	}
	a.change(t, a.one, c, func(known *guest.AskPeersAskedConnection) { known.RoundBegan -= uint64(time.Second) })
	a.leaves(t, a.one, sent, asks)
	a.leaves(t, a.one, sent, sent)
	require.EqualValues(t, 4, a.written(t, a.one))

	t.Run("another policy at once, without what the agent said under the last one", func(t *testing.T) {
		a.change(t, a.one, c, func(known *guest.AskPeersAskedConnection) { known.Rate = 77 })
		var of guest.AskPeersAskingGuest
		require.NoError(t, a.loaded.AskingGuests.Lookup(uint32(a.one), &of))
		of.Revision++
		require.NoError(t, a.loaded.AskingGuests.Put(uint32(a.one), of))
		a.leaves(t, a.one, sent, asks)
	})
}

func TestWhatTheAgentSaysOfASubflowIsAskedThere(t *testing.T) {
	a, c := newAsker(t), connections[6]
	a.wants(t, a.one, transport.RequestCongestionControl)
	sent := c.out()
	a.leaves(t, a.one, sent, with(sent, asking(transport.RequestCongestionControl)))
	a.change(t, a.one, c, func(known *guest.AskPeersAskedConnection) {
		known.Rate, known.CongestionControl, known.Schedule = 0x2233, 0x4455, 0x6677
	})
	a.leaves(t, a.one, sent, with(sent, []byte{253, 16, 0xb8, 0x1d},
		[]byte{transport.RequestCongestionControl, 4, 0x44, 0x55, transport.RequestRate, 4, 0x22, 0x33, transport.RequestSchedule, 4, 0x66, 0x77}))
	other := connectionOf(6, 5).out()
	a.leaves(t, a.one, other, with(other, asking(transport.RequestCongestionControl)))
}

// everyRequest is all that can be asked of all peers.
var everyRequest = []int{
	transport.RequestUserTimeout, transport.RequestInitialWindow, transport.RequestCongestionControl, transport.RequestDelayedACK,
	transport.RequestSchedule, transport.RequestDelayThreshold, transport.RequestInactivityTimeout,
}

func TestNothingButPureAcknowledgementsAsks(t *testing.T) {
	c := connections[4]
	ends, resets, data, answers, fragment := c.out(), c.out(), c.out(), c.out(), c.out()
	ends.Flags, resets.Flags, answers.Flags = ack|fin, ack|rst, syn|ack
	data.Payload, fragment.Fragment = []byte("x"), 0x2000
	alone, timeout, notTCP := with(c.out(), asking(transport.RequestRate)), with(c.out(), askingTimeout), c.out()
	notTCP.Protocol = 17
	for name, segment := range map[string]packettest.Segment{
		"data": data, "a FIN": ends, "a reset": resets, "the answer to a SYN": answers, "a fragment": fragment, "no TCP": notTCP,
		"a guest that asks itself": alone, "a guest that tells its own timeout": timeout,
	} {
		t.Run(name, func(t *testing.T) {
			a := newAsker(t)
			a.wants(t, a.one, everyRequest...)
			a.leaves(t, a.one, segment, segment)
			require.Zero(t, a.written(t, a.one))
		})
	}
	t.Run("several segments in one packet", func(t *testing.T) {
		a := newAsker(t)
		a.wants(t, a.one, everyRequest...)
		frame := c.out().Frame()
		options := ebpf.RunOptions{Data: frame, DataOut: make([]byte, 300), Context: bpf.SKBuff{Ifindex: uint32(a.one), GSOSegs: 3, GSOSize: 800}}
		require.NoError(t, a.Do(func() error { _, err := a.loaded.AskPeers.Run(&options); return err }))
		require.Equal(t, frame, options.DataOut)
	})
	t.Run("another interface", func(t *testing.T) {
		a := newAsker(t)
		a.wants(t, a.one, everyRequest...)
		a.leaves(t, a.two, c.out(), c.out())
	})
}

// What some drivers leave behind a short frame is no data.
func TestWhatIsBehindAShortFrameGoes(t *testing.T) {
	a := newAsker(t)
	a.wants(t, a.one, transport.RequestDelayedACK)
	sent := connections[4].out()
	sent.Trailer = []byte{9, 9, 9, 9, 9, 9}
	leaves := with(connections[4].out(), asking(transport.RequestDelayedACK))
	a.leaves(t, a.one, sent, leaves)
}

func TestAGuestWithVeryManyConnectionsTakesNoOthersPlace(t *testing.T) {
	a, victim := newAsker(t), connections[4]
	for _, index := range []int{a.one, a.two} {
		a.wants(t, index, transport.RequestDelayedACK)
	}
	a.run(t, a.loaded.AskPeers, a.two, victim.out().Frame())
	for port := range 10_000 {
		c := connectionOf(4, uint16(port+1)).out()
		if port%2 == 0 {
			c.Flags = syn
		}
		a.run(t, a.loaded.AskPeers, a.one, c.Frame())
	}
	var key guest.AskPeersAskedConnectionKey
	var known guest.AskPeersAskedConnection
	count := 0
	for entries := a.tables[a.one].Iterate(); entries.Next(&key, &known); {
		count++
	}
	require.LessOrEqual(t, count, int(a.inner.MaxEntries))
	require.NoError(t, a.tables[a.two].Lookup(keyOf(victim), &known))
	require.EqualValues(t, 1, known.Rounds)
}

// placeOf is where the headers of network and TCP are in a frame of these tests.
func placeOf(s packettest.Segment) (network, tcp int) {
	network = 14
	if s.VLAN != 0 {
		network += 4
	}
	if s.From.Addr().Is6() {
		return network, network + 40
	}
	return network, network + 20
}

// expectSameHeaders: but for lengths and checksums nothing before the options is another.
func expectSameHeaders(t *testing.T, s packettest.Segment, before, after []byte) {
	t.Helper()
	network, tcp := placeOf(s)
	length, checksum := network+2, network+10
	if s.From.Addr().Is6() {
		length, checksum = network+4, network+4
	}
	for at := range tcp + 20 {
		if at == length || at == length+1 || at == checksum || at == checksum+1 || at == tcp+12 || at == tcp+16 || at == tcp+17 {
			continue
		}
		require.Equal(t, before[at], after[at], "byte %d of\n% x\n% x", at, before, after)
	}
	require.Equal(t, before[tcp+12]&0xf, after[tcp+12]&0xf)
	require.LessOrEqual(t, int(after[tcp+12]>>4)*4, 60)
}

// randomSegment is one of any kind that a guest may send.
func randomSegment(random *rand.Rand) packettest.Segment {
	kinds := [][]byte{nil, timestamps, dataAck, sack, capable, slices.Concat(timestamps, dataAck), slices.Concat(timestamps, twoSacks), {0, 0, 0, 0}, {2, 4, 5, 180}, asking(transport.RequestRate)}
	segment := connectionOf([]int{4, 6}[random.IntN(2)], uint16(random.IntN(1<<14))).out()
	segment.Options = slices.Concat(kinds[random.IntN(len(kinds))], kinds[random.IntN(len(kinds))])
	segment.Options = segment.Options[:min(len(segment.Options), 40)]
	segment.Payload = make([]byte, max(0, random.IntN(40)-30))
	segment.VLAN = uint16(random.IntN(2) * 7)
	segment.Flags = []byte{ack, ack, ack, ack | 8, syn, ack | fin}[random.IntN(6)]
	return segment
}

// Frames of all kinds, and such with bytes changed anywhere: what leaves is what came, or has
// an option more and is right where it was.
func TestNothingChangesButTheOption(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	a := newAsker(t)
	a.wants(t, a.one, everyRequest...)
	whole, mutated := 0, 0
	for round := range 60_000 {
		segment := randomSegment(random)
		frame := segment.Frame()
		_, tcp := placeOf(segment)
		if round%2 == 1 {
			for range 1 + random.IntN(3) { // of TCP, so that it is known where it is
				frame[tcp+random.IntN(len(frame)-tcp)] = byte(random.IntN(256))
			}
		}
		v, out := a.run(t, a.loaded.AskPeers, a.one, frame)
		require.Equal(t, next, v)
		switch {
		case bytes.Equal(frame, out):
		case round%2 == 1:
			mutated++
			expectSameHeaders(t, segment, frame, out)
		default:
			whole++
			expectRight(t, segment, out[len(frame):], out)
		}
	}
	t.Logf("%d frames asked, and %d of those with changed bytes", whole, mutated)
	require.Greater(t, whole, 5_000)
	require.Greater(t, mutated, 2_000)
}

// Bytes that change anywhere, headers of the network and of its tags too: nothing is dropped.
func TestFramesOfAnyBytesPass(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	a := newAsker(t)
	a.wants(t, a.one, everyRequest...)
	for range 40_000 {
		frame := randomSegment(random).Frame()
		for range 1 + random.IntN(6) {
			frame[12+random.IntN(len(frame)-12)] = byte(random.IntN(256))
		}
		v, _ := a.run(t, a.loaded.AskPeers, a.one, frame)
		require.Equal(t, next, v)
	}
}

// expectRight: lengths and checksums are those that a sender would have written.
func expectRight(t *testing.T, sent packettest.Segment, option, out []byte) {
	t.Helper()
	had := len(sent.Options)
	leaves := with(sent, option)
	if at := endMark(sent.Options); at >= 0 {
		for i := at; i < had; i++ {
			leaves.Options[i] = 1
		}
	}
	require.Equal(t, leaves.Frame(), out, "% x", option)
}

// endMark is where the options end before their space does; -1 for nowhere.
func endMark(options []byte) int {
	for at := 0; at < len(options); {
		switch {
		case options[at] == 0:
			return at
		case options[at] == 1:
			at++
		default:
			at += int(options[at+1])
		}
	}
	return -1
}

// BenchmarkAsking measures what a packet of a guest costs above an empty program.
func BenchmarkAsking(b *testing.B) {
	a, c := newAsker(b), connections[4]
	a.wants(b, loopback, transport.RequestDelayedACK)
	quiet := c.out()
	quiet.Options = timestamps
	data := quiet
	data.Payload = make([]byte, 1000)
	udp := quiet
	udp.Protocol = unix.IPPROTO_UDP
	empty, err := packettest.NewEmpty()
	require.NoError(b, err)
	defer empty.Close()
	for range 3 {
		a.run(b, a.loaded.AskPeers, loopback, quiet.Frame())
	}
	for _, one := range []struct {
		name    string
		segment packettest.Segment
	}{{"data", data}, {"no TCP", udp}, {"an acknowledgement", quiet}} {
		b.Run(one.name, func(b *testing.B) {
			var with, without time.Duration
			for range b.N {
				with += a.cost(b, a.loaded.AskPeers, one.segment.Frame())
				without += a.cost(b, empty, one.segment.Frame())
			}
			b.ReportMetric(float64((with-without).Nanoseconds())/float64(b.N), "ns/packet")
			b.ReportMetric(0, "ns/op")
		})
	}
}
