// SPDX-License-Identifier: Apache-2.0

package failures_test

import (
	"testing"
	"time"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/e2e/shop"
	"braid.dev/braid/e2e/testlab"
	"braid.dev/braid/internal/lab/traffic"
)

// Small pieces take several times their size of the receiver's memory. While a path fails, they
// wait there out of order; a receive buffer that they fill stops a connection for good, as in
// runs of hack/stall without Braid (docs/kernel-notes.md).
func TestSmallPiecesOutlivePathsThatFail(t *testing.T) {
	c := use(t)
	c.Spread(t, shop.Policy(v1alpha1.SubflowManagerKernel), 2)
	for _, direction := range []traffic.Direction{traffic.Up, traffic.Down} {
		t.Run(string(direction), func(t *testing.T) { c.expectToOutlive(t, direction) })
	}
}

func (c *cluster) expectToOutlive(t *testing.T, direction traffic.Direction) {
	const begins, fails, works, times = 3 * time.Second, 300 * time.Millisecond, 500 * time.Millisecond, 3
	transfer := testlab.NewTransfer("client", "server", 4, direction, begins+times*time.Duration(len(paths))*(fails+works))
	transfer.Piece = 100
	r := c.Begin(t, transfer)
	r.SleepUntil(begins)
	for range times {
		for _, path := range paths {
			f := shop.LosesAll(path, "client")
			c.Set(t, f, false)
			time.Sleep(fails)
			c.Set(t, f, true)
			time.Sleep(works)
		}
	}
	r.Finish(t)
	// Where each piece leaves as a packet of its own, what a path gets is up to the processors.
	const used = 3 // Mbit/s
	rates := r.Shares(testlab.Warmup, transfer.Duration)
	for _, path := range paths {
		if rates[path] < used {
			t.Errorf("path %s was not used: %v", path, rates)
		}
	}
	stop := r.LongestStop(begins, transfer.Duration)
	t.Logf("%s: longest stop %v, %.0f ms late, %.0f Mbit/s", r, stop, r.Result.LatestMs, r.Result.Mbit)
	if stop > testlab.LongestStop {
		t.Errorf("nothing arrived for %v", stop)
	}
}

// What a receiver acknowledges to TCP and drops then, as it is beyond the connection's window, is sent
// again 200 ms later at best. Windows hold connections back while they grow.
func TestReceiversDropNothingThatTheyHaveAcknowledged(t *testing.T) {
	c := use(t)
	c.Spread(t, shop.Policy(v1alpha1.SubflowManagerKernel), 2)
	const each, most = 4, 4 // a connection without Braid's help most often drops 6 to 12 times
	before := c.dropped(t)
	for range each {
		for _, direction := range []traffic.Direction{traffic.Up, traffic.Down} {
			c.Begin(t, testlab.NewTransfer("client", "server", 4, direction, 1500*time.Millisecond)).Finish(t)
		}
	}
	dropped := c.dropped(t) - before
	t.Logf("%d connections dropped %d times what they had acknowledged", 2*each, dropped)
	if dropped > most {
		t.Errorf("%d times is more than %d", dropped, most)
	}
}

// dropped is how often the pods' kernels got data beyond a window.
func (c *cluster) dropped(t *testing.T) (sum int) {
	t.Helper()
	for _, pod := range []string{"client", "server"} {
		count, err := c.Network.Pod(pod).KernelCounter("MPTcpExtNoDSSInWindow")
		if err != nil {
			t.Fatal(err)
		}
		sum += count
	}
	return sum
}
