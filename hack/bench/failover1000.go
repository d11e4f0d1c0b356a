// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"braid.dev/braid/hack/lab"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

const (
	manyConnections = 1000
	manyDies        = 4 * time.Second // after the start
	manyLasts       = 8 * time.Second
	manyWarmup      = 2 * time.Second
	manyBin         = 20 * time.Millisecond
	// manyLinkMbit lets more than a segment of each connection be under way.
	manyLinkMbit = 200
	// manyBuffer keeps what the senders hold at the end small, and manyPatience is how
	// long a receiver waits for it: so many connections starve some of them, and one
	// that does not get the end of its stream counts as lost.
	manyBuffer   = 64 << 10
	manyPatience = time.Minute
	// manyWindow is over how long goodput must be back.
	manyWindow = 100 * time.Millisecond
)

// measureFailover1000 takes one NIC of three from 1,000 connections in mid-transfer:
// with one subflow each, as is advised for so many, and with the three that a policy
// gives by itself.
func measureFailover1000(ctx context.Context, b *bench) (err error) {
	o, err := newOutagesOn(ctx, network.Spec{Paths: pathNames[:3], LinkMbit: manyLinkMbit})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.Down()) }()
	if err := o.programmed(ctx); err != nil {
		return err
	}
	for _, subflows := range []int{1, 3} {
		if err := b.failover1000(ctx, o, subflows); err != nil {
			return fmt.Errorf("%d subflows: %w", subflows, err)
		}
	}
	return nil
}

func (b *bench) failover1000(ctx context.Context, o *outages, subflows int) error {
	if err := o.setCount(ctx, subflows); err != nil {
		return err
	}
	var lost, recovered, kept []float64
	failures := o.failures()
	for trial := range b.trials {
		f := failures[(3*trial+1)%len(failures)] // each side, each path, each way
		result, err := o.thousand(ctx, f)
		if err != nil {
			return fmt.Errorf("%s of %s %s: %w", f.path, f.node.NodeName(), f.what, err)
		}
		before := result.MbitBetween(manyWarmup, manyDies)
		lost = append(lost, float64(result.Failed))
		recovered = append(recovered, backAt(result, manyDies, before*2/3))
		kept = append(kept, result.MbitBetween(manyDies+time.Second, manyLasts)/before)
		fmt.Printf("1000 connections, %d subflows each, %-4s of %s %-17s: %d lost %v, %.0f Mbit/s before, 2/3 of it after %.0f ms, then %.2f of it\n",
			subflows, f.path, f.node.NodeName(), f.what, result.Failed, result.Errors, before, recovered[trial], kept[trial])
	}
	name := "failover1000."
	if subflows > 1 {
		name = fmt.Sprintf("failover1000.subflows%d.", subflows)
	}
	b.add(name+"lost", "connections", lost)
	b.add(name+"recover_ms", "ms", recovered)
	b.add(name+"kept", "of the goodput before", kept)
	return nil
}

// setCount gives the demo's policy a number of subflows.
func (o *outages) setCount(ctx context.Context, subflows int) error {
	patch := fmt.Sprintf(`{"spec":{"subflows":{"count":%d}}}`, subflows)
	if out, err := o.Kubectl(ctx, "patch", "mpol", "spread", "--namespace", "demo", "--type", "merge", "--patch", patch).CombinedOutput(); err != nil {
		return fmt.Errorf("setting the number of subflows: %w: %s", err, out)
	}
	return o.waitForPolicy(ctx)
}

// thousand runs the connections and lets a NIC fail under them. It comes back when
// they have ended.
func (o *outages) thousand(ctx context.Context, f failure) (*traffic.Result, error) {
	address := net.JoinHostPort(o.server.IPv4, strconv.Itoa(lab.TrafficPort))
	failed, began := make(chan error, 1), make(chan struct{})
	go func() {
		<-began
		time.Sleep(manyDies)
		failed <- f.set(f.node, false)
	}()
	opened := 0
	result, err := traffic.Run(ctx, func(ctx context.Context) (net.Conn, error) {
		connection, err := o.client.Dial(ctx, "tcp", address)
		if err != nil {
			return nil, err
		}
		if opened++; opened == manyConnections {
			close(began)
		}
		return connection, connection.(*net.TCPConn).SetWriteBuffer(manyBuffer)
	}, traffic.Options{Connections: manyConnections, Duration: manyLasts, Warmup: manyWarmup, Bin: manyBin, Patience: manyPatience})
	if err != nil {
		return nil, err
	}
	if err := errors.Join(<-failed, f.set(f.node, true)); err != nil {
		return nil, err
	}
	return result, o.allCarry(ctx)
}

// allCarry waits until each NIC of the sender's node carries its share again.
func (o *outages) allCarry(ctx context.Context) error {
	deadline := time.Now().Add(10 * time.Second)
	for time.Now().Before(deadline) {
		result, err := o.brief(ctx)
		if err != nil {
			return err
		}
		if result {
			return nil
		}
	}
	return errors.New("a NIC that came back was not used again")
}

// brief opens some connections and tells whether each NIC of the sender's node
// carries some of what they send.
func (o *outages) brief(ctx context.Context) (bool, error) {
	before, err := o.Network.NICCounters(o.client.Node)
	if err != nil {
		return false, err
	}
	address := net.JoinHostPort(o.server.IPv4, strconv.Itoa(lab.TrafficPort))
	_, err = traffic.Run(ctx, func(ctx context.Context) (net.Conn, error) {
		return o.client.Dial(ctx, "tcp", address)
	}, traffic.Options{Connections: 6, Duration: 300 * time.Millisecond})
	if err != nil {
		return false, err
	}
	after, err := o.Network.NICCounters(o.client.Node)
	if err != nil {
		return false, err
	}
	return usesAll(before, after), nil
}

func usesAll(before, after map[string]network.Counters) bool {
	for path := range after {
		if after[path].TxBytes-before[path].TxBytes < 100_000 {
			return false
		}
	}
	return true
}

// backAt is how long after a time a window of goodput ends that has at least so much,
// in ms; the whole of what follows if none has.
func backAt(result *traffic.Result, after time.Duration, mbit float64) float64 {
	bin := time.Duration(result.BinMs * float64(time.Millisecond))
	for from := after; from+manyWindow <= manyLasts; from += bin {
		if result.MbitBetween(from, from+manyWindow) >= mbit {
			return float64((from + manyWindow - after).Microseconds()) / 1000
		}
	}
	return float64((manyLasts - after).Milliseconds())
}
