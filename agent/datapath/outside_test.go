// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netns"

	"braid.dev/braid/agent/node"
	"braid.dev/braid/agent/paths"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
	"braid.dev/braid/internal/testutil"
)

var theWorld = []v1alpha1.CIDR{network.WorldIPv4, network.WorldIPv6}

// newWorld is a lab of one node whose paths lead to a host outside, each over its own gateway.
func newWorld(t *testing.T) *lab {
	t.Helper()
	return newLabOf(t, network.Spec{Nodes: 1, Paths: threePaths, LinkMbit: 100, PodsPerNode: 2, World: true}, Options{})
}

// applyOutside applies what the agent finds where a policy names these destinations for the pods.
func (l *lab) applyOutside(t *testing.T, outside ...v1alpha1.CIDR) paths.Resolution {
	t.Helper()
	state := l.states(t)[0]
	namespace, err := netns.GetFromPath(l.Nodes[0].Path())
	require.NoError(t, err)
	defer namespace.Close()
	found, err := paths.Open(namespace)
	require.NoError(t, err)
	defer found.Close()
	query := paths.Query{Outside: paths.Prefixes(outside)}
	for _, path := range l.Spec.Paths {
		query.Paths = append(query.Paths, v1alpha1.PlanPath{Name: v1alpha1.PathName(path), Interfaces: []v1alpha1.InterfacePattern{v1alpha1.InterfacePattern(path)}})
	}
	resolution, err := found.Resolve(query)
	require.NoError(t, err)
	state.Outside, err = found.LeadOutside(resolution.Paths, query.Outside)
	require.NoError(t, err)
	for p := range state.Paths {
		state.Paths[p].Addresses = resolution.Paths[p].Addresses
	}
	state.Endpoints = slices.DeleteFunc(state.Endpoints, func(e Endpoint) bool { return e.Addresses[0].String() == l.unselected })
	for i := range state.Endpoints {
		state.Endpoints[i].Outside = outside
	}
	l.apply(t, 0, state)
	return resolution
}

// serveOutside answers transfers in the world, whose clients open further subflows
// to ports that it announces.
func (l *lab) serveOutside(t *testing.T, version, subflows int) {
	t.Helper()
	if version == 6 { // with timestamps there is no room for the announcement of an address and a port
		require.NoError(t, l.World.Sysctl("net.ipv4.tcp_timestamps", "0"))
	}
	world := &network.Pod{Namespace: l.World.Namespace, IPv4: l.World.IPv4, IPv6: l.World.IPv6}
	serve(t, world, version)
	announce(t, l.Nodes[0].Pods[0], world, version, subflows)
}

// toWorld is a transfer from the first pod to the world.
func (l *lab) toWorld(t *testing.T, version int, options traffic.Options) *running {
	t.Helper()
	return startWith(t, options, func(ctx context.Context) (net.Conn, error) {
		return l.Nodes[0].Pods[0].Dial(ctx, "tcp", net.JoinHostPort(l.World.Address(version), port))
	})
}

func TestConnectionsToOutsideFillAllPaths(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name        string
		version     int
		masqueraded bool
		direction   traffic.Direction
	}{
		{"IPv4 up", 4, false, traffic.Up},
		{"IPv4 down", 4, false, traffic.Down},
		{"IPv6 up", 6, false, traffic.Up},
		{"masqueraded IPv4 up", 4, true, traffic.Up},
		{"masqueraded IPv4 down", 4, true, traffic.Down},
		{"masqueraded IPv6 up", 6, true, traffic.Up},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newWorld(t)
			if c.masqueraded {
				require.NoError(t, l.Nodes[0].Masquerade())
			}
			l.applyOutside(t, theWorld...)
			l.serveOutside(t, c.version, 3)
			var result *traffic.Result
			sent := l.sent(t, 0, func() {
				running := l.toWorld(t, c.version, traffic.Options{Direction: c.direction, Duration: 2 * time.Second, Verify: true})
				running.awaitSubflows(t, 3)
				result = running.wait(t)
			})
			t.Logf("%.1f Mbit/s, %v", result.Mbit, sent)
			if result.Mbit < 200 {
				t.Errorf("only %.1f Mbit/s over three links of 100", result.Mbit)
			}
			sent.expectShares(t, "sent", map[string]float64{"blue": 1. / 3, "green": 1. / 3, "red": 1. / 3})
		})
	}
}

