// SPDX-License-Identifier: Apache-2.0

package actiontest_test

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"braid.dev/braid/bpf/endpoint/actiontest"
)

const (
	firstAcknowledged = 100_000
	acknowledgedEach  = 1460
)

// A receiver acknowledges as packets arrive, and on another processor as its program reads.
func TestWhatTwoProcessorsAcknowledgeCountsOnce(t *testing.T) {
	h := newHarness(t)
	for range 50 {
		h.begin(t, 4, underWay(1<<30))
		h.ask(t, fromEndpoint, action{kind: rateLimit, mechanism: window, rate: 10_000_000_000})
		h.run(t, fromEndpoint, pureACK(4).frame())
		begun := time.Now()
		h.run(t, toEndpoint, acked(4, firstAcknowledged).frame())
		steps := h.acknowledgeOnTwo(t, begun.Add(60*time.Millisecond))
		counted := h.subflow(t, 4).Window[fromEndpoint].Loop.Delivered
		if time.Since(begun) > 95*time.Millisecond {
			continue // the loop has compared, and counts anew
		}
		require.EqualValues(t, acknowledgedEach*steps, counted, "in %d steps", steps)
		return
	}
	t.Error("this machine stalls again and again")
}

// A packet's time is that of its arrival: another processor may have begun an interval since.
func TestAnIntervalThatBeganMeanwhileIsKept(t *testing.T) {
	h := newHarness(t)
	var now unix.Timespec
	require.NoError(t, unix.ClockGettime(unix.CLOCK_MONOTONIC, &now))
	begun := actiontest.HarnessRateLoop{Factor: 1 << 16, Owed: 1000, Delivered: 500, Began: uint64(now.Nano()) + uint64(time.Minute)}
	h.begin(t, 4, underWay(1<<30), func(s *actiontest.HarnessSubflow) { s.Window[fromEndpoint].Loop = begun })
	h.ask(t, fromEndpoint, action{kind: rateLimit, mechanism: window, rate: 10_000_000_000})
	h.run(t, fromEndpoint, pureACK(4).frame())
	h.run(t, toEndpoint, acked(4, firstAcknowledged).frame())
	require.Equal(t, begun, h.subflow(t, 4).Window[fromEndpoint].Loop)
}

// acknowledgeOnTwo has two threads run each acknowledgement at the same time, until then; it
// returns how many there were.
func (h *harness) acknowledgeOnTwo(t *testing.T, until time.Time) int64 {
	t.Helper()
	const open = 1 << 20
	var runs errgroup.Group
	var arrived, last atomic.Int64
	last.Store(open)
	acknowledge := func() error {
		for i := int64(1); i <= last.Load(); i++ {
			if time.Now().After(until) {
				last.CompareAndSwap(open, i)
			}
			frame := acked(4, uint32(firstAcknowledged+acknowledgedEach*i)).frame()
			for arrived.Add(1); arrived.Load() < 2*i; {
				runtime.Gosched()
			}
			if _, err := h.ToHarness.Run(&ebpf.RunOptions{Data: frame}); err != nil {
				return err
			}
		}
		return nil
	}
	for range 2 {
		runs.Go(func() error { return h.namespace.Do(acknowledge) })
	}
	require.NoError(t, runs.Wait())
	return last.Load()
}
