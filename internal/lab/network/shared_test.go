// SPDX-License-Identifier: Apache-2.0

package network_test

import (
	"sync"
	"testing"
	"time"

	"braid.dev/braid/internal/lab/network"
)

func TestPathsThatShareANICHaveItsRateTogether(t *testing.T) {
	n := network.ForTest(t, network.Spec{
		Nodes: 2, Paths: []string{"blue", "green", "red"}, PodsPerNode: 1, LinkMbit: 100, Shared: [][]string{{"blue", "green"}},
	})
	cases := map[string]struct {
		paths       []int
		least, most float64
	}{
		"those that share":     {[]int{0, 1}, 60, 105},
		"those that do not":    {[]int{1, 2}, 130, 205},
		"one of them is alone": {[]int{1}, 60, 105},
	}
	for name, c := range cases {
		rate := together(t, n, c.paths)
		t.Logf("%s: %.0f Mbit/s", name, rate)
		if rate < c.least || rate > c.most {
			t.Errorf("%s: %.1f Mbit/s", name, rate)
		}
	}
	expectReach(t, n.Nodes[0].Namespace, n.Nodes[1].Namespace, n.Nodes[1].Address(1, 6))
}

// together sends over several paths at once, from node to node, and returns the sum
// of the rates in Mbit/s.
func together(t *testing.T, n *network.Network, paths []int) float64 {
	t.Helper()
	const size = 6_000_000
	var sending sync.WaitGroup
	start := time.Now()
	for _, path := range paths {
		from := &network.Pod{Namespace: n.Nodes[0].Namespace}
		to := &network.Pod{Namespace: n.Nodes[1].Namespace, IPv4: n.Nodes[1].Address(path, 4)}
		sending.Go(func() { send(t, from, to, size) })
	}
	sending.Wait()
	return float64(len(paths)*size) * 8 / time.Since(start).Seconds() / 1e6
}

func TestPathsThatCannotShareAreRefused(t *testing.T) {
	for name, shared := range map[string][][]string{
		"one alone":         {{"blue"}},
		"an unknown path":   {{"blue", "gold"}},
		"the later first":   {{"green", "blue"}},
		"in two groups":     {{"blue", "green"}, {"green", "red"}},
		"one with a delay":  {{"green", "red"}},
		"the same repeated": {{"blue", "blue"}},
	} {
		_, err := network.Build(network.Spec{
			Name: network.TestName(), Nodes: 1, Paths: []string{"blue", "green", "red"}, Shared: shared,
			PathDelays: map[string]time.Duration{"red": time.Millisecond},
		})
		if err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}
