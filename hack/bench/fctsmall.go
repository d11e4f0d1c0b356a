// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"braid.dev/braid/agent/pathmanager"
	"braid.dev/braid/api/v1alpha1"
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
	name    string
	network network.Protocol
	braid   bool
	count   int // of subflows; 0 means one for each path
	open    pathmanager.OpenAfter
}

var smallWays = []smallWay{
	{name: "tcp", network: network.TCP},
	{name: "mptcp", network: network.MPTCP},
	{name: "one_subflow", network: network.MPTCP, braid: true, count: 1},
	{name: "at_once", network: network.MPTCP, braid: true},
	{name: "open_after", network: network.MPTCP, braid: true, open: pathmanager.OpenAfter{Bytes: openAfterBytes}},
}

// A smallPlace is a network for small flows.
type smallPlace struct {
	name   string
	mbit   []int           // of each path
	delays []time.Duration // one way, of each path
	atOnce int
	rounds int // over all sizes, in each trial
}

// Where there is no delay, what opening subflows costs weighs most; with one, a small
// flow is over before they help. In the last place two of the paths are slow.
var smallPlaces = []smallPlace{
	{"near", []int{0, 0, 0}, evenly(0), 1, 20},
	{"rtt4ms", []int{linkMbit, linkMbit, linkMbit}, evenly(2 * time.Millisecond), 1, 4},
	{"unequal", []int{300, 10, 10}, evenly(2 * time.Millisecond), 1, 4},
}

// Plain TCP is compared where there is a delay, all subflows at once where they hurt.
var (
	comparedToTCP = []string{"rtt4ms", "unequal"}
	hurtBy        = "near"
)

// evenly is the same delay for three paths.
func evenly(delay time.Duration) []time.Duration { return []time.Duration{delay, delay, delay} }

// measureSmallFlows times small flows over plain TCP on one path, over all subflows
// at once, and over subflows that wait until a flow has proved not to be small.
func measureSmallFlows(ctx context.Context, b *bench) error {
	var toTCP []float64
	for _, place := range smallPlaces {
		took, err := b.smallFlowsIn(ctx, place)
		if err != nil {
			return fmt.Errorf("%s: %w", place.name, err)
		}
		for _, way := range smallWays {
			b.add("fct.small."+place.name+"."+way.name+"_ms", "ms", took[way.name])
		}
		if slices.Contains(comparedToTCP, place.name) {
			toTCP = append(toTCP, ratios(took["open_after"], took["tcp"], 1)...)
		}
		if place.name == hurtBy {
			b.add("fct.small_ratio_vs_all_subflows", "ratio", ratios(took["open_after"], took["at_once"], 1))
		}
	}
	b.add("fct.small_ratio_vs_tcp", "ratio", toTCP)
	return nil
}

func (b *bench) smallFlowsIn(ctx context.Context, place smallPlace) (took map[string][]float64, err error) {
	spec := network.Spec{Paths: pathNames[:len(place.delays)], LinkMbit: place.mbit[0], PodsPerNode: 1, PathDelays: map[string]time.Duration{}}
	for i, path := range spec.Paths {
		spec.PathDelays[path] = place.delays[i]
	}
	r, err := newRigOf(ctx, spec)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	if err := r.shapeUnequally(place.mbit); err != nil {
		return nil, err
	}
	f, err := newFlows(ctx, r.client().Namespace, r.server().Namespace, r.server().IPv4)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.stop()) }()
	took = map[string][]float64{}
	for trial := range b.trials {
		for _, i := range rand.Perm(len(smallWays)) {
			way := smallWays[i]
			mean, err := r.smallFlows(ctx, f, way, place)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", way.name, err)
			}
			took[way.name] = append(took[way.name], mean)
		}
		fmt.Printf("small flows, %-11s trial %d: plain TCP %.2f ms, plain MPTCP %.2f, one subflow %.2f, all subflows at once %.2f, after 256 KiB %.2f\n", place.name, trial+1,
			took["tcp"][trial], took["mptcp"][trial], took["one_subflow"][trial], took["at_once"][trial], took["open_after"][trial])
	}
	return took, nil
}

// shapeUnequally gives the paths that differ from the first their own rates, and the
// endpoints weights that begin nearly all connections on the fastest.
func (r *rig) shapeUnequally(mbit []int) error {
	r.weights = nil
	for i, path := range r.Spec.Paths {
		if mbit[i] == mbit[0] {
			continue
		}
		r.weights = map[string]int32{r.Spec.Paths[0]: 100}
		for _, node := range r.Nodes {
			if err := errors.Join(node.Shape(path, mbit[i]), r.Fabric.Shape(path+"."+strconv.Itoa(node.Number), mbit[i])); err != nil {
				return err
			}
		}
	}
	return nil
}

// smallFlows is the completion time of one way, in ms: the mean over the sizes of the
// median of each.
func (r *rig) smallFlows(ctx context.Context, f *flows, way smallWay, place smallPlace) (float64, error) {
	if err := r.give(ctx, way); err != nil {
		return 0, err
	}
	f.protocol = way.network
	var sizes []int64
	for range place.rounds {
		for i := range int64(flowSteps) {
			sizes = append(sizes, smallestFlow+i*(largestFlow-smallestFlow)/(flowSteps-1))
		}
	}
	rand.Shuffle(len(sizes), func(i, j int) { sizes[i], sizes[j] = sizes[j], sizes[i] })
	times, err := f.runAtMost(ctx, sizes, place.atOnce)
	if err != nil {
		return 0, err
	}
	bySize := map[int64][]float64{}
	for i, took := range times {
		bySize[sizes[i]] = append(bySize[sizes[i]], took.Seconds()*1000)
	}
	var sum float64
	for _, took := range bySize {
		sum += median(took)
	}
	return sum / float64(len(bySize)), nil
}

// give brings the rig to a way.
func (r *rig) give(ctx context.Context, way smallWay) error {
	for i := range r.pods {
		count := way.count
		if count == 0 {
			count = r.links
		}
		settings := pathmanager.Settings{
			Manager: v1alpha1.SubflowManagerAgent, Count: count, Addresses: addressesOf(r.Nodes[i].Pods[0]), OpenAfter: way.open,
		}
		err := r.pods[i].Configure(ctx, settings)
		if !way.braid {
			err = r.pods[i].Restore(ctx)
		}
		if err != nil {
			return err
		}
		if err := r.steer(i, way.braid); err != nil {
			return err
		}
	}
	return nil
}
