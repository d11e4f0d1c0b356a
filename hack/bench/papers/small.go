// SPDX-License-Identifier: Apache-2.0

package papers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/hack/bench/rig"
	"braid.dev/braid/internal/lab/network"
)

// Small flows are from 10 to 220 kB, as in use case 3 of seed 001.
const (
	smallestFlow = 10_000
	largestFlow  = 220_000
	flowSteps    = 15
)

// A smallWay is a way to send small flows, between a pod of each node.
type smallWay struct {
	name           string
	protocol       network.Protocol
	client, server string
}

// smallWays take turns, flow by flow. No policy selects the pods of the first three, of which the
// third tells how far two pairs of pods differ that are treated alike.
var smallWays = []smallWay{
	{"tcp", network.TCP, "other", "server-other"},
	{"mptcp", network.MPTCP, "other", "server-other"},
	{"mptcp_again", network.MPTCP, "again", "server-again"},
	{"one_subflow", network.MPTCP, "one", "server-one"},
	{"default", network.MPTCP, "client", "server"},
}

// smallAtOnce takes no turns with the others: while agents listen to a pod's connections the kernel
// makes events of all pods' on the node.
var smallAtOnce = []smallWay{{"at_once", network.MPTCP, "client", "server"}}

// smallOne is the policy of one subflow.
const smallOne = `apiVersion: braid.dev/v1alpha1
kind: MPTCPPolicy
metadata: {name: one, namespace: demo}
spec:
  podSelector:
    matchExpressions: [{key: app, operator: In, values: [one, server-one]}]
  subflows: {count: 1}
`

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
	{"near", []int{0, 0, 0}, 0, 60, "fct.small_ratio_vs_all_subflows", "at_once"},
	{"rtt4ms", []int{rig.LinkMbit, rig.LinkMbit, rig.LinkMbit}, 2 * time.Millisecond, 8, "fct.small_ratio_vs_tcp", "tcp"},
	{"unequal", []int{300, 10, 10}, 2 * time.Millisecond, 8, "fct.small_ratio_vs_tcp", "tcp"},
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
		setup := func(ctx context.Context) (*rig.Lab, error) { return newSmallLab(ctx, place.network()) }
		err := rig.Use(ctx, setup, func(l *rig.Lab) error { return smallFlowsIn(ctx, m, l, place) })
		if err != nil {
			return fmt.Errorf("%s: %w", place.name, err)
		}
	}
	return nil
}

// newSmallLab has the pods of all ways, and the policy of one subflow.
func newSmallLab(ctx context.Context, spec network.Spec) (*rig.Lab, error) {
	l, err := rig.NewLab(ctx, spec,
		rig.PodOf("demo", "other", 1), rig.PodOf("demo", "server-other", 2),
		rig.PodOf("demo", "again", 1), rig.PodOf("demo", "server-again", 2),
		rig.PodOf("demo", "one", 1), rig.PodOf("demo", "server-one", 2))
	if err != nil {
		return nil, err
	}
	if err := l.ApplyPaths(ctx); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	if err := l.Apply(ctx, smallOne); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	if err := l.PolicyHolds(ctx, client.ObjectKey{Namespace: "demo", Name: "one"}, 2); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// smallFlowsIn first has pods whose connections all stay small. Then some open subflows at once, so
// that the server's kernel announces its addresses on each connection for half a minute after.
func smallFlowsIn(ctx context.Context, m *rig.Measurement, l *rig.Lab, place smallPlace) error {
	name := "fct.small." + place.name + "."
	atRest := make([]map[string]float64, m.Trials)
	for i := range atRest {
		took, err := smallTurns(ctx, l, "{}", smallWays, place.rounds)
		if err != nil {
			return err
		}
		atRest[i] = took
		for way, ms := range took {
			m.Add(name+way+"_ms", ms)
		}
		for way, figure := range map[string]string{"default": "to_mptcp", "one_subflow": "one_to_mptcp", "mptcp_again": "again_to_mptcp"} {
			m.Add("fct.small_"+figure+"."+place.name, took[way]/took["mptcp"])
		}
	}
	for _, rested := range atRest {
		took, err := smallTurns(ctx, l, "{openAfter: {time: 0s}}", smallAtOnce, place.rounds)
		if err != nil {
			return err
		}
		m.Add(name+"at_once_ms", took["at_once"])
		maps.Copy(rested, took)
		m.Add(place.ratio, rested["default"]/rested[place.to])
		announcing, err := smallTurns(ctx, l, "{}", smallWays, place.rounds)
		if err != nil {
			return err
		}
		m.Add("fct.small_announcing_to_mptcp."+place.name, announcing["default"]/announcing["mptcp"])
	}
	return nil
}

// smallTurns is how long small flows take by each of these ways, in ms, while the client has a
// policy with such subflows: the mean over the sizes of the median of each.
func smallTurns(ctx context.Context, l *rig.Lab, subflows string, ways []smallWay, rounds int) (took map[string]float64, err error) {
	if err := l.Spread(ctx, subflows); err != nil {
		return nil, err
	}
	err = withSmallFlows(ctx, l, ways, func(flows map[string]*rig.Flows) error {
		took, err = inTurns(ctx, flows, ways, smallSizes(rounds))
		return err
	})
	return took, err
}

// withSmallFlows has servers for these ways, and goes on when the policies are some seconds old.
func withSmallFlows(ctx context.Context, l *rig.Lab, ways []smallWay, measure func(map[string]*rig.Flows) error) (err error) {
	var servers rig.Closers
	defer func() { err = errors.Join(err, servers.Close()) }()
	flows := map[string]*rig.Flows{}
	for _, way := range ways {
		f, err := rig.NewFlows(ctx, l.Network.Pod(way.client), l.Network.Pod(way.server))
		if err != nil {
			return err
		}
		servers.Own(f)
		f.Protocol = way.protocol
		flows[way.name] = f
	}
	time.Sleep(rig.PolicyAge)
	return measure(flows)
}

// inTurns runs a flow of each size by all ways before the next one: what else the machine does
// then slows all of them alike.
func inTurns(ctx context.Context, flows map[string]*rig.Flows, ways []smallWay, sizes []int64) (map[string]float64, error) {
	times, means := map[string]map[int64][]float64{}, map[string]float64{}
	for _, way := range ways {
		times[way.name] = map[int64][]float64{}
	}
	for _, size := range sizes {
		for way := range rig.Shuffled(ways) {
			took, err := flows[way.name].Run(ctx, []int64{size}, 1)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", way.name, err)
			}
			times[way.name][size] = append(times[way.name][size], took[0].Seconds()*1000)
		}
	}
	for way, bySize := range times {
		means[way] = meanOfMedians(bySize)
	}
	return means, nil
}

// smallSizes are all sizes so often, shuffled.
func smallSizes(rounds int) (sizes []int64) {
	for range rounds {
		for i := range int64(flowSteps) {
			sizes = append(sizes, smallestFlow+i*(largestFlow-smallestFlow)/(flowSteps-1))
		}
	}
	rand.Shuffle(len(sizes), func(i, j int) { sizes[i], sizes[j] = sizes[j], sizes[i] })
	return sizes
}

func meanOfMedians(bySize map[int64][]float64) (mean float64) {
	for _, took := range bySize {
		mean += rig.Median(took) / float64(len(bySize))
	}
	return mean
}
