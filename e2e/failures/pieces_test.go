// SPDX-License-Identifier: Apache-2.0

package failures_test

import (
	"slices"
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
	if used := r.Shares(testlab.Warmup, transfer.Duration).Used(); !slices.Equal(used, paths) {
		t.Errorf("only %v carried a share", used)
	}
	stop := r.LongestStop(begins, transfer.Duration)
	t.Logf("%s: longest stop %v, %.0f ms late, %.0f Mbit/s", r, stop, r.Result.LatestMs, r.Result.Mbit)
	if stop > testlab.LongestStop {
		t.Errorf("nothing arrived for %v", stop)
	}
}
