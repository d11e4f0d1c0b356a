// SPDX-License-Identifier: Apache-2.0

package uplink_test

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"

	"braid.dev/braid/bpf/uplink"
	"braid.dev/braid/internal/testutil"
)

// theAccount is that of the pod, where its traffic is counted.
const theAccount = 3

// noPath is the place of NICs that belong to no path.
const noPath = maxPaths

// counted is what all processors counted of an account on a path.
func (n *node) counted(t testutil.TB, account uint8, path int) (total uplink.ToUplinkTraffic) {
	t.Helper()
	index := uint32(account)*maxPaths + uint32(path)
	if path == noPath {
		index = uplink.TrafficOfNoPath + uint32(account)
	}
	var each []uplink.ToUplinkTraffic
	require.NoError(t, n.maps.Traffic.Lookup(index, &each))
	for _, of := range each {
		total.SentBytes += of.SentBytes
		total.SentPackets += of.SentPackets
		total.ReceivedBytes += of.ReceivedBytes
		total.ReceivedPackets += of.ReceivedPackets
	}
	return total
}

// expectCounted compares all that was counted of all accounts; what is not there is zero.
func (n *node) expectCounted(t testutil.TB, want map[int]uplink.ToUplinkTraffic) {
	t.Helper()
	for account := range uint8(theAccount + 1) {
		for path := range noPath + 1 {
			expected := uplink.ToUplinkTraffic{}
			if account == theAccount {
				expected = want[path]
			}
			require.Equal(t, expected, n.counted(t, account, path), "account %d, path %d", account, path)
		}
	}
}

// resetCounted is a node whose pod is counted, and has sent nothing.
func (n *node) resetCounted(t testutil.TB, preference uplink.ToUplinkPreference) {
	t.Helper()
	n.reset(t)
	preference.Account = theAccount
	n.prefer(t, preference)
	zero := make([]uplink.ToUplinkTraffic, ebpf.MustPossibleCPU())
	for index := range n.maps.Traffic.MaxEntries() {
		put(t, n.maps.Traffic, index, zero)
	}
}

// data is a segment of the pod's with so much payload, and its frame.
func (e ends) data(payload int) segment {
	return e.out().with(func(s *segment) { s.options, s.payload = dataSignal(), make([]byte, payload) })
}

func TestAPacketCountsOnceAtTheNICThatCarriesIt(t *testing.T) {
	n := newNode(t)
	for _, version := range versions {
		e := endsOf[version]
		frame := e.data(1000).frame()
		length := uint64(len(frame))
		once := uplink.ToUplinkTraffic{SentBytes: length, SentPackets: 1}
		cases := map[string]struct {
			preference uplink.ToUplinkPreference
			flow       uint8 // its path
			by         []int // the NICs by which the packet comes, one after the other
			up         uint32
			want       map[int]uplink.ToUplinkTraffic
		}{
			"its own path's NIC":                 {preferring(0), green, []int{green}, allPaths, map[int]uplink.ToUplinkTraffic{green: once}},
			"another NIC, and not sent yet":      {preferring(0), green, []int{blue}, allPaths, nil},
			"another NIC, and then its path's":   {preferring(0), green, []int{blue, green}, allPaths, map[int]uplink.ToUplinkTraffic{green: once}},
			"a preferred path":                   {preferring(1 << red), green, []int{blue, red}, allPaths, map[int]uplink.ToUplinkTraffic{red: once}},
			"a path that stands in":              {preferring(0), green, []int{red}, 1 << red, map[int]uplink.ToUplinkTraffic{red: once}},
			"the route's NIC, with no path left": {preferring(0), green, []int{blue}, 0, map[int]uplink.ToUplinkTraffic{blue: once}},
		}
		for name, c := range cases {
			t.Run(name, func(t *testing.T) {
				n.resetCounted(t, c.preference)
				n.setNode(t, c.up)
				n.putFlow(t, e.out(), uplink.ToUplinkFlow{Endpoint: thePod, Role: initiator, Peer: thePeer, Path: c.flow, Allowed: allPaths})
				for _, path := range c.by {
					n.egress(t, path, frame)
				}
				n.expectCounted(t, c.want)
			})
		}
	}
}

// Two packets of one flow may be on their way at once, from two processors.
func TestPacketsThatPassEachOtherCountOnceEach(t *testing.T) {
	n := newNode(t)
	e := endsOf[4]
	frame := e.data(1000).frame()
	n.resetCounted(t, preferring(0))
	n.putFlow(t, e.out(), uplink.ToUplinkFlow{Endpoint: thePod, Role: initiator, Peer: thePeer, Path: green, Allowed: allPaths})
	for _, path := range []int{blue, blue, green, green} {
		n.egress(t, path, frame)
	}
	n.expectCounted(t, map[int]uplink.ToUplinkTraffic{green: {SentBytes: 2 * uint64(len(frame)), SentPackets: 2}})
}

func TestWhatComesInCountsOnTheNICThatItCameBy(t *testing.T) {
	n := newNode(t)
	for _, version := range versions {
		e := endsOf[version]
		frame := e.data(1000).flip().frame()
		once := uplink.ToUplinkTraffic{ReceivedBytes: uint64(len(frame)), ReceivedPackets: 1}
		for role, path := range map[uint8]int{initiator: red, responder: green} {
			n.resetCounted(t, preferring(0))
			n.putFlow(t, e.out(), uplink.ToUplinkFlow{Endpoint: thePod, Role: role, Peer: thePeer, Path: blue, Allowed: allPaths, Account: theAccount})
			n.ingress(t, path, frame)
			n.expectCounted(t, map[int]uplink.ToUplinkTraffic{path: once})
		}
		n.resetCounted(t, preferring(0))
		n.putFlow(t, e.out(), uplink.ToUplinkFlow{Endpoint: thePod, Role: initiator, Peer: thePeer, Path: blue, Allowed: allPaths, Account: theAccount})
		n.run(t, n.from, frame, skBuff{Ifindex: loopback, IngressIfindex: loopback})
		n.expectCounted(t, map[int]uplink.ToUplinkTraffic{noPath: once})
	}
}

