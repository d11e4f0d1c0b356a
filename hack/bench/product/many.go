// SPDX-License-Identifier: Apache-2.0

package product

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"braid.dev/braid/hack/bench/rig"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

// plainTCP is the way of connections that are left to the network's route: as many as share a
// path by the other ways, over the first path alone.
const plainTCP = "tcp"

// manyWays are the subflows of policies that are compared, by what figures call them. Plain TCP
// has that of any of them, which does not concern it.
var manyWays = map[string]string{
	plainTCP: "{count: 1}", "one": "{count: 1}", "kernel": "{}", "agent": "{manager: Agent}", "at_once": "{openAfter: {time: 0s}}",
}

// measureMany compares what many connections at once get with a policy's default, by
// either manager, and with all subflows at once, to what they get with one subflow each, and how
// much the slowest ones lag behind to what plain TCP's on one path do.
func measureMany(ctx context.Context, m *rig.Measurement, l *rig.Lab) error {
	for _, connections := range []int{1, 30, 100, 1000, 5000} {
		name := fmt.Sprintf("many.connections%d.", connections)
		if !m.Cases.MatchString(name) {
			continue
		}
		for range m.Trials {
			if err := manyTrial(ctx, m, l, name, connections); err != nil {
				return fmt.Errorf("%d connections: %w", connections, err)
			}
		}
	}
	return nil
}

// manyPatience is until a stream that has not ended counts as lost. With 5,000 the last ones of plain TCP,
// too, come a minute late.
const manyPatience = 2 * time.Minute

// manyResult is a transfer, and what the least used NIC sent of it, to an even share.
type manyResult struct {
	*traffic.Result
	leastShare float64
}

func manyTrial(ctx context.Context, m *rig.Measurement, l *rig.Lab, name string, connections int) error {
	results := map[string]manyResult{}
	for way := range rig.Shuffled(slices.Collect(maps.Keys(manyWays))) {
		if err := l.Spread(ctx, manyWays[way]); err != nil {
			return err
		}
		result, share, err := manyAtOnce(ctx, l, way, connections)
		if err != nil {
			return err
		}
		rig.Say("%s%s: %.1f Mbit/s (%.1f in the second second, %.1f in the fifth), %d lost", name, way, result.Mbit,
			result.MbitBetween(time.Second, 2*time.Second), result.MbitBetween(4*time.Second, 5*time.Second), result.Failed)
		results[way] = manyResult{result, share}
	}
	addMany(m, name, results)
	return nil
}

// addMany notes the figures of one trial.
func addMany(m *rig.Measurement, name string, results map[string]manyResult) {
	tenth := map[string]float64{}
	for way, result := range results {
		m.Add(name+way+".mbit", result.Mbit)
		if way != plainTCP {
			m.Add(name+way+".least_share", result.leastShare)
		}
		m.Add(name+way+".lost", float64(result.Failed))
		m.Add(name+way+".slowest", slowest(result.ConnectionMbit))
		tenth[way] = slowestTenth(result.ConnectionMbit)
		m.Add(name+way+".slowest_tenth", tenth[way])
	}
	for _, to := range []string{"one", plainTCP} {
		if tenth[to] > 0 {
			m.Add(name+"slowest_tenth_to_"+to, tenth["kernel"]/tenth[to])
		}
	}
	m.Add(name+"ratio", results["kernel"].Mbit/results["one"].Mbit)
	m.Add(name+"agent.ratio", results["agent"].Mbit/results["one"].Mbit)
	m.Add(name+"at_once.ratio", results["at_once"].Mbit/results["one"].Mbit)
}

// manyAtOnce has so many connections send, and returns what the least used NIC sent, to
// an even share. Among so many, tail drop starves some, which get the end of their
// streams late.
func manyAtOnce(ctx context.Context, l *rig.Lab, way string, connections int) (*traffic.Result, float64, error) {
	before, err := l.Network.NICCounters(l.Sender.Node)
	if err != nil {
		return nil, 0, err
	}
	route := l.Route(4)
	if connections > 1 {
		route.SendBuffer = manyBuffer
	}
	if way == plainTCP {
		route.Protocol = network.TCP
		connections = max(1, connections/len(l.Network.Spec.Paths))
	}
	result, err := route.Transfer(ctx, traffic.Options{
		Connections: connections, Duration: 6 * time.Second, Warmup: 2 * time.Second, Patience: manyPatience,
	})
	if err != nil {
		return nil, 0, err
	}
	after, err := l.Network.NICCounters(l.Sender.Node)
	return result, leastShare(before, after), err
}

// slowest is what the slowest connection got, to the median.
func slowest(mbit []float64) float64 {
	sorted := slices.Sorted(slices.Values(mbit))
	median := sorted[len(sorted)/2]
	if median == 0 {
		return 0
	}
	return sorted[0] / median
}

// slowestTenth is what a tenth of the connections got on average, the slowest ones, to the
// median. Of a thousand the slowest one alone says little: chance has it move nothing for a while.
func slowestTenth(mbit []float64) float64 {
	sorted := slices.Sorted(slices.Values(mbit))
	median := sorted[len(sorted)/2]
	if median == 0 {
		return 0
	}
	tenth, sum := sorted[:max(1, len(sorted)/10)], 0.0
	for _, one := range tenth {
		sum += one
	}
	return sum / float64(len(tenth)) / median
}

// leastShare is what the least used NIC sent, to an even share.
func leastShare(before, after map[string]network.Counters) float64 {
	least, sum := -1.0, 0.0
	for path := range after {
		sent := float64(after[path].TxBytes - before[path].TxBytes)
		sum += sent
		if least < 0 || sent < least {
			least = sent
		}
	}
	return least * float64(len(after)) / sum
}
