// SPDX-License-Identifier: Apache-2.0

package guest_test

import (
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"

	"braid.dev/braid/bpf/guest"
	"braid.dev/braid/bpf/packettest"
)

const loopback = 1 // test runs of benchmarks are on it

// BenchmarkPackets measures what a packet costs above an empty program, which runs in turns
// with the others. Those of joins are not among them: a test run keeps the port that the one
// before it wrote.
func BenchmarkPackets(b *testing.B) {
	h, c := newHost(b, atOnce), connections[4]
	h.admit(b, loopback, guest.ToGuestGuest{Joins: 1})
	h.offer(b, loopback, c)
	join := c.join(41000, announcedPort)
	h.sends(b, loopback, join, to(join, 80))
	stranger, first := c.out(), c.out()
	stranger.From, stranger.Payload = from(stranger, 5).From, make([]byte, 1000)
	first.Payload = make([]byte, 1000)
	in := c.in()
	in.Payload = make([]byte, 1000)
	empty, err := packettest.NewEmpty()
	require.NoError(b, err)
	defer empty.Close()
	for _, one := range []struct {
		name    string
		program *ebpf.Program
		segment packettest.Segment
	}{
		{"sent, no known flow", h.from, stranger}, {"sent, first subflow", h.from, first},
		{"received, no known flow", h.to, from(in, 5)}, {"received, first subflow", h.to, in},
	} {
		b.Run(one.name, func(b *testing.B) {
			var with, without time.Duration
			for range b.N {
				with += h.cost(b, one.program, one.segment.Frame())
				without += h.cost(b, empty, one.segment.Frame())
			}
			b.ReportMetric(float64((with-without).Nanoseconds())/float64(b.N), "ns/packet")
			b.ReportMetric(0, "ns/op")
		})
	}
}

func (h *host) cost(b *testing.B, program *ebpf.Program, frame []byte) (each time.Duration) {
	b.Helper()
	require.NoError(b, h.Do(func() (err error) {
		_, each, err = program.Benchmark(frame, 100_000, nil)
		return err
	}))
	return each
}