// While a gateway is dead its path carries nothing, and connections go on; when it is back they
// use it again.
func TestConnectionsOutliveAGateway(t *testing.T) {
	t.Parallel()
	for _, dying := range threePaths[:2] { // that of the route, and another
		t.Run(dying, func(t *testing.T) {
			l := newWorld(t)
			l.applyOutside(t, theWorld...)
			l.serveOutside(t, 4, 3)
			running := l.toWorld(t, 4, traffic.Options{Duration: 13 * time.Second, Verify: true, Bin: 10 * time.Millisecond})
			running.awaitSubflows(t, 3)
			running.at(time.Second)
			require.NoError(t, l.SetGateway(dying, false))
			running.at(2 * time.Second)
			l.expectOthers(t, dying, "before the agent knows")
			l.awaitGateway(t, dying, false)
			if dying != threePaths[0] { // that of the node's own route holds all up for a second then
				l.expectOthers(t, dying, "when the agent knows")
			}
			require.NoError(t, l.SetGateway(dying, true))
			l.awaitGateway(t, dying, true)
			time.Sleep(500 * time.Millisecond) // TCP repeats, where nothing went out before
			l.sentIn(t, 0, time.Second).expectShares(t, "with its gateway again", map[string]float64{"blue": 1. / 3, "green": 1. / 3, "red": 1. / 3})
			result := running.wait(t)
			t.Logf("%.1f Mbit/s, longest stop %s", result.Mbit, longestStop(result))
			if stop := longestStop(result); stop > 2*time.Second {
				t.Errorf("nothing arrived for %s", stop)
			}
			if !result.Multipath {
				t.Error("the connection is no longer MPTCP's")
			}
		})
	}
}

// expectOthers: soon the path carries nothing, and the connection goes on, which may still be
// repeating what was lost.
func (l *lab) expectOthers(t *testing.T, dead, when string) {
	t.Helper()
	testutil.Retry(t, 2*time.Second, func() error {
		sent := l.sentIn(t, 0, 500*time.Millisecond)
		total := 0.0
		for _, bytes := range sent {
			total += float64(bytes)
		}
		if share := sent.share(dead); share > 0.02 || total < 5e5 {
			return fmt.Errorf("%s the path without a gateway carries %.2f of the bytes: %v", when, share, sent)
		}
		return nil
	})
}

// awaitGateway does as the agent does until the path has a gateway that answers, or none.
func (l *lab) awaitGateway(t *testing.T, path string, answers bool) {
	t.Helper()
	began := time.Now()
	testutil.Retry(t, 8*time.Second, func() error {
		require.NoError(t, l.Nodes[0].Do(l.datapaths[0].askGateways))
		for _, found := range l.applyOutside(t, theWorld...).Paths {
			if has := len(found.Gateways) == 2; found.Name == path && has != answers {
				time.Sleep(200 * time.Millisecond)
				return fmt.Errorf("%s has the gateways %v: %s", path, found.Gateways, found.Message)
			}
		}
		return nil
	})
	t.Logf("known after %s", time.Since(began))
}

func TestWhatIsNotNamedIsLeftAlone(t *testing.T) {
	l := newWorld(t)
	l.applyOutside(t, "203.0.113.0/24", "198.51.100.11/32", "::/0")
	l.serveOutside(t, 4, 3)
	sent := l.sent(t, 0, func() {
		running := l.toWorld(t, 4, traffic.Options{Duration: time.Second, Verify: true})
		running.awaitSubflows(t, 3)
		running.wait(t)
	})
	if share := sent.share("blue"); share < 0.99 {
		t.Errorf("the route's path carried only %.2f of the bytes: %v", share, sent)
	}
	if flows := l.flows(t, 0); len(flows) > 0 {
		t.Errorf("there are flows: %s", describe(flows))
	}
}