// What the stack or a guest hands over at once is many packets on the wire, each with headers.
func TestSegmentsCountAsTheWireHasThem(t *testing.T) {
	n := newNode(t)
	for _, version := range versions {
		e := endsOf[version]
		out := e.data(2000)
		headers := uint64(len(out.frame()) - 2000)
		cases := map[string]struct {
			context skBuff
			packets uint64
		}{
			"one packet":                        {skBuff{}, 1},
			"four segments":                     {skBuff{GSOSize: 500, GSOSegs: 4}, 4},
			"five, the last one short":          {skBuff{GSOSize: 450, GSOSegs: 5}, 5},
			"a guest's that does not say so":    {skBuff{GSOSize: 450}, 5},
			"a guest's of whole segments alone": {skBuff{GSOSize: 500}, 4},
		}
		for name, c := range cases {
			t.Run(name, func(t *testing.T) {
				bytes := 2000 + c.packets*headers
				n.resetCounted(t, preferring(0))
				n.putFlow(t, e.out(), uplink.ToUplinkFlow{Endpoint: thePod, Role: initiator, Peer: thePeer, Path: green, Allowed: allPaths})
				c.context.Ifindex = n.nics[green]
				n.run(t, n.to, out.frame(), c.context)
				c.context.IngressIfindex = n.nics[green]
				n.run(t, n.from, out.flip().frame(), c.context)
				n.expectCounted(t, map[int]uplink.ToUplinkTraffic{green: {
					SentBytes: bytes, SentPackets: c.packets, ReceivedBytes: bytes, ReceivedPackets: c.packets,
				}})
			})
		}
	}
}

func TestHandshakesCountButForTheSYNThatComesIn(t *testing.T) {
	n := newNode(t)
	e := endsOf[4]
	synLength, answerLength, third := len(e.syn(capable(1)).frame()), len(e.synAck(capableWithKey(key)).frame()), len(e.third().frame())
	n.resetCounted(t, uplink.ToUplinkPreference{Allowed: 1 << blue, Share: everyFlow, Flags: set})
	n.selectPod(t, weights(1))
	n.egress(t, blue, e.syn(capable(1)).frame())
	n.isAnswered(t, e, capableWithKey(key))
	n.expectCounted(t, map[int]uplink.ToUplinkTraffic{blue: {
		SentBytes: uint64(synLength + third), SentPackets: 2, ReceivedBytes: uint64(answerLength), ReceivedPackets: 1,
	}})
	n.resetCounted(t, uplink.ToUplinkPreference{Allowed: 1 << blue, Share: everyFlow, Flags: set})
	n.ingress(t, blue, e.syn(capable(1)).flip().frame()) // anybody can say so
	n.expectCounted(t, nil)
}

func TestNothingElseIsCounted(t *testing.T) {
	n := newNode(t)
	e := endsOf[4]
	flow := uplink.ToUplinkFlow{Endpoint: thePod, Role: initiator, Peer: thePeer, Path: green, Allowed: allPaths}
	cases := map[string]func(){
		"plain TCP of a selected pod": func() {},
		"a flow of no endpoint": func() {
			of := flow
			of.Endpoint = 0
			n.putFlow(t, e.out(), of)
		},
		"an endpoint without an account": func() {
			n.prefer(t, preferring(0))
			n.putFlow(t, e.out(), flow)
		},
		"what is out of sequence at its receiver": func() {
			of := flow
			of.Role, of.Subtype, of.Sequence = responder, answered, bigEndian32(5000)
			n.putFlow(t, e.out(), of)
		},
	}
	for name, prepare := range cases {
		t.Run(name, func(t *testing.T) {
			n.resetCounted(t, preferring(0))
			prepare()
			if name != "what is out of sequence at its receiver" {
				n.egress(t, green, e.data(100).frame())
			}
			n.ingress(t, green, e.data(100).flip().with(func(s *segment) { s.sequence = 1 << 30 }).frame())
			n.expectCounted(t, nil)
		})
	}
}

func TestEachVersionOfAnOverlayCountsWithItsOuterHeaders(t *testing.T) {
	n := newNode(t)
	n.setTunnels(t)
	e := endsOf[4]
	for _, outer := range versions {
		tunnel := between(tunnelKinds["VXLAN"], outer)
		frame := tunnel.Frame(e.data(1000).frame())
		n.resetCounted(t, preferring(0))
		n.setTunnels(t)
		n.putFlow(t, e.out(), uplink.ToUplinkFlow{Endpoint: thePod, Role: initiator, Peer: thePeer, Path: green, Allowed: allPaths, From: ofThePod})
		n.run(t, n.marking(t, ofThePod), frame, skBuff{Ifindex: n.nics[green]})
		n.ingress(t, red, back(tunnel).Frame(e.data(1000).flip().frame()))
		length := uint64(len(frame))
		n.expectCounted(t, map[int]uplink.ToUplinkTraffic{
			green: {SentBytes: length, SentPackets: 1}, red: {ReceivedBytes: length, ReceivedPackets: 1},
		})
	}
}
