// SPDX-License-Identifier: Apache-2.0

package failures_test

import (
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/e2e/shop"
	"braid.dev/braid/e2e/testlab"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

// What happens when, in a transfer during which a NIC loses and regains its carrier ten times
// a second.
const (
	flapsAt   = 1500 * time.Millisecond
	steadyAt  = 6500 * time.Millisecond
	flapsEnd  = 12 * time.Second
	flapPause = 50 * time.Millisecond
)

// nodeWrites counts how often an MPTCPNode is written, until the test ends: each agent of the
// cluster gets each of these writes.
func (c *cluster) nodeWrites(t *testing.T, name string) *atomic.Int64 {
	t.Helper()
	watching, err := client.NewWithWatch(c.Server.Config(), client.Options{Scheme: c.Client.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	events, err := watching.Watch(t.Context(), &v1alpha1.MPTCPNodeList{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(events.Stop)
	var writes atomic.Int64
	go func() {
		for event := range events.ResultChan() {
			if node, is := event.Object.(*v1alpha1.MPTCPNode); is && node.Name == name {
				writes.Add(1)
			}
		}
	}()
	return &writes
}

func (c *cluster) flap(t *testing.T, r *testlab.Running, node *network.Node, path string) {
	t.Helper()
	t.Cleanup(func() { _ = c.Network.SetCarrier(node, path, true) }) // it has it, unless the test ended before
	r.SleepUntil(flapsAt)
	for up := false; time.Since(r.Began) < steadyAt || up; up = !up {
		if err := c.Network.SetCarrier(node, path, up); err != nil {
			t.Fatal(err)
		}
		time.Sleep(flapPause)
	}
	if err := c.Network.SetCarrier(node, path, true); err != nil {
		t.Fatal(err)
	}
}

// A bad cable or transceiver. The other paths go on, the flapping one comes back when it is
// over, and no API server has to pass each change on to all nodes.
func TestANICFlaps(t *testing.T) {
	c := use(t)
	c.Spread(t, shop.Policy(v1alpha1.SubflowManagerAgent), 2)
	node := c.Network.Pod("client").Node
	r := c.Begin(t, testlab.NewTransfer("client", "server", 4, traffic.Up, flapsEnd))
	r.SleepUntil(flapsAt)
	writes := c.nodeWrites(t, node.NodeName())
	before := writes.Load()
	c.flap(t, r, node, "green")
	written := writes.Load() - before
	r.Finish(t)
	steady, meanwhile := r.Shares(testlab.Warmup, flapsAt), r.Shares(flapsAt+shop.Settled, steadyAt)
	t.Logf("before %v; while it flaps %v; at the end %v; nothing arrived for %v at most; %d writes", steady, meanwhile,
		r.Shares(flapsEnd-time.Second, flapsEnd), r.LongestStop(flapsAt, flapsEnd), written)
	if used := r.Shares(flapsEnd-time.Second, flapsEnd).Used(); !slices.Equal(used, paths) {
		t.Errorf("after it flapped %v carried a share", used)
	}
	if stop := r.LongestStop(flapsAt, flapsEnd); stop > testlab.LongestStop {
		t.Errorf("nothing arrived for %v", stop)
	}
	others := []string{"blue", "red"}
	if of := meanwhile.Of(others) / steady.Of(others); of < 0.85 {
		t.Errorf("the other paths carry %.2f of what they did before", of)
	}
	// A few at once, two a second, and what probes tell.
	if most := int64(4+2*(steadyAt-flapsAt)/time.Second) + 6; written > most {
		t.Errorf("the node was written %d times, and %d were to be enough", written, most)
	}
}