// A pod that may no longer go there has its flows on the cluster network's route from the next
// packet on.
func TestAPolicyThatNamesADestinationNoLongerLeavesItsFlows(t *testing.T) {
	l := newWorld(t)
	l.applyOutside(t, theWorld...)
	l.serveOutside(t, 4, 3)
	running := l.toWorld(t, 4, traffic.Options{Duration: 2 * time.Second, Verify: true})
	running.awaitSubflows(t, 3)
	l.awaitSubflows(t, 0, 3)
	l.applyOutside(t, "203.0.113.0/24")
	if flows := l.flows(t, 0); len(flows) > 0 {
		t.Errorf("there are flows: %s", describe(flows))
	}
	if share := l.sentIn(t, 0, 500*time.Millisecond).share("blue"); share < 0.95 {
		t.Errorf("the route's path carried only %.2f of the bytes", share)
	}
	running.wait(t)
}

// fromWorld has the world open a connection with a subflow from each of its links to an address of
// the node's side, and the pod send over it.
func (l *lab) fromWorld(t *testing.T, address string) (*traffic.Result, counted) {
	t.Helper()
	pod := l.Nodes[0].Pods[0]
	serve(t, pod, 4)
	limitSubflows(t, pod, 3)
	world := &network.Pod{Namespace: l.World.Namespace}
	limitSubflows(t, world, 3)
	for i, path := range threePaths[1:] {
		run(t, world, "ip", "mptcp", "endpoint", "add", l.World.LinkAddress(i+1, 4), "dev", path, "subflow")
	}
	var result *traffic.Result
	sent := l.sent(t, 0, func() {
		running := startWith(t, traffic.Options{Direction: traffic.Down, Duration: 2 * time.Second, Verify: true}, func(ctx context.Context) (net.Conn, error) {
			return l.World.Dial(ctx, "tcp", net.JoinHostPort(address, port))
		})
		running.awaitSubflows(t, 3)
		result = running.wait(t)
	})
	t.Logf("%.1f Mbit/s, %v", result.Mbit, sent)
	return result, sent
}

// What a client outside begins is answered on the paths by which it comes: to a pod's own
// address, and to the node's, where a Service leads to the pod.
func TestConnectionsFromOutsideAreAnsweredByThePathsOfTheirSubflows(t *testing.T) {
	t.Parallel()
	for name, to := range map[string]func(l *lab) string{
		"to the pod": func(l *lab) string { return l.Nodes[0].Pods[0].IPv4 },
		"to the node, by a Service": func(l *lab) string {
			require.NoError(t, l.Nodes[0].Publish(l.Nodes[0].Pods[0], port))
			return l.Nodes[0].Address(0, 4)
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newWorld(t)
			l.applyOutside(t, theWorld...)
			result, sent := l.fromWorld(t, to(l))
			if result.Mbit < 200 {
				t.Errorf("only %.1f Mbit/s over three links of 100", result.Mbit)
			}
			sent.expectShares(t, "sent", map[string]float64{"blue": 1. / 3, "green": 1. / 3, "red": 1. / 3})
		})
	}
}

// Another pod of the node answers by the cluster network's route alone.
func TestAServiceOfAPodThatIsNotSelectedIsLeftAlone(t *testing.T) {
	l := newWorld(t)
	require.NoError(t, l.Nodes[0].Publish(l.Nodes[0].Pods[0], port))
	l.unselected = l.Nodes[0].Pods[0].IPv4
	l.applyOutside(t, theWorld...)
	_, sent := l.fromWorld(t, l.Nodes[0].Address(0, 4))
	if share := sent.share("blue"); share < 0.99 {
		t.Errorf("the route's path carried only %.2f of the bytes: %v", share, sent)
	}
}

