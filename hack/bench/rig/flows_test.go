// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"slices"
	"testing"

	"braid.dev/braid/internal/lab/network"
)

func TestFlowSizesFollowTheDistribution(t *testing.T) {
	sizes := SizesOf(1000)
	var sum int64
	for _, size := range sizes {
		sum += size
	}
	slices.Sort(sizes)
	if mean := sum / int64(len(sizes)); mean < 1_500_000 || mean > 1_900_000 {
		t.Errorf("the mean is %d", mean)
	}
	for share, size := range map[int]int64{150: 10_000, 530: 80_000, 700: 1_000_000, 970: 10_000_000} {
		if got := sizes[share]; got < size*9/10 || got > size*11/10 {
			t.Errorf("flow %d of 1000 has %d bytes instead of about %d", share, got, size)
		}
	}
}

func TestEachFlowIsTimedAndArrives(t *testing.T) {
	n := network.ForTest(t, network.Spec{Nodes: 2, Paths: []string{"blue"}, PodsPerNode: 1, IPv4: true})
	client, server := n.Nodes[0].Pods[0], n.Nodes[1].Pods[0]
	f, err := NewFlows(t.Context(), client, server)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}()
	before, err := client.Counters("eth0")
	if err != nil {
		t.Fatal(err)
	}
	sizes := []int64{1, 10_000, 500_000}
	times, err := f.Run(t.Context(), sizes, len(sizes))
	if err != nil {
		t.Fatal(err)
	}
	after, err := client.Counters("eth0")
	if err != nil {
		t.Fatal(err)
	}
	if slices.Min(times) <= 0 || after.TxBytes-before.TxBytes < 510_001 {
		t.Errorf("times %v, %d bytes sent", times, after.TxBytes-before.TxBytes)
	}
}
