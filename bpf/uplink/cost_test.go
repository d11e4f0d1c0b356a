// SPDX-License-Identifier: Apache-2.0

package uplink_test

import (
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"

	"braid.dev/braid/bpf/packettest"
	"braid.dev/braid/bpf/uplink"
)

// loopback is the interface of a test run that names none.
const loopback = 1

// costs runs a program and an empty one by turns, many times each, and gives the
// medians of both in nanoseconds: other work on the machine disturbs some turns.
func costs(b *testing.B, n *node, program *ebpf.Program, frame []byte) {
	b.Helper()
	empty, err := packettest.NewEmpty()
	require.NoError(b, err)
	defer empty.Close()
	var ours, nothing []time.Duration
	one := func(p *ebpf.Program, took *[]time.Duration) {
		require.NoError(b, n.Do(func() error {
			_, average, err := p.Benchmark(frame, 100_000, nil)
			*took = append(*took, average)
			return err
		}))
	}
	for b.Loop() {
		one(program, &ours)
		one(empty, &nothing)
	}
	b.ReportMetric(float64((median(ours) - median(nothing)).Nanoseconds()), "ns-above-empty")
	b.ReportMetric(float64((slices.Min(ours) - slices.Min(nothing)).Nanoseconds()), "ns-at-best")
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
			costs(b, n, n.to, frame)
		})
	}
	b.Run("of nobody", func(b *testing.B) {
		costs(b, n, n.to, e.port(1).out().with(func(s *segment) { s.from = addrPort("10.244.1.99", 1) }).frame())
	})
	b.Run("coming in for nobody", func(b *testing.B) {
		costs(b, n, n.from, e.out().flip().with(func(s *segment) { s.to = addrPort("10.244.1.99", 1) }).frame())
	})
	b.Run("coming in for a flow", func(b *testing.B) { costs(b, n, n.from, e.out().flip().frame()) })
	b.Run("of UDP", func(b *testing.B) { costs(b, n, n.to, between(tunnelKinds["VXLAN"], 4).Frame(frame)) })
	b.Run("of UDP that comes in", func(b *testing.B) { costs(b, n, n.from, back(between(tunnelKinds["VXLAN"], 4)).Frame(frame)) })
}

// BenchmarkAPacketInATunnel runs packets of VXLAN over IPv4. What sets tc_index, as a test
// run cannot, costs its part of those that leave: an empty packet of nobody tells how much.
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
			costs(b, n, n.marking(b, ofThePod), tunnel.Frame(frame))
		})
	}
	b.Run("of nobody", func(b *testing.B) { costs(b, n, n.marking(b, uplink.OriginTunnel), tunnel.Frame(nobodys)) })
	b.Run("of the node's own UDP", func(b *testing.B) { costs(b, n, n.to, tunnel.Frame(nobodys)) })
	b.Run("into the tunnel", func(b *testing.B) { costs(b, n, n.into, frame) })
	b.Run("into the tunnel, of nobody", func(b *testing.B) { costs(b, n, n.into, nobodys) })
	b.Run("coming in for a flow", func(b *testing.B) {
		costs(b, n, n.from, back(tunnel).Frame(e.out().flip().with(func(s *segment) { s.payload = make([]byte, 1000) }).frame()))
	})
	b.Run("coming in for nobody", func(b *testing.B) { costs(b, n, n.from, tunnel.Frame(nobodys)) })
	other := tunnel
	other.Port++
	b.Run("of UDP that comes in", func(b *testing.B) { costs(b, n, n.from, other.Frame(nobodys)) })
}
