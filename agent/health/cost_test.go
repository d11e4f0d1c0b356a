// SPDX-License-Identifier: Apache-2.0

package health

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"braid.dev/braid/internal/lab/network"
)

// BenchmarkProbing measures what a probe costs: one that is sent, answered by the
// other node, and read. Both nodes' agents are in this process, whose CPU time is
// shown, with that of the kernel on its behalf.
func BenchmarkProbing(b *testing.B) {
	lab := network.ForTest(b, network.Spec{Nodes: 2, Paths: twoPaths})
	options := Options{ActiveInterval: time.Millisecond, MostProbes: 1_000_000}
	one, two := startWith(b, lab.Nodes[0], twoPaths, options), startWith(b, lab.Nodes[1], twoPaths, options)
	two.listen(b, 4)
	one.probe(b, 4, true, two)
	one.awaitState(b, "node2", "blue", Alive)
	one.awaitState(b, "node2", "green", Alive)
	before, used, begun := one.answers(), cpu(b), time.Now()
	b.ResetTimer()
	for one.answers()-before < uint64(b.N) {
		time.Sleep(10 * time.Millisecond)
	}
	b.StopTimer()
	probes := float64(one.answers() - before)
	b.ReportMetric(float64((cpu(b)-used).Microseconds())/probes, "cpu-µs/probe")
	b.ReportMetric(probes/time.Since(begun).Seconds(), "probes/s")
	b.ReportMetric(0, "ns/op")
}

func (n *machine) answers() (count uint64) {
	n.prober.mu.Lock()
	defer n.prober.mu.Unlock()
	for _, total := range n.prober.tracker.totals {
		count += total.answered
	}
	return count
}

func cpu(b *testing.B) time.Duration {
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
