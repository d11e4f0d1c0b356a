// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"testing"
	"time"

	"braid.dev/braid/e2e/testlab"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/hack/lab"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

// Nothing but the agents' probes can tell of a path that loses everything and keeps
// its carriers.
func TestABlockedPathIsAvoidedAndShown(t *testing.T) {
	c := use(t)
	c.spread(t, shopPolicy(v1alpha1.SubflowManagerAgent), 2)
	c.WaitFor(t, "both nodes reach each other on every path", 30*time.Second, func(ctx context.Context) error {
		return c.reaches(ctx, "node1", "blue", "green", "red")
	})
	blocked := failure{"green", "client", "loses all", func(n *network.Network, node *network.Node, path string, up bool) error {
		return n.Block(node, path, !up)
	}}
	t.Run("flows go on", func(t *testing.T) { c.expectFailover(t, blocked, true) })
	t.Run("the status shows it", func(t *testing.T) {
		c.set(t, blocked, false)
		c.WaitFor(t, "green is unreachable", 30*time.Second, func(ctx context.Context) error {
			return c.reaches(ctx, "node1", "blue", "red")
		})
		c.set(t, blocked, true)
		c.WaitFor(t, "green is back", 30*time.Second, func(ctx context.Context) error {
			return c.reaches(ctx, "node1", "blue", "green", "red")
		})
	})
}

// The path of the cluster network's own routes loses everything for longer than the kernel
// believes in its next hop there: without another route no packet would get as far as a NIC,
// whichever path its flow has.
func TestThePathOfTheRoutesIsBlocked(t *testing.T) {
	c := use(t)
	c.spread(t, shopPolicy(v1alpha1.SubflowManagerAgent), 2)
	c.WaitFor(t, "both nodes reach each other on every path", 30*time.Second, func(ctx context.Context) error {
		return c.reaches(ctx, "node1", "blue", "green", "red")
	})
	c.forgetNeighboursSoon(t, "blue")
	const back, end = 9 * time.Second, 10 * time.Second
	blocked := failure{"blue", "client", "loses all", func(n *network.Network, node *network.Node, path string, up bool) error {
		return n.Block(node, path, !up)
	}}
	transfers := []*testlab.Running{
		c.Begin(t, testlab.NewTransfer("client", "server", 4, traffic.Up, end)),
		c.Begin(t, testlab.NewTransfer("client", "server", 6, traffic.Down, end)),
	}
	transfers[0].SleepUntil(downAt)
	c.set(t, blocked, false)
	c.WaitFor(t, "plain TCP gets through too", back-downAt, c.connectsPlainly)
	transfers[0].SleepUntil(back)
	c.set(t, blocked, true)
	for _, r := range transfers {
		r.Finish(t)
		longest := r.LongestStop(downAt, end)
		t.Logf("%s: longest stop %v", r, longest)
		if longest > testlab.LongestStop {
			t.Errorf("%s: nothing arrived for %v", r, longest)
		}
	}
	c.WaitFor(t, "the routes are as before", 10*time.Second, c.hasNoDetours)
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

func (c *cluster) hasNoDetours(context.Context) error {
	for _, node := range c.Network.Nodes {
		for _, family := range []string{"-4", "-6"} {
			if out, err := node.Run("ip", family, "route", "show", "table", "all", "proto", "177"); err != nil || out != "" {
				return fmt.Errorf("%s has %q (%w)", node.NodeName(), out, err)
			}
		}
	}
	return nil
}

// forgetNeighboursSoon makes the nodes take a neighbour for gone after two seconds without
// an answer, where the kernel's defaults take up to a minute. Timers that run are those of
// before, so the kernel has to ask anew.
func (c *cluster) forgetNeighboursSoon(t *testing.T, path string) {
	t.Helper()
	set := func(values map[string]string) {
		for _, node := range c.Network.Nodes {
			for _, family := range []string{"4", "6"} {
				for name, value := range values {
					if err := node.Sysctl("net.ipv"+family+".neigh."+path+"."+name, value); err != nil {
						t.Error(err)
					}
				}
				if _, err := node.Run("ip", "-"+family, "neighbour", "flush", "dev", path); err != nil {
					t.Error(err)
				}
			}
		}
	}
	set(map[string]string{"base_reachable_time_ms": "500", "delay_first_probe_time": "1", "retrans_time_ms": "200"})
	t.Cleanup(func() {
		set(map[string]string{"base_reachable_time_ms": "30000", "delay_first_probe_time": "5", "retrans_time_ms": "1000"})
	})
}

// reaches tells whether a node's status shows that it reaches the others on exactly
// these paths.
func (c *cluster) reaches(ctx context.Context, name string, wanted ...string) error {
	node := &v1alpha1.MPTCPNode{}
	node.Name = name
	if err := c.Get(ctx, node); err != nil {
		return err
	}
	var reaches []string
	for _, path := range node.Status.Paths {
		if path.PeersProbed == 2 && path.PeersAlive == 2 && len(path.Unreachable) == 0 && path.MedianRTTMicros > 0 {
			reaches = append(reaches, string(path.Name))
		} else if path.PeersAlive == 2 || path.PeersProbed > 0 && len(path.Unreachable) == 0 {
			return fmt.Errorf("what %s shows of %s is contradictory: %+v", name, path.Name, path)
		}
	}
	if !slices.Equal(reaches, wanted) {
		return fmt.Errorf("%s reaches the others on %v, not on %v: %+v", name, reaches, wanted, node.Status.Paths)
	}
	return nil
}
