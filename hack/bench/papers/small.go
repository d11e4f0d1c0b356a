// SPDX-License-Identifier: Apache-2.0

package papers

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"braid.dev/braid/agent/pathmanager"
	"braid.dev/braid/hack/bench/rig"
	"braid.dev/braid/internal/lab/network"
)

// Small flows are from 10 to 220 kB, as in use case 3 of seed 001.
const (
	smallestFlow = 10_000
	largestFlow  = 220_000
	flowSteps    = 15
	// openAfterBytes is beyond the largest of them.
	openAfterBytes = 256 << 10
)

// A smallWay is a way to send small flows.
type smallWay struct {
	rig.Mode
	protocol network.Protocol
}

var smallWays = []smallWay{
	{rig.Mode{Name: "tcp"}, network.TCP},
	{rig.Mode{Name: "mptcp"}, network.MPTCP},
	{rig.Mode{Name: "one_subflow", Braid: true, Subflows: 1}, network.MPTCP},
	{rig.Mode{Name: "at_once", Braid: true, Subflows: rig.EachPath}, network.MPTCP},
	{rig.Mode{Name: "open_after", Braid: true, Subflows: rig.EachPath, OpenAfter: pathmanager.OpenAfter{Bytes: openAfterBytes}}, network.MPTCP},
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

// measureSmallFlows times small flows over plain TCP on one path, over all subflows
// at once, and over subflows that wait until a flow has proved not to be small.
func measureSmallFlows(ctx context.Context, m *rig.Measurement, _ rig.Nothing) error {
	for _, place := range smallPlaces {
		paths := rig.Paths[:len(place.mbit)]
		spec := network.Spec{Paths: paths, LinkMbit: place.mbit[0], PodsPerNode: 1, PathDelays: rig.Evenly(paths, place.delay)}
		err := rig.Use(ctx, rig.PairOn(spec), func(p *rig.Pair) error { return smallFlowsIn(ctx, m, p, place) })
		if err != nil {
			return fmt.Errorf("%s: %w", place.name, err)
		}
	}
	return nil
}

func smallFlowsIn(ctx context.Context, m *rig.Measurement, p *rig.Pair, place smallPlace) (err error) {
	if err := shapeUnequally(p, place.mbit); err != nil {
		return err
	}
	f, err := rig.NewFlows(ctx, p.Sender(), p.Receiver())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	for range m.Trials {
		took := map[string]float64{}
		for way := range rig.Shuffled(smallWays) {
			if err := p.Set(ctx, way.Mode); err != nil {
				return err
			}
			f.Protocol = way.protocol
			if took[way.Name], err = smallFlows(ctx, f, place.rounds); err != nil {
				return fmt.Errorf("%s: %w", way.Name, err)
			}
			m.Add("fct.small."+place.name+"."+way.Name+"_ms", took[way.Name])
		}
		m.Add(place.ratio, took["open_after"]/took[place.to])
		m.Add("fct.small_to_mptcp."+place.name, took["open_after"]/took["mptcp"])
	}
	return nil
}

// shapeUnequally gives the paths that differ from the first their own rates, and the
// endpoints weights that begin nearly all connections on the fastest.
func shapeUnequally(p *rig.Pair, mbit []int) error {
	for i, path := range p.Spec.Paths {
		if mbit[i] == mbit[0] {
			continue
		}
		p.Weights = map[string]int32{p.Spec.Paths[0]: 100}
		for _, node := range p.Nodes {
			if err := errors.Join(node.Shape(path, mbit[i]), p.Fabric.Shape(path+"."+strconv.Itoa(node.Number), mbit[i])); err != nil {
				return err
			}
		}
	}
	return nil
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
