// SPDX-License-Identifier: Apache-2.0

package endpoint_test

import (
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"braid.dev/braid/bpf"
	"braid.dev/braid/bpf/endpoint"
)

const loopback = 1 // the interface of a test run that names none

// costs runs a program many times beside an empty one and gives the medians of
// both in nanoseconds.
func costs(b *testing.B, h *host, program *ebpf.Program, frame []byte) {
	b.Helper()
	var empty bpf.EmptyObjects
	check(b, bpf.LoadEmptyObjects(&empty, nil))
	defer empty.Close()
	one := func(p *ebpf.Program) float64 {
		var took time.Duration
		check(b, h.Do(func() (err error) {
			_, took, err = p.Benchmark(frame, 1_000_000, nil)
			return err
		}))
		return float64(took.Nanoseconds())
	}
	var ours, nothing float64
	for b.Loop() {
		ours, nothing = one(program), one(empty.Empty)
	}
	b.ReportMetric(ours, "ns/packet")
	b.ReportMetric(ours-nothing, "ns-above-empty")
	b.ReportMetric(0, "ns/op")
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