// A router that takes a masqueraded packet only from the path that its address is of drops
// what comes by others. Connections go on without these.
func TestConnectionsOutliveRoutersThatCheckSources(t *testing.T) {
	t.Parallel()
	l := newWorld(t)
	require.NoError(t, l.Nodes[0].Masquerade())
	for _, path := range threePaths[1:] {
		require.NoError(t, l.CheckSources(path))
	}
	l.applyOutside(t, theWorld...)
	l.serveOutside(t, 4, 3)
	running := l.toWorld(t, 4, traffic.Options{Duration: 5 * time.Second, Verify: true, Bin: 10 * time.Millisecond})
	result := running.wait(t)
	t.Logf("%.1f Mbit/s, longest stop %s, %d subflows", result.Mbit, longestStop(result), result.Subflows)
	if result.Mbit < 75 || longestStop(result) > 2*time.Second {
		t.Errorf("%.1f Mbit/s over a link of 100, longest stop %s", result.Mbit, longestStop(result))
	}
}

// What cannot be spread is told in the endpoint's status.
func TestEndpointsSayWhyTheirConnectionsOutsideAreNotSpread(t *testing.T) {
	destination := netip.MustParsePrefix("198.51.100.0/24")
	weights := []v1alpha1.PathWeight{{Path: "blue", Weight: 1}, {Path: "green", Weight: 1}}
	for name, c := range map[string]struct {
		answering []string
		bridged   bool
		want      string
	}{
		"two gateways":          {[]string{"blue", "green"}, false, ""},
		"one that answers":      {[]string{"green"}, false, "of the pod's paths green alone has a gateway"},
		"none":                  {nil, false, "none of the pod's paths has a gateway"},
		"a pod behind a bridge": {[]string{"blue", "green"}, true, "the pod's interface is on a bridge"},
	} {
		t.Run(name, func(t *testing.T) {
			plan := &v1alpha1.PlanEndpoint{UID: "pod", Paths: weights, Outside: []v1alpha1.CIDR{v1alpha1.CIDR(destination.String())}}
			others := &v1alpha1.PlanEndpoint{UID: "other", Paths: weights}
			outside := node.Outside{Destination: destination}
			outside.Paths = map[string]PeerPath{"blue": {}, "green": {}}
			for _, path := range c.answering {
				outside.Paths[path] = PeerPath{Up: true}
			}
			var report node.Report
			describeOutside(&node.Model{Outside: []node.Outside{outside}, Endpoints: []node.Endpoint{{PlanEndpoint: plan, Bridged: c.bridged}, {PlanEndpoint: others, Bridged: true}}}, &report)
			require.Nil(t, report.Endpoints["other"].Describe)
			var status v1alpha1.EndpointStatus
			if describe := report.Endpoints["pod"].Describe; describe != nil {
				describe(&status)
			}
			require.Equal(t, c.want == "", status.Message == "")
			require.Contains(t, status.Message, c.want)
		})
	}
}

// A range of IPv6 so large that the maps' form of IPv4 lies in it has no address of IPv4.
func TestEverythingOfIPv6IsNothingOfIPv4(t *testing.T) {
	number := func(n uint32) *node.Model {
		m := &node.Model{Endpoints: []node.Endpoint{{Number: 1, PlanEndpoint: &v1alpha1.PlanEndpoint{Paths: []v1alpha1.PathWeight{{Path: "blue", Weight: 1}}}}}}
		for i, text := range []v1alpha1.CIDR{"::/0", "0.0.0.0/0"}[:n] {
			m.Outside = append(m.Outside, node.Outside{Peer: node.Peer{Number: uint32(i)}, Destination: netip.MustParsePrefix(string(text))})
			m.Endpoints[0].Outside = append(m.Endpoints[0].Outside, text)
		}
		return m
	}
	of := outsideOf(number(1))
	require.EqualValues(t, noPeer, of[outsideKey(1, onlyIPv6)])
	require.EqualValues(t, 0, of[outsideKey(1, netip.MustParsePrefix("::/0"))])
	require.EqualValues(t, 1, outsideOf(number(2))[outsideKey(1, onlyIPv6)], "which is all of IPv4")
}
