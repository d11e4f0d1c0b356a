// SPDX-License-Identifier: Apache-2.0

package outages_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/e2e/shop"
	"braid.dev/braid/e2e/testlab"
	"braid.dev/braid/internal/lab/traffic"
)

// Somebody tidies up below /sys/fs/bpf: the kernel detaches all programs, and what rules,
// limits and other processes go by is gone.
func TestPinsAreRemovedByHand(t *testing.T) {
	c := use(t)
	const limit = 30 // Mbit/s for each subflow
	policy := shop.Policy(v1alpha1.SubflowManagerAgent)
	c.Spread(t, policy, 2)
	c.SetRules(t, policy, shop.Limiting("slow", "30M"))
	node := c.Network.Pod("client").Node.NodeName()
	pinned := c.pins(t, node)
	for _, one := range pinned {
		if err := os.RemoveAll(one); err != nil {
			t.Fatal(err)
		}
	}
	took := c.WaitFor(t, "the agent pins everything again", 20*time.Second, func(context.Context) error {
		var missing []error
		for _, one := range pinned {
			_, err := os.Stat(one)
			missing = append(missing, err)
		}
		return errors.Join(missing...)
	})
	t.Logf("everything is pinned again after %v", took)
	c.WaitFor(t, "the pod is programmed", 20*time.Second, func(ctx context.Context) error {
		return c.PodProgrammed(ctx, node, "shop", "client")
	})
	r := c.Run(t, testlab.NewTransfer("client", "server", 4, traffic.Up, shop.ShortTime))
	t.Logf("a connection afterwards: %v", r.Steady())
	if used := r.Steady().Used(); len(used) != len(paths) {
		t.Errorf("a connection afterwards uses %v", used)
	}
	for path, rate := range r.Steady() {
		if rate > limit*1.1 {
			t.Errorf("%s carries %.0f Mbit/s, and %d are allowed", path, rate, limit)
		}
	}
	if hits := c.Hits(t, "client")["slow"]; hits == 0 {
		t.Error("the agent's inspection shows no packet of the rule")
	}
}

// pins are the directories of the parts.
func (c *cluster) pins(t *testing.T, node string) []string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(c.PinPath(node), "*"))
	if err != nil || len(all) < 3 {
		t.Fatalf("the pins are %v (%v)", all, err)
	}
	return all
}
