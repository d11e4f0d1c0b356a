// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"braid.dev/braid/e2e/testlab"

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
	transfers := []*testlab.Running{
		c.Begin(t, testlab.NewTransfer("client", "server", up, traffic.Up, endAt)),
		c.Begin(t, testlab.NewTransfer("client", "server", down, traffic.Down, endAt)),
	}
	transfers[0].SleepUntil(downAt)
	c.set(t, f, false)
	transfers[0].SleepUntil(upAt)
	returned := c.set(t, f, true)
	for _, r := range transfers {
		r.Finish(t)
		expectFailoverOf(t, r, f.path, returned)
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

func expectFailoverOf(t *testing.T, r *testlab.Running, path string, returned time.Time) {
	t.Helper()
	before, without := r.Shares(testlab.Warmup, downAt), r.Shares(downAt+settled, upAt)
	after, carries := r.Wire.CarriesAgain(path, returned)
	t.Logf("%s: longest stop %v after the failure, %v after the return, which took %v", r,
		r.LongestStop(downAt, upAt), r.LongestStop(upAt, endAt), after)
	t.Logf("%s: before %v; meanwhile %v; at the end %v", r, before, without, r.Shares(endAt-testlab.Warmup, endAt))
	others := slices.DeleteFunc(slices.Clone(paths), func(p string) bool { return p == path })
	if used := before.Used(); !slices.Equal(used, paths) {
		t.Errorf("%s: before the failure only %v carried a share", r, used)
	}
	if used := without.Used(); !slices.Equal(used, others) {
		t.Errorf("%s: during the failure %v carried a share, not %v", r, used, others)
	}
	if !carries {
		t.Errorf("%s: %s did not carry its share again", r, path)
	}
	if stop := r.LongestStop(downAt, endAt); stop > testlab.LongestStop {
		t.Errorf("%s: nothing arrived for %v", r, stop)
	}
	if r.Result.Subflows != len(paths) {
		t.Errorf("%s: there are %d subflows at the end", r, r.Result.Subflows)
	}
}
