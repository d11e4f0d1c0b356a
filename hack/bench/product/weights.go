// SPDX-License-Identifier: Apache-2.0

package product

import (
	"context"
	"fmt"
	"slices"
	"time"

	"braid.dev/braid/hack/bench/rig"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

// unequalMbit are the rates of the paths, which they also have as capacities.
var unequalMbit = map[string]int{rig.Paths[0]: 300, rig.Paths[1]: 100, rig.Paths[2]: 10}

const (
	weightsWarmup = 3 * time.Second
	weightsLasts  = 9 * time.Second
)

// weightsWays are what is compared to the best path alone.
var weightsWays = map[string]string{"default": "{}", "agent": "{manager: Agent}", "one": "{count: 1}"}

// measureWeights tells whether paths of unequal rates are used as far as they go, by one
// connection and by many.
func measureWeights(ctx context.Context, m *rig.Measurement, l *rig.Lab) error {
	least := 0.0
	for _, connections := range []int{1, 100} {
		name := fmt.Sprintf("weights.connections%d.", connections)
		ways := matching(m, name, "default", "agent", "one")
		if len(ways) == 0 {
			continue
		}
		for range m.Trials {
			if err := weightsTrial(ctx, m, l, name, connections, ways); err != nil {
				return fmt.Errorf("%d connections: %w", connections, err)
			}
		}
		if ratios := m.Values(name + "default.ratio"); len(ratios) > 0 && (least == 0 || rig.Median(ratios) < least) {
			least = rig.Median(ratios)
		}
	}
	if least > 0 {
		m.Add("weights.unequal.ratio", least)
	}
	return nil
}

// matching are the ways of a case that are to be measured.
func matching(m *rig.Measurement, name string, ways ...string) []string {
	return slices.DeleteFunc(ways, func(way string) bool { return !m.Cases.MatchString(name + way) })
}

func weightsTrial(ctx context.Context, m *rig.Measurement, l *rig.Lab, name string, connections int, ways []string) error {
	single, _, err := overUnequal(ctx, l, network.TCP, connections)
	if err != nil {
		return err
	}
	best, all := float64(unequalMbit[rig.Paths[0]]), 0.0
	for _, mbit := range unequalMbit {
		all += float64(mbit)
	}
	for way := range rig.Shuffled(ways) {
		if err := l.Spread(ctx, weightsWays[way]); err != nil {
			return err
		}
		mbit, used, err := overUnequal(ctx, l, network.MPTCP, connections)
		if err != nil {
			return err
		}
		rig.Say("%s%s: %.1f Mbit/s (TCP %.1f)", name, way, mbit, single)
		m.Add(name+way+".mbit", mbit)
		m.Add(name+way+".ratio", mbit/(single*all/best))
		m.Add(name+way+".to_best", mbit/single)
		for path, part := range used {
			m.Add(name+way+"."+path+".used", part)
		}
	}
	return nil
}

// overUnequal is the goodput, and what part of each path's rate the sender's NICs used.
// Plain TCP has the cluster network's route, over the best path.
func overUnequal(ctx context.Context, l *rig.Lab, protocol network.Protocol, connections int) (float64, map[string]float64, error) {
	before, err := l.Network.NICCounters(l.Sender.Node)
	if err != nil {
		return 0, nil, err
	}
	route := l.Route(4)
	route.Protocol = protocol
	if connections > 1 {
		route.SendBuffer = manyBuffer
	}
	begun := time.Now()
	result, err := route.Transfer(ctx, traffic.Options{
		Connections: connections, Duration: weightsLasts, Warmup: weightsWarmup, Patience: 30 * time.Second,
	})
	if err != nil {
		return 0, nil, err
	}
	took := time.Since(begun).Seconds()
	after, err := l.Network.NICCounters(l.Sender.Node)
	used := map[string]float64{}
	for path, mbit := range unequalMbit {
		used[path] = float64(after[path].TxBytes-before[path].TxBytes) * 8 / took / 1e6 / float64(mbit)
	}
	return result.Mbit, used, err
}
