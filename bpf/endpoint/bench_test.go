// SPDX-License-Identifier: Apache-2.0

package endpoint_test

import (
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"

	"braid.dev/braid/bpf/endpoint"
	"braid.dev/braid/bpf/packettest"
)

const loopback = 1 // the interface of a test run that names none

// costs runs a program and an empty one by turns, many times each, and gives the
// medians of both in nanoseconds: other work on the machine disturbs some turns.
func costs(b *testing.B, h *host, program *ebpf.Program, frame []byte) {
	b.Helper()
	empty, err := packettest.NewEmpty()
	require.NoError(b, err)
	defer empty.Close()
	var ours, nothing []time.Duration
	one := func(p *ebpf.Program, took *[]time.Duration) {
		require.NoError(b, h.Do(func() error {
			_, average, err := p.Benchmark(frame, 100_000, nil)
			*took = append(*took, average)
			return err
		}))
	}
	for b.Loop() {
		one(program, &ours)
		one(empty, &nothing)
	}
	above := median(ours) - median(nothing)
	b.ReportMetric(float64(median(ours).Nanoseconds()), "ns/packet")
	b.ReportMetric(float64(above.Nanoseconds()), "ns-above-empty")
	b.ReportMetric(float64((slices.Min(ours) - slices.Min(nothing)).Nanoseconds()), "ns-at-best")
	b.ReportMetric(0, "ns/op")
}

func median(of []time.Duration) time.Duration {
	slices.Sort(of)
	return of[len(of)/2]
}

func (h *host) benchmark(b *testing.B, chain *endpoint.FromEndpointChain) {
	h.epoch++
	h.put(b, 1, chain)
	h.attach(b, endpoint.FromEndpointAttachment{Interface: loopback, Endpoint: theEndpoint, Chain: word(1, 1, h.epoch)})
}

func established(e ends) []byte {
	return e.out().carrying(timestamps(7, 9), mapping(1, 1, 1400)).data(1400).frame()
}

func BenchmarkAnInterfaceWithoutAChain(b *testing.B) {
	h := newHost(b)
	costs(b, h, h.from, established(endsOf[4]))
}

func BenchmarkAPacketThatIsNotSelected(b *testing.B) {
	h := newHost(b)
	for _, version := range versions {
		b.Run(map[int]string{4: "IPv4", 6: "IPv6"}[version], func(b *testing.B) {
			h.benchmark(b, dropping(is(port(selectRemotePort, 9999))))
			costs(b, h, h.from, established(endsOf[version]))
		})
	}
}

func noops(count int) (actions []action) {
	for range count {
		actions = append(actions, action{Kind: actionStack})
	}
	return actions
}

var fourSelectors = all(
	is(port(selectRemotePort, 80)), is(prefix(selectSourceAddress, "10.244.0.0/16")),
	is(prefix(selectDestinationAddress, "10.244.2.0/24")), is(direction(fromEndpoint)))

func BenchmarkChains(b *testing.B) {
	h := newHost(b)
	record := action{Kind: actionRecord}
	for _, c := range []struct {
		name  string
		chain *endpoint.FromEndpointChain
	}{
		{"OneSelectorAndOneAction", build(rule{when: is(port(selectRemotePort, 80)), do: noops(1)})},
		{"OneSelectorAndThreeActions", build(rule{when: is(port(selectRemotePort, 80)), do: noops(3)})},
		{"FourSelectorsAndFourActions", build(rule{when: fourSelectors, do: noops(4)})},
		{"FourSelectorsOneOfThePacketAndFourActions", build(rule{when: all(fourSelectors, is(types(typeDSS))), do: append(noops(3), record)})},
		{"FourRules", build(
			rule{when: is(port(selectRemotePort, 80)), do: noops(1)}, rule{when: is(direction(fromEndpoint)), do: noops(1)},
			rule{when: is(prefix(selectSourceAddress, "10.0.0.0/8")), do: noops(1)}, rule{when: is(types(typeDSS)), do: noops(1)})},
	} {
		b.Run(c.name, func(b *testing.B) {
			h.benchmark(b, c.chain)
			costs(b, h, h.from, established(endsOf[4]))
		})
	}
}

// What a packet costs at both hooks that the same rule drops, without what the kernel does
// before it meets the endpoint's.
func BenchmarkADroppedPacket(b *testing.B) {
	h := newHost(b)
	e := endsOf[4]
	h.benchmark(b, dropping(is(types(typeJoin))))
	reached := endpoint.AtNICReached{Interface: loopback, Device: h.pod}
	require.NoError(b, h.atNIC.maps.ReachedEndpoints.Put(toAddress(e.local.Addr().As16()), reached))
	require.NoError(b, h.atNIC.maps.HookedNics.Put(uint32(loopback), endpoint.AtNICHookedNic{Address: ownAddress(packettest.Segment{})}))
	syn := e.in().at(5000).flagged(syn)
	for _, c := range []struct {
		name string
		segment
	}{
		{"AJoin", syn.carrying(usual(join(9, 0)))}, {"AnotherSYN", syn.carrying(usual(capable))},
		{"ASubflows", e.in().carrying(timestamps(7, 9), mapping(1, 1, 1400)).data(1400)}, {"Nobodys", e.out()},
	} {
		b.Run(c.name+"AtTheNIC", func(b *testing.B) { costs(b, h, h.atNIC.program, c.frame()) })
		b.Run(c.name+"AtTheEndpoint", func(b *testing.B) { costs(b, h, h.to, c.frame()) })
	}
	require.NotZero(b, h.atNIC.counts(b).Rule[0].Acted)
}
