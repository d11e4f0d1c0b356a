// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"fmt"
	"maps"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

// threePaths are the paths of most tests. The routes of the network use blue.
var threePaths = []string{"blue", "green", "red"}

var evenShares = map[string]float64{"blue": 1. / 3, "green": 1. / 3, "red": 1. / 3}

// newPair is a lab with a pod on each node, whose connections get three subflows.
func newPair(t *testing.T, options Options) (l *lab, client, server *network.Pod) {
	t.Helper()
	l = newLab(t, threePaths, 1, options)
	client, server = l.Pod("pod-1-1"), l.Pod("pod-2-1")
	serve(t, server, 4)
	announce(t, client, server, 4, 3)
	return l, client, server
}

func TestSubflowsOfOneConnectionFillAllPaths(t *testing.T) {
	t.Parallel()
	l := newLab(t, threePaths, 1, Options{})
	client, server := l.Pod("pod-1-1"), l.Pod("pod-2-1")
	options := traffic.Options{Duration: 1500 * time.Millisecond, Warmup: 500 * time.Millisecond, Verify: true}
	alone := map[int]float64{}
	for _, version := range []int{4, 6} {
		serve(t, server, version)
		announce(t, client, server, version, 3)
		alone[version] = transfer(t, client, server, version, options).Mbit
	}
	l.applyAll(t)
	for _, version := range []int{4, 6} {
		for _, direction := range []traffic.Direction{traffic.Up, traffic.Down} {
			t.Run(fmt.Sprintf("IPv%d %s", version, direction), func(t *testing.T) {
				options.Direction = direction
				var result *traffic.Result
				sent := l.sent(t, map[traffic.Direction]int{traffic.Up: 0, traffic.Down: 1}[direction], func() {
					result = transfer(t, client, server, version, options)
				})
				t.Logf("%.1f Mbit/s, without the datapath %.1f, sent %v", result.Mbit, alone[version], sent)
				sent.expectShares(t, "the sender", evenShares)
				if result.Mbit < 1.8*alone[version] || !result.Multipath || result.Subflows != 3 {
					t.Errorf("%.1f Mbit/s over %d subflows, multipath %t; without the datapath %.1f", result.Mbit, result.Subflows, result.Multipath, alone[version])
				}
			})
		}
	}
}

func TestBothDirectionsOfASubflowShareItsPath(t *testing.T) {
	l, client, server := newPair(t, Options{})
	l.applyAll(t)
	for _, direction := range []traffic.Direction{traffic.Up, traffic.Down} {
		receiver := map[traffic.Direction]int{traffic.Up: 1, traffic.Down: 0}[direction]
		var there, here []Flow
		// What the receiver of the payload sends are its acknowledgements.
		acknowledged := l.sent(t, receiver, func() {
			r := start(t, client, server, 4, traffic.Options{Connections: 4, Direction: direction, Duration: 1500 * time.Millisecond})
			here, there = l.awaitSubflows(t, 0, 12), l.awaitSubflows(t, 1, 12)
			r.wait(t)
		})
		acknowledged.expectShares(t, "acknowledgements", evenShares)
		mirrored := byEnds(there)
		for e, flow := range byEnds(here) {
			other, ok := mirrored[ends{e.remote, e.local}]
			if !ok || other.Path != flow.Path || other.Initiator || !flow.Initiator {
				t.Errorf("one end of a subflow and its other:%s", describe([]Flow{flow, other}))
			}
		}
	}
}

func (l *lab) weighted(t *testing.T, pod *network.Pod, weights map[string]int32) Endpoint {
	t.Helper()
	endpoint := l.endpoint(t, pod)
	endpoint.Paths = nil
	for path, weight := range weights {
		endpoint.Paths = append(endpoint.Paths, v1alpha1.PathWeight{Path: v1alpha1.PathName(path), Weight: weight})
	}
	return endpoint
}

