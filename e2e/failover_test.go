// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

// failure is a NIC that goes down and comes back.
type failure struct {
	path string
	node string // the pod's whose node has the NIC
	what string
	set  func(*network.Network, *network.Node, string, bool) error
}

func (f failure) String() string {
	return fmt.Sprintf("%s %s at the %s's node", f.path, f.what, f.node)
}

// failures are those of the path that the cluster network's routes use, and of
// another one.
func failures() (all []failure) {
	for _, path := range paths[:2] {
		for _, node := range []string{"client", "server"} {
			all = append(all,
				failure{path, node, "loses its carrier", (*network.Network).SetCarrier},
				failure{path, node, "is set down", (*network.Network).SetNIC})
		}
	}
	return all
}

// What happens when, in a transfer with a failure; settled is how long after the
// failure the rates are looked at. They are looked at for long enough that one of
// TCP's own stalls does not decide: three subflows share two queues then, and while
// one of them sends lost bytes again, the receiver's kernel acknowledges those of the
// others up to 40 ms late, which can slow all of them down for half a second.
const (
	downAt  = 1500 * time.Millisecond
	upAt    = 5 * time.Second
	endAt   = 8 * time.Second
	settled = 700 * time.Millisecond
)

// longestStop is what a connection must not exceed on a busy machine; on an idle
// one it is a tenth of that.
const longestStop = 2 * time.Second

// Both versions of IP and both directions at once, each byte compared. What takes
// most of a minute, to find out that an agent is silent, goes on beside the failures
// that fit into it.
func TestANICGoesDownAndComesBack(t *testing.T) {
	c := use(t)
	quiet := c.silence(t)
	c.spread(t, shopPolicy(v1alpha1.SubflowManagerAgent), 2)
	all := failures()
	expect := func(from, to int) {
		for i := from; i < to; i++ {
			t.Run(all[i].String(), func(t *testing.T) { c.expectFailover(t, all[i], i%2 == 0) })
		}
	}
	const withinAMinute = 6
	expect(0, withinAMinute)
	t.Run("a silent agent shows within a minute", func(t *testing.T) { c.expectSilence(t, quiet) })
	expect(withinAMinute, len(all))
}

// expectFailover moves bytes up over IPv4 and down over IPv6, or the other way.
func (c *cluster) expectFailover(t *testing.T, f failure, upIPv4 bool) {
	up, down := 6, 4
	if upIPv4 {
		up, down = 4, 6
	}
	transfers := []*running{
		c.begin(t, transfer{"client", "server", up, traffic.Up, endAt}),
		c.begin(t, transfer{"client", "server", down, traffic.Down, endAt}),
	}
	transfers[0].sleepUntil(downAt)
	c.set(t, f, false)
	transfers[0].sleepUntil(upAt)
	returned := c.set(t, f, true)
	for _, r := range transfers {
		r.finish(t)
		r.expectFailover(t, f.path, returned)
	}
}

// set sets the NIC, also up again when the test ends before.
func (c *cluster) set(t *testing.T, f failure, up bool) time.Time {
	t.Helper()
	node := c.Network.Pod(f.node).Node
	at := time.Now()
	if err := f.set(c.Network, node, f.path, up); err != nil {
		t.Fatal(err)
	}
	if !up {
		t.Cleanup(func() {
			if err := f.set(c.Network, node, f.path, true); err != nil {
				t.Error(err)
			}
		})
	}
	return at
}

func (r *running) expectFailover(t *testing.T, path string, returned time.Time) {
	t.Helper()
	before, without := r.shares(warmup, downAt), r.shares(downAt+settled, upAt)
	after, carries := r.wire.carriesAgain(path, returned)
	t.Logf("%s: longest stop %v after the failure, %v after the return, which took %v", r,
		r.longestStop(downAt, upAt), r.longestStop(upAt, endAt), after)
	t.Logf("%s: before %v; meanwhile %v; at the end %v", r, before, without, r.shares(endAt-warmup, endAt))
	others := slices.DeleteFunc(slices.Clone(paths), func(p string) bool { return p == path })
	if used := before.used(); !slices.Equal(used, paths) {
		t.Errorf("%s: before the failure only %v carried a share", r, used)
	}
	if used := without.used(); !slices.Equal(used, others) {
		t.Errorf("%s: during the failure %v carried a share, not %v", r, used, others)
	}
	if !carries {
		t.Errorf("%s: %s did not carry its share again", r, path)
	}
	if stop := r.longestStop(downAt, endAt); stop > longestStop {
		t.Errorf("%s: nothing arrived for %v", r, stop)
	}
	if r.result.Subflows != len(paths) {
		t.Errorf("%s: there are %d subflows at the end", r, r.result.Subflows)
	}
}
