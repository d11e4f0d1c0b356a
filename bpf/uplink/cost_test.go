// SPDX-License-Identifier: Apache-2.0

package uplink_test

import (
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/stretchr/testify/require"

	"braid.dev/braid/bpf/packettest"
	"braid.dev/braid/bpf/uplink"
)

// loopback is the interface of a test run that names none.
const loopback = 1

// Of frames of Ethernet and IPv4, and of those in VXLAN over IPv4.
var (
	native  = packettest.Segments{TCPAt: 14 + 20, Step: 1000}
	inVXLAN = packettest.Segments{TCPAt: 14 + 20 + 8 + 8 + 14 + 20, Step: 1000}
	// acknowledging has the number grow that they acknowledge.
	acknowledging = packettest.Segments{TCPAt: 14 + 20 + 4, Step: 1000}
)

// withOrigin are segments with this tc_index.
func withOrigin(of packettest.Segments, tcIndex int32) packettest.Segments {
	of.TCIndex = tcIndex
	return of
}

// costs runs a program and an empty one by turns, many times each, on segments of a stream,
// and gives the medians of both in nanoseconds: other work on the machine disturbs some turns.
func costs(b *testing.B, n *node, program *ebpf.Program, frame []byte, of packettest.Segments) {
	b.Helper()
	empty, err := packettest.NewEmpty()
	require.NoError(b, err)
	defer empty.Close()
	stream := func(p *ebpf.Program) packettest.Stream {
		s, err := packettest.NewStream(p, frame, of)
		require.NoError(b, err)
		b.Cleanup(func() { s.Close() })
		return s
	}
	ours, nothing := stream(program), stream(empty)
	var took, tookNothing []time.Duration
	one := func(s packettest.Stream, took *[]time.Duration) {
		require.NoError(b, n.Do(func() error {
			_, average, err := s.Program.Benchmark(frame, 100_000, nil)
			*took = append(*took, average)
			return err
		}))
	}
	for b.Loop() {
		one(ours, &took)
		one(nothing, &tookNothing)
	}
	b.ReportMetric(float64((median(took) - median(tookNothing)).Nanoseconds()), "ns-above-empty")
	b.ReportMetric(float64((slices.Min(took) - slices.Min(tookNothing)).Nanoseconds()), "ns-at-best")
	b.ReportMetric(0, "ns/op")
}

func median(of []time.Duration) time.Duration {
	slices.Sort(of)
	return of[len(of)/2]
}

// BenchmarkAPacket runs packets of a flow that leave by green's NIC: its own, or
// another, so that they are redirected.
func BenchmarkAPacket(b *testing.B) {
	n := newNode(b)
	benchmarkAPacket(b, n)
	n.load(b, 131072, sharesNothing(b))
	n.reset(b)
	b.Run("where none share paths", func(b *testing.B) { benchmarkAPacket(b, n) })
}

func benchmarkAPacket(b *testing.B, n *node) {
	e := endsOf[4]
	frame := e.out().with(func(s *segment) { s.options, s.payload = dataSignal(), make([]byte, 1000) }).frame()
	cases := []struct {
		name       string
		endpoint   uint32
		path       uint8 // the flow's
		preference uplink.ToUplinkPreference
	}{
		{"without an endpoint's entry", 0, green, uplink.ToUplinkPreference{}},
		{"without an endpoint's entry, redirected", 0, red, uplink.ToUplinkPreference{}},
		{"without a preference", thePod, green, uplink.ToUplinkPreference{Allowed: allPaths, Share: everyFlow, Flags: set}},
		{"preferring its own path", thePod, green, preferring(1 << green)},
		{"preferring another path", thePod, green, preferring(1 << red)},
		{"preferring two others", thePod, green, preferring(1<<red | 1<<blue)},
	}
	for _, c := range cases {
		b.Run(c.name, func(b *testing.B) {
			c.preference.Account = theAccount * uint8(c.endpoint) // is counted where it is the pod's
			n.prefer(b, c.preference)
			n.nics[green] = loopback
			n.setNode(b, allPaths)
			n.putFlow(b, e.out(), uplink.ToUplinkFlow{Endpoint: c.endpoint, Role: initiator, Peer: thePeer, Path: c.path, Allowed: allPaths})
			costs(b, n, n.to, frame, native)
		})
	}
	b.Run("of nobody", func(b *testing.B) {
		costs(b, n, n.to, e.port(1).out().with(func(s *segment) { s.from = addrPort("10.244.1.99", 1) }).frame(), native)
	})
	b.Run("coming in for nobody", func(b *testing.B) {
		costs(b, n, n.from, e.out().flip().with(func(s *segment) { s.to = addrPort("10.244.1.99", 1) }).frame(), native)
	})
	b.Run("coming in for a flow", func(b *testing.B) {
		n.putFlow(b, e.out(), uplink.ToUplinkFlow{Endpoint: thePod, Role: initiator, Peer: thePeer, Path: green, Allowed: allPaths})
		costs(b, n, n.from, e.out().flip().frame(), native)
	})
	acknowledgement := e.out().with(func(s *segment) { s.options = saying{false, hasDataACK | dataACKLong, someDataACK}.options() })
	b.Run("an acknowledgement", func(b *testing.B) { costs(b, n, n.to, acknowledgement.frame(), acknowledging) })
	b.Run("an acknowledgement that comes in", func(b *testing.B) { costs(b, n, n.from, acknowledgement.flip().frame(), acknowledging) })
	b.Run("of UDP", func(b *testing.B) { costs(b, n, n.to, between(tunnelKinds["VXLAN"], 4).Frame(frame), inVXLAN) })
	b.Run("of UDP that comes in", func(b *testing.B) { costs(b, n, n.from, back(between(tunnelKinds["VXLAN"], 4)).Frame(frame), inVXLAN) })
}

