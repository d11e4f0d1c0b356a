// SPDX-License-Identifier: Apache-2.0

package papers

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"braid.dev/braid/hack/bench/rig"
	"braid.dev/braid/internal/lab/network"
)

// Small flows are from 10 to 220 kB, as in use case 3 of seed 001.
const (
	smallestFlow = 10_000
	largestFlow  = 220_000
	flowSteps    = 15
)

// A smallWay is a way to send small flows: between pods that no policy selects, or between
// those of a policy with such subflows.
type smallWay struct {
	name     string
	protocol network.Protocol
	policy   bool
	subflows string
}

var smallWays = []smallWay{
	{name: "tcp", protocol: network.TCP},
	{name: "mptcp", protocol: network.MPTCP},
	{name: "one_subflow", protocol: network.MPTCP, policy: true, subflows: "{count: 1}"},
	{name: "at_once", protocol: network.MPTCP, policy: true, subflows: "{openAfter: {time: 0s}}"},
	{name: "default", protocol: network.MPTCP, policy: true, subflows: "{}"},
}

// A smallPlace is a network of three paths for small flows.
type smallPlace struct {
	name   string
	mbit   []int         // of each path
	delay  time.Duration // one way
	rounds int           // over all sizes, in each trial
	ratio  string        // the figure to which this place contributes
	to     string        // the way that it compares with
}

// Where there is no delay, what opening subflows costs weighs most, and they hurt when
// they are opened at once; with one, a small flow is over before they help, and plain
// TCP is what to compare with. In the last place two of the paths are slow.
var smallPlaces = []smallPlace{
	{"near", []int{0, 0, 0}, 0, 20, "fct.small_ratio_vs_all_subflows", "at_once"},
	{"rtt4ms", []int{rig.LinkMbit, rig.LinkMbit, rig.LinkMbit}, 2 * time.Millisecond, 4, "fct.small_ratio_vs_tcp", "tcp"},
	{"unequal", []int{300, 10, 10}, 2 * time.Millisecond, 4, "fct.small_ratio_vs_tcp", "tcp"},
}

// network is that of the place. Paths that differ from the first have rates of their own,
// which are capacities of all then.
func (place *smallPlace) network() network.Spec {
	paths := rig.Paths[:len(place.mbit)]
	spec := network.Spec{Paths: paths, LinkMbit: place.mbit[0], PodsPerNode: 1, PathDelays: rig.Evenly(paths, place.delay)}
	if place.mbit[len(place.mbit)-1] == place.mbit[0] {
		return spec
	}
	spec.PathMbit = map[string]int{}
	for i, path := range paths {
		spec.PathMbit[path] = place.mbit[i]
	}
	return spec
}

// measureSmallFlows times small flows over plain TCP and MPTCP without a policy, over one
// subflow, over all subflows at once, and with the default, whose subflows wait until a
// flow has proved not to be small.
func measureSmallFlows(ctx context.Context, m *rig.Measurement, _ rig.Nothing) error {
	for _, place := range smallPlaces {
		if !m.Cases.MatchString("fct.small." + place.name) {
			continue
		}
		setup := func(ctx context.Context) (*rig.Lab, error) {
			return rig.NewLab(ctx, place.network(), rig.PodOf("demo", "other", 1), rig.PodOf("demo", "server-other", 2))
		}
		err := rig.Use(ctx, setup, func(l *rig.Lab) error { return smallFlowsIn(ctx, m, l, place) })
		if err != nil {
			return fmt.Errorf("%s: %w", place.name, err)
		}
	}
	return nil
}

func smallFlowsIn(ctx context.Context, m *rig.Measurement, l *rig.Lab, place smallPlace) error {
	for range m.Trials {
		took := map[string]float64{}
		for way := range rig.Shuffled(smallWays) {
			var err error
			if took[way.name], err = smallTrial(ctx, l, way, place.rounds); err != nil {
				return fmt.Errorf("%s: %w", way.name, err)
			}
			m.Add("fct.small."+place.name+"."+way.name+"_ms", took[way.name])
		}
		m.Add(place.ratio, took["default"]/took[place.to])
		m.Add("fct.small_to_mptcp."+place.name, took["default"]/took["mptcp"])
	}
	return nil
}

func smallTrial(ctx context.Context, l *rig.Lab, way smallWay, rounds int) (took float64, err error) {
	client, server := l.Sender, l.Receiver
	if !way.policy {
		client, server = l.Network.Pod("other"), l.Network.Pod("server-other")
	} else if err := l.Spread(ctx, way.subflows); err != nil {
		return 0, err
	}
	f, err := rig.NewFlows(ctx, client, server)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	f.Protocol = way.protocol
	return smallFlows(ctx, f, rounds)
}

// smallFlows is the completion time of small flows one after the other, in ms: the mean
// over the sizes of the median of each.
func smallFlows(ctx context.Context, f *rig.Flows, rounds int) (float64, error) {
	var sizes []int64
	for range rounds {
		for i := range int64(flowSteps) {
			sizes = append(sizes, smallestFlow+i*(largestFlow-smallestFlow)/(flowSteps-1))
		}
	}
	rand.Shuffle(len(sizes), func(i, j int) { sizes[i], sizes[j] = sizes[j], sizes[i] })
	times, err := f.Run(ctx, sizes, 1)
	if err != nil {
		return 0, err
	}
	bySize := map[int64][]float64{}
	for i, took := range times {
		bySize[sizes[i]] = append(bySize[sizes[i]], took.Seconds()*1000)
	}
	var sum float64
	for _, took := range bySize {
		sum += rig.Median(took)
	}
	return sum / float64(len(bySize)), nil
}
