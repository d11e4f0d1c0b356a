// SPDX-License-Identifier: Apache-2.0

package failures_test

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"testing"
	"time"

	"braid.dev/braid/e2e/shop"
	"braid.dev/braid/e2e/testlab"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/hack/lab"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

// awaitProbes waits until the client's node has an answer from the others on every path.
func (c *cluster) awaitProbes(t *testing.T) {
	t.Helper()
	c.WaitFor(t, "both nodes reach each other on every path", 30*time.Second, func(ctx context.Context) error {
		return c.Reaches(ctx, "node1", "blue", "green", "red")
	})
}

// Nothing but the agents' probes can tell of a path that loses everything and keeps
// its carriers.
func TestABlockedPathIsAvoidedAndShown(t *testing.T) {
	c := use(t)
	c.Spread(t, shop.Policy(v1alpha1.SubflowManagerAgent), 2)
	c.awaitProbes(t)
	blocked := shop.LosesAll("green", "client")
	t.Run("flows go on", func(t *testing.T) { c.ExpectFailover(t, blocked, true) })
	t.Run("the status shows it", func(t *testing.T) {
		c.Set(t, blocked, false)
		c.WaitFor(t, "green is unreachable", 30*time.Second, func(ctx context.Context) error {
			return c.Reaches(ctx, "node1", "blue", "red")
		})
		c.Set(t, blocked, true)
		c.WaitFor(t, "green is back", 30*time.Second, func(ctx context.Context) error {
			return c.Reaches(ctx, "node1", "blue", "green", "red")
		})
	})
}

// The path of the cluster network's own routes loses everything for longer than the kernel
// believes in its next hop there: without another route no packet would get as far as a NIC,
// whichever path its flow has.
func TestThePathOfTheRoutesIsBlocked(t *testing.T) {
	c := use(t)
	c.Spread(t, shop.Policy(v1alpha1.SubflowManagerAgent), 2)
	c.awaitProbes(t)
	c.ForgetNeighboursSoon(t, "blue")
	const back, end = 9 * time.Second, 10 * time.Second
	blocked := shop.LosesAll("blue", "client")
	transfers := []*testlab.Running{
		c.Begin(t, testlab.NewTransfer("client", "server", 4, traffic.Up, end)),
		c.Begin(t, testlab.NewTransfer("client", "server", 6, traffic.Down, end)),
	}
	transfers[0].SleepUntil(shop.DownAt)
	c.Set(t, blocked, false)
	c.WaitFor(t, "plain TCP gets through too", back-shop.DownAt, c.connectsPlainly)
	transfers[0].SleepUntil(back)
	c.Set(t, blocked, true)
	for _, r := range transfers {
		r.Finish(t)
		longest := r.LongestStop(shop.DownAt, end)
		t.Logf("%s: longest stop %v", r, longest)
		if longest > testlab.LongestStop {
			t.Errorf("%s: nothing arrived for %v", r, longest)
		}
	}
	c.WaitFor(t, "the routes are as before", 10*time.Second, c.HasNoDetours)
}

// connectsPlainly tries one connection that no path but that of the routes can help.
func (c *cluster) connectsPlainly(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	server := c.Network.Pod("server")
	connection, err := c.Network.Pod("client").DialBy(ctx, network.TCP, "tcp", net.JoinHostPort(server.IPv4, strconv.Itoa(lab.TrafficPort)))
	if err != nil {
		return fmt.Errorf("dialling: %w", err)
	}
	return connection.Close()
}

// Where flows are answered on all paths, probes would say nothing else: their agents have that much
// less to do.
func TestFlowsThatAreAnsweredStandInForProbes(t *testing.T) {
	c := use(t)
	c.Spread(t, shop.Policy(v1alpha1.SubflowManagerAgent), 2)
	c.awaitProbes(t)
	const warm, end = 2 * time.Second, 8 * time.Second
	running := c.Begin(t, testlab.NewTransfer("client", "server", 4, traffic.Up, end))
	running.SleepUntil(warm)
	before, since := c.probesSent(t), time.Now()
	running.SleepUntil(end - time.Second)
	after, took := c.probesSent(t), time.Since(since)
	running.Finish(t)
	for _, path := range paths {
		rate := (after[path] - before[path]) / took.Seconds()
		t.Logf("%s was probed %.1f times a second", path, rate)
		if rate < 1 || rate > 12 {
			t.Errorf("%s was probed %.1f times a second; want 4 to the server's node and 1 to the other, of 20 and 1 without flows", path, rate)
		}
	}
}

// probesSent are those of the client's node, by path.
func (c *cluster) probesSent(t *testing.T) map[string]float64 {
	t.Helper()
	sent := map[string]float64{}
	for _, path := range paths {
		sent[path] = c.AgentMetric(t, c.Network.Pod("client").Node, fmt.Sprintf("braid_path_probes_sent_total{path=%q}", path))
	}
	return sent
}