// BenchmarkAPacketInATunnel runs packets of VXLAN over IPv4.
func BenchmarkAPacketInATunnel(b *testing.B) {
	n := newNode(b)
	e, tunnel := endsOf[4], between(tunnelKinds["VXLAN"], 4)
	frame := e.out().with(func(s *segment) { s.options, s.payload = dataSignal(), make([]byte, 1000) }).frame()
	nobodys := e.out().with(func(s *segment) { s.from, s.payload = addrPort("10.244.1.99", 1), make([]byte, 1000) }).frame()
	n.setTunnels(b)
	n.nics[green] = loopback
	n.setNode(b, allPaths)
	n.prefer(b, uplink.ToUplinkPreference{Allowed: allPaths, Share: everyFlow, Flags: set, Account: theAccount})
	for name, path := range map[string]uint8{"on its own path": green, "redirected": red} {
		b.Run(name, func(b *testing.B) {
			n.putFlow(b, e.out(), uplink.ToUplinkFlow{Endpoint: thePod, Role: initiator, Peer: thePeer, Path: path, Allowed: allPaths, From: ofThePod})
			costs(b, n, n.to, tunnel.Frame(frame), withOrigin(inVXLAN, ofThePod))
		})
	}
	b.Run("of nobody", func(b *testing.B) { costs(b, n, n.to, tunnel.Frame(nobodys), withOrigin(inVXLAN, uplink.OriginTunnel)) })
	b.Run("of the node's own UDP", func(b *testing.B) { costs(b, n, n.to, tunnel.Frame(nobodys), inVXLAN) })
	b.Run("into the tunnel", func(b *testing.B) { costs(b, n, n.into, frame, native) })
	b.Run("into the tunnel, of nobody", func(b *testing.B) { costs(b, n, n.into, nobodys, native) })
	b.Run("coming in for a flow", func(b *testing.B) {
		n.putFlow(b, e.out(), uplink.ToUplinkFlow{Endpoint: thePod, Role: initiator, Peer: thePeer, Path: green, Allowed: allPaths})
		costs(b, n, n.from, back(tunnel).Frame(e.out().flip().with(func(s *segment) { s.payload = make([]byte, 1000) }).frame()), inVXLAN)
	})
	b.Run("coming in for nobody", func(b *testing.B) { costs(b, n, n.from, tunnel.Frame(nobodys), inVXLAN) })
	other := tunnel
	other.Port++
	b.Run("of UDP that comes in", func(b *testing.B) { costs(b, n, n.from, other.Frame(nobodys), inVXLAN) })
}

// BenchmarkCounting has what is least to be done to count a packet by path: one look-up in a
// map of each processor's own, the packet's length, and two sums. Beside it is the same in a
// packet of a flow: the difference between one that is counted and one that is not.
func BenchmarkCounting(b *testing.B) {
	n := newNode(b)
	e := endsOf[4]
	frame := e.out().with(func(s *segment) { s.options, s.payload = dataSignal(), make([]byte, 1000) }).frame()
	counter, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{
		asm.LoadMem(asm.R6, asm.R1, lengthOffset, asm.Word),
		asm.StoreImm(asm.RFP, -4, theAccount*maxPaths+green, asm.Word),
		asm.LoadMapPtr(asm.R1, n.maps.Traffic.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -4),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "pass"),
		asm.LoadMem(asm.R1, asm.R0, 0, asm.DWord),
		asm.Add.Reg(asm.R1, asm.R6),
		asm.StoreMem(asm.R0, 0, asm.R1, asm.DWord),
		asm.LoadMem(asm.R1, asm.R0, 8, asm.DWord),
		asm.Add.Imm(asm.R1, 1),
		asm.StoreMem(asm.R0, 8, asm.R1, asm.DWord),
		asm.Mov.Imm(asm.R0, int32(next)).WithSymbol("pass"),
		asm.Return(),
	}})
	require.NoError(b, err)
	b.Cleanup(func() { counter.Close() })
	b.Run("alone", func(b *testing.B) { costs(b, n, counter, frame, native) })
	n.nics[green] = loopback
	n.setNode(b, allPaths)
	for name, account := range map[string]uint8{"counted": theAccount, "not counted": 0} {
		begin := func(b *testing.B) {
			b.Helper()
			n.prefer(b, uplink.ToUplinkPreference{Allowed: allPaths, Share: everyFlow, Flags: set, Account: account})
			n.putFlow(b, e.out(), uplink.ToUplinkFlow{Endpoint: thePod, Role: initiator, Peer: thePeer, Path: green, Allowed: allPaths, Account: account})
		}
		b.Run("leaves, "+name, func(b *testing.B) {
			begin(b)
			costs(b, n, n.to, frame, native)
		})
		b.Run("comes in, "+name, func(b *testing.B) {
			begin(b)
			costs(b, n, n.from, e.out().flip().frame(), native)
		})
	}
}

// lengthOffset is that of len in struct __sk_buff.
const lengthOffset = 0
