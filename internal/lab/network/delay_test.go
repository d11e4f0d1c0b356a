// SPDX-License-Identifier: Apache-2.0

package network_test

import (
	"context"
	"net"
	"testing"
	"time"

	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/testutil"
)

// roundTrip is the shortest time that it takes to open a connection.
func roundTrip(t *testing.T, from, to *network.Namespace, address string) time.Duration {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	listener, err := to.Listen(ctx, "tcp", net.JoinHostPort(address, "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	shortest := time.Hour
	for range 5 {
		start := time.Now()
		connection, err := from.Dial(ctx, "tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		shortest = min(shortest, time.Since(start))
		if err := connection.Close(); err != nil {
			t.Error(err)
		}
	}
	return shortest
}

func TestEachPathHasItsOwnDelay(t *testing.T) {
	n := network.ForTest(t, network.Spec{
		Nodes: 3, Paths: []string{"blue", "green", "red"}, PodsPerNode: 1,
		PathDelays: map[string]time.Duration{"blue": 20 * time.Millisecond, "red": 50 * time.Millisecond},
	})
	a, c := n.Nodes[0], n.Nodes[2]
	for _, version := range []int{4, 6} {
		for path, delay := range []time.Duration{20 * time.Millisecond, 0, 50 * time.Millisecond} {
			patience := testutil.NewPatience()
			took := roundTrip(t, a.Namespace, c.Namespace, c.Address(path, version))
			if took < 2*delay || took > 2*delay+patience.Stretch(15*time.Millisecond) {
				t.Errorf("IPv%d, %s: a round trip took %s with a delay of %s", version, n.Spec.Paths[path], took, delay)
			}
		}
	}
	expectReach(t, a.Pods[0].Namespace, c.Pods[0].Namespace, c.Pods[0].IPv4)
}

func TestADelayedLinkCarriesItsRate(t *testing.T) {
	const delay = 10 * time.Millisecond
	for name, test := range map[string]struct {
		mbit     int
		least    float64
		most     float64
		transfer int64
	}{
		"when it is shaped":     {100, 60, 105, 25_000_000},
		"when it is not shaped": {0, 300, 1e6, 200_000_000},
	} {
		t.Run(name, func(t *testing.T) {
			n := build(t, network.Spec{IPv4: true, LinkMbit: test.mbit, PathDelays: map[string]time.Duration{"blue": delay}})
			took := send(t, n.Pod("pod-1-1"), n.Pod("pod-2-1"), test.transfer)
			rate := float64(test.transfer) * 8 / took.Seconds() / 1e6
			t.Logf("%.0f Mbit/s", rate)
			if rate < test.least || rate > test.most {
				t.Errorf("carried %.1f Mbit/s", rate)
			}
		})
	}
}

func TestADelayedPathFailsAndComesBackAsOthersDo(t *testing.T) {
	n := build(t, network.Spec{PathDelays: map[string]time.Duration{"blue": 5 * time.Millisecond}})
	from, to := n.Pod("pod-1-1"), n.Pod("pod-2-1")
	for name, set := range map[string]func(*network.Node, string, bool) error{"from the node": n.SetNIC, "from the fabric": n.SetCarrier} {
		t.Run(name, func(t *testing.T) {
			change(t, set, from.Node, false)
			if reach(from.Namespace, to.Namespace, to.IPv4) == nil {
				t.Error("the NIC is down and traffic still passes")
			}
			change(t, set, from.Node, true)
			expectReach(t, from.Namespace, to.Namespace, to.IPv4)
		})
	}
}

func TestADelayOfNoPathIsRefused(t *testing.T) {
	for name, delays := range map[string]map[string]time.Duration{
		"another path":      {"green": time.Millisecond},
		"a negative number": {"blue": -time.Millisecond},
	} {
		if _, err := network.Build(network.Spec{Name: network.TestName(), Nodes: 1, Paths: []string{"blue"}, PathDelays: delays}); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}
