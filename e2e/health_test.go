// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/network"
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
