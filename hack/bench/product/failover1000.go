// SPDX-License-Identifier: Apache-2.0

package product

import (
	"context"
	"errors"
	"fmt"
	"time"

	"braid.dev/braid/hack/bench/rig"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

const (
	manyDies = 4 * time.Second // after the start
	// manyLinkMbit lets more than a segment of each connection be under way.
	manyLinkMbit = 200
	// manyBuffer keeps what the senders hold at the end small.
	manyBuffer = 64 << 10
	// manyWindow is over how long goodput must be back.
	manyWindow = 100 * time.Millisecond
)

// manyTransfer is patient: so many connections starve some of them, and one that does
// not get the end of its stream counts as lost.
var manyTransfer = traffic.Options{
	Connections: 1000, Duration: 8 * time.Second, Warmup: 2 * time.Second, Bin: 20 * time.Millisecond, Patience: time.Minute,
}

// measureFailover1000 takes one NIC of three from 1,000 connections in mid-transfer:
// with one subflow each, as is advised for so many, and with the three that a policy
// gives by itself.
func measureFailover1000(ctx context.Context, m *rig.Measurement, l *rig.Lab) error {
	for _, subflows := range []int{1, 3} {
		if err := l.Spread(ctx, fmt.Sprintf("{count: %d}", subflows)); err != nil {
			return err
		}
		prefix, all := "failover1000.", failures(l)
		if subflows > 1 {
			prefix = fmt.Sprintf("failover1000.subflows%d.", subflows)
		}
		for trial := range m.Trials {
			f := all[(3*trial+1)%len(all)] // each side, each path, each way
			if err := failover1000(ctx, m, l, f, prefix); err != nil {
				return fmt.Errorf("%d subflows, %s: %w", subflows, f, err)
			}
		}
	}
	return nil
}

// failover1000 runs the connections and lets a NIC fail under them. It comes back when
// they have ended.
func failover1000(ctx context.Context, m *rig.Measurement, l *rig.Lab, f failure, prefix string) error {
	rig.Say("%s", f)
	route := l.Route(4)
	route.SendBuffer = manyBuffer
	running, err := route.Start(ctx, manyTransfer)
	if err != nil {
		return err
	}
	time.Sleep(manyDies)
	failed := f.fail(true)
	result, err := running.End()
	if err := errors.Join(failed, err, f.fail(false)); err != nil {
		return err
	}
	before := result.MbitBetween(manyTransfer.Warmup, manyDies)
	if result.Failed > 0 {
		rig.Say("lost: %v", result.Errors)
	}
	m.Add(prefix+"lost", float64(result.Failed))
	m.Add(prefix+"recover_ms", backAt(result, before*2/3))
	m.Add(prefix+"kept", result.MbitBetween(manyDies+time.Second, manyTransfer.Duration)/before)
	return rig.Until(ctx, 10*time.Second, "a NIC that came back is used again", func() (bool, error) { return allCarry(ctx, l) })
}

// allCarry opens some connections and tells whether each NIC of the sender's node
// carries some of what they send.
func allCarry(ctx context.Context, l *rig.Lab) (bool, error) {
	before, err := l.Network.NICCounters(l.Sender.Node)
	if err != nil {
		return false, err
	}
	if _, err := l.Route(4).Transfer(ctx, traffic.Options{Connections: 6, Duration: 300 * time.Millisecond}); err != nil {
		return false, err
	}
	after, err := l.Network.NICCounters(l.Sender.Node)
	return usesAll(before, after), err
}

func usesAll(before, after map[string]network.Counters) bool {
	for path := range after {
		if after[path].TxBytes-before[path].TxBytes < 100_000 {
			return false
		}
	}
	return true
}

// backAt is how long after the failure a window of goodput ends that has at least so
// much, in ms; the whole of what follows if none has.
func backAt(result *traffic.Result, mbit float64) float64 {
	bin := time.Duration(result.BinMs * float64(time.Millisecond))
	for from := manyDies; from+manyWindow <= manyTransfer.Duration; from += bin {
		if result.MbitBetween(from, from+manyWindow) >= mbit {
			return milliseconds(from + manyWindow - manyDies)
		}
	}
	return milliseconds(manyTransfer.Duration - manyDies)
}