func TestWeightsAndAllowedPathsDecide(t *testing.T) {
	t.Parallel()
	l := newLab(t, threePaths, 1, Options{})
	client, server := l.Pod("pod-1-1"), l.Pod("pod-2-1")
	serve(t, server, 4)
	announce(t, client, server, 4, 4)
	cases := []struct {
		name     string
		weights  map[string]int32
		subflows int
		conns    int
		expected map[string]int
	}{
		{"first subflows by weight", map[string]int32{"blue": 50, "green": 25, "red": 25}, 1, 8, map[string]int{"blue": 4, "green": 2, "red": 2}},
		{"percentages", map[string]int32{"blue": 50, "red": 50}, 1, 6, map[string]int{"blue": 3, "red": 3}},
		{"one path alone", map[string]int32{"red": 7}, 3, 2, map[string]int{"red": 6}},
		{"not the route's path", map[string]int32{"green": 1, "red": 1}, 2, 4, map[string]int{"green": 4, "red": 4}},
		{"more subflows than paths", map[string]int32{"blue": 2, "green": 1, "red": 1}, 4, 3, map[string]int{"blue": 6, "green": 3, "red": 3}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			limitSubflows(t, client, c.subflows)
			require.NoError(t, l.Nodes[0].Do(func() error { return l.datapaths[0].Remove(t.Context()) }))
			state := l.states(t)[0]
			state.Endpoints = []Endpoint{l.weighted(t, client, c.weights)}
			l.apply(t, 0, state)
			r := start(t, client, server, 4, traffic.Options{Connections: c.conns, Duration: time.Second})
			flows := l.awaitSubflows(t, 0, c.conns*c.subflows)
			r.wait(t)
			if counts := pathCounts(flows); !maps.Equal(counts, c.expected) {
				t.Errorf("subflows by path are %v instead of %v:%s", counts, c.expected, describe(flows))
			}
		})
	}
}

func TestManyConnectionsShareThePathsEvenly(t *testing.T) {
	l, client, server := newPair(t, Options{})
	l.applyAll(t)
	const connections = 50
	var flows []Flow
	sent := l.sent(t, 0, func() {
		r := start(t, client, server, 4, traffic.Options{Connections: connections, Duration: 2 * time.Second})
		flows = l.awaitSubflows(t, 0, 3*connections)
		r.wait(t)
	})
	sent.expectShares(t, "the sender", evenShares)
	first := map[string]int{}
	for _, flow := range flows {
		if flow.Remote.Port() == 5001 {
			first[flow.Path]++
		}
	}
	for path, count := range pathCounts(flows) {
		if count != connections || first[path] < connections/3 || first[path] > connections/3+1 {
			t.Errorf("%s has %d subflows of %d connections, %d of them first ones", path, count, connections, first[path])
		}
	}
}

func TestPlainTCPStaysOnTheRoute(t *testing.T) {
	l, client, server := newPair(t, Options{})
	l.applyAll(t)
	sent := l.sent(t, 0, func() {
		startWith(t, traffic.Options{Connections: 4, Duration: 600 * time.Millisecond}, func(ctx context.Context) (connection net.Conn, err error) {
			err = client.Do(func() error {
				connection, err = traffic.DialPlain(net.JoinHostPort(server.Address(4), port))(ctx)
				return err
			})
			return connection, err
		}).wait(t)
	})
	sent.expectShares(t, "plain TCP", map[string]float64{"blue": 1})
	for node := range l.Nodes {
		if flows := l.flows(t, node); len(flows) > 0 {
			t.Errorf("node %d remembers flows:%s", node+1, describe(flows))
		}
	}
}

func TestAnUnselectedPodStaysOnTheRoute(t *testing.T) {
	l := newLab(t, threePaths, 2, Options{})
	client, server := l.Pod("pod-1-2"), l.Pod("pod-2-1")
	serve(t, server, 4)
	announce(t, client, server, 4, 3)
	states := l.states(t)
	states[0].Endpoints = states[0].Endpoints[:1]
	for node, state := range states {
		l.apply(t, node, state)
	}
	var result *traffic.Result
	sent := l.sent(t, 0, func() {
		result = transfer(t, client, server, 4, traffic.Options{Duration: 600 * time.Millisecond})
	})
	if result.Subflows != 3 {
		t.Errorf("%d subflows", result.Subflows)
	}
	sent.expectShares(t, "the unselected pod", map[string]float64{"blue": 1})
	if flows := l.flows(t, 0); len(flows) > 0 {
		t.Errorf("its node remembers flows:%s", describe(flows))
	}
}

func TestFlowsFromBeforeStayWhereTheyWere(t *testing.T) {
	l, client, server := newPair(t, Options{})
	r := start(t, client, server, 4, traffic.Options{Duration: untilEnded})
	r.at(500 * time.Millisecond)
	l.applyAll(t)
	l.sentIn(t, 0, 600*time.Millisecond).expectShares(t, "the connection from before", map[string]float64{"blue": 1})
	if flows := l.flows(t, 0); len(flows) > 0 {
		t.Errorf("flows from before are remembered:%s", describe(flows))
	}
	later := start(t, client, server, 4, traffic.Options{Duration: untilEnded})
	if counts := pathCounts(l.awaitSubflows(t, 0, 3)); !maps.Equal(counts, map[string]int{"blue": 1, "green": 1, "red": 1}) {
		t.Errorf("the subflows of a later connection by path: %v", counts)
	}
	later.end(t)
	r.end(t)
}
