// SPDX-License-Identifier: Apache-2.0

package shop

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/e2e/testlab"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

// Failure is a NIC that goes down and comes back.
type Failure struct {
	Path string
	node string // the pod's whose node has the NIC
	what string
	set  func(*network.Network, *network.Node, string, bool) error
}

func (f Failure) String() string {
	return fmt.Sprintf("%s %s at the %s's node", f.Path, f.what, f.node)
}

// LosesCarrier is a NIC, of that path at a pod's node, that loses its carrier.
func LosesCarrier(path, node string) Failure {
	return Failure{path, node, "loses its carrier", (*network.Network).SetCarrier}
}

// IsSetDown is one that is set down.
func IsSetDown(path, node string) Failure {
	return Failure{path, node, "is set down", (*network.Network).SetNIC}
}

// LosesAll is one that keeps its carrier, and gets nothing through.
func LosesAll(path, node string) Failure {
	return Failure{path, node, "loses all", func(n *network.Network, node *network.Node, path string, up bool) error {
		return n.Block(node, path, !up)
	}}
}

// RouterDies is the router between all racks, on that path.
func RouterDies(path string) Failure {
	return Failure{path, "client", "loses its router", func(n *network.Network, _ *network.Node, path string, up bool) error {
		return n.SetRouter(path, up)
	}}
}

// When what happens in a transfer with a failure. Settled is how long after the
// failure the rates are looked at. They are looked at for long enough that one of
// TCP's own stalls does not decide: three subflows share two queues then, and while
// one of them sends lost bytes again, the receiver's kernel acknowledges those of the
// others up to 40 ms late, which can slow all of them down for half a second.
const (
	DownAt  = 1500 * time.Millisecond
	upAt    = 5 * time.Second
	endAt   = 8 * time.Second
	Settled = 700 * time.Millisecond
)

// ExpectFailover moves bytes up over IPv4 and down over IPv6, or the other way.
func (c *Cluster) ExpectFailover(t *testing.T, f Failure, upIPv4 bool) {
	up, down := 6, 4
	if upIPv4 {
		up, down = 4, 6
	}
	transfers := []*testlab.Running{
		c.Begin(t, testlab.NewTransfer("client", "server", up, traffic.Up, endAt)),
		c.Begin(t, testlab.NewTransfer("client", "server", down, traffic.Down, endAt)),
	}
	transfers[0].SleepUntil(DownAt)
	c.Set(t, f, false)
	transfers[0].SleepUntil(upAt)
	returned := c.Set(t, f, true)
	for _, r := range transfers {
		r.Finish(t)
		expectFailoverOf(t, r, f.Path, returned)
	}
}

// Set sets the NIC, also up again when the test ends before.
func (c *Cluster) Set(t *testing.T, f Failure, up bool) time.Time {
	t.Helper()
	node := c.Network.Pod(f.node).Node
	at := time.Now()
	if err := f.set(c.Network, node, f.Path, up); err != nil {
		t.Fatal(err)
	}
	if !up {
		t.Cleanup(func() {
			if err := f.set(c.Network, node, f.Path, true); err != nil {
				t.Error(err)
			}
		})
	}
	return at
}

func expectFailoverOf(t *testing.T, r *testlab.Running, path string, returned time.Time) {
	t.Helper()
	before, without := r.Shares(testlab.Warmup, DownAt), r.Shares(DownAt+Settled, upAt)
	after, carries := r.Wire.CarriesAgain(path, returned)
	t.Logf("%s: longest stop %v after the failure, %v after the return, which took %v", r,
		r.LongestStop(DownAt, upAt), r.LongestStop(upAt, endAt), after)
	t.Logf("%s: before %v; meanwhile %v; at the end %v", r, before, without, r.Shares(endAt-testlab.Warmup, endAt))
	others := slices.DeleteFunc(slices.Clone(Paths), func(p string) bool { return p == path })
	if used := before.Used(); !slices.Equal(used, Paths) {
		t.Errorf("%s: before the failure only %v carried a share", r, used)
	}
	if used := without.Used(); !slices.Equal(used, others) {
		t.Errorf("%s: during the failure %v carried a share, not %v", r, used, others)
	}
	if !carries {
		t.Errorf("%s: %s did not carry its share again", r, path)
	}
	if stop := r.LongestStop(DownAt, endAt); stop > testlab.LongestStop {
		t.Errorf("%s: nothing arrived for %v", r, stop)
	}
	if r.Result.Subflows != len(Paths) {
		t.Errorf("%s: there are %d subflows at the end", r, r.Result.Subflows)
	}
}

// Reaches tells whether a node's status shows that it reaches the others on exactly
// these paths.
func (c *Cluster) Reaches(ctx context.Context, name string, wanted ...string) error {
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

// HasNoDetours fails while a node has a route in the place of the cluster network's.
func (c *Cluster) HasNoDetours(context.Context) error {
	for _, node := range c.Network.Nodes {
		for _, family := range []string{"-4", "-6"} {
			if out, err := node.Run("ip", family, "route", "show", "table", "all", "proto", "177"); err != nil || out != "" {
				return fmt.Errorf("%s has %q (%w)", node.NodeName(), out, err)
			}
		}
	}
	return nil
}

// ForgetNeighboursSoon makes the nodes take a neighbour for gone after two seconds without
// an answer, where the kernel's defaults take up to a minute. Timers that run are those of
// before, so the kernel has to ask anew.
func (c *Cluster) ForgetNeighboursSoon(t *testing.T, path string) {
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
