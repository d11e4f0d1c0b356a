// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"testing"
	"time"

	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

// TestTheQueueCarriesHighRates also tells what it costs, when it is run with -v.
func TestTheQueueCarriesHighRates(t *testing.T) {
	l := newLab(t, network.Spec{Paths: []string{"blue"}, PodsPerNode: 1})
	server := l.Pod("pod-2-1")
	serve(t, server, 4)
	run := func() float64 {
		options := traffic.Options{Connections: 4, Duration: 2 * time.Second, Warmup: 500 * time.Millisecond}
		return transfer(t, l.Pod("pod-1-1"), server, 4, options)().Mbit
	}
	free := run()
	l.tenant("tenant-1", "blue", mbit(100_000), 0)
	l.apply(t)
	queued := run()
	l.state.Tenants = nil
	l.tenant("tenant-1", "blue", mbit(1000), 0)
	l.apply(t)
	limited := run()
	t.Logf("%.0f Mbit/s without a limit, %.0f with one of 100 Gbit/s, %.0f with one of 1 Gbit/s", free, queued, limited)
	if queued < free/8 || limited > 1010 || limited < 700 {
		t.Errorf("%.0f Mbit/s without a limit, %.0f with one of 100 Gbit/s, %.0f with one of 1 Gbit/s", free, queued, limited)
	}
}
