// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"braid.dev/braid/hack/lab"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

const (
	managerLasts  = 5 * time.Second
	managerWarmup = 1500 * time.Millisecond
	refreshEvery  = 3 * time.Second
	refreshLasts  = 2 * time.Minute
	// delayedFlows of shortFlow bytes each are ended before delayAfter bytes.
	delayedFlows = 50
	shortFlow    = 100_000
	delayAfter   = "1Mi"
)

// measureManagers repeats the path managers of seed 000, section 7, each as a policy:
// subflows of the same pair of addresses, a full mesh, subflows that are opened
// again, and such that wait. Then paths that share a bottleneck.
func measureManagers(ctx context.Context, b *bench) (err error) {
	o, err := newOutages(ctx)
	if err != nil {
		return err
	}
	measured := errors.Join(o.programmed(ctx))
	for _, measure := range []func(context.Context, *outages) error{b.samePair, b.delaying, b.refreshing} {
		if measured == nil {
			measured = measure(ctx, o)
		}
	}
	if err := errors.Join(measured, o.Down()); err != nil {
		return err
	}
	return b.sharedBottleneck(ctx)
}

// subflowsOf gives the demo's policy its subflows.
func (o *outages) subflowsOf(ctx context.Context, subflows string) error {
	err := o.apply(ctx, `
apiVersion: braid.dev/v1alpha1
kind: MPTCPPolicy
metadata: {name: spread, namespace: demo}
spec:
  podSelector:
    matchExpressions: [{key: app, operator: In, values: [client, server]}]
  subflows: `+subflows)
	if err != nil {
		return err
	}
	return o.waitForPolicy(ctx)
}

// one runs one transfer, and returns the part of it that the most used NIC sent.
func (o *outages) one(ctx context.Context, version int) (result *traffic.Result, most float64, err error) {
	stop := watch(o.Network, o.client.Node)
	address := net.JoinHostPort(o.server.Address(version), strconv.Itoa(lab.TrafficPort))
	result, err = traffic.Run(ctx, func(ctx context.Context) (net.Conn, error) {
		return o.client.Dial(ctx, "tcp", address)
	}, traffic.Options{Duration: managerLasts, Warmup: managerWarmup})
	samples := stop()
	if err != nil {
		return nil, 0, fmt.Errorf("transfer: %w", err)
	}
	for _, path := range o.Network.Spec.Paths {
		most = max(most, shareOf(samples, path, result.StartNs+managerWarmup.Nanoseconds(), result.StartNs+managerLasts.Nanoseconds()))
	}
	return result, most, intact(result)
}

// samePair compares three subflows of one pair of addresses on one path with a full
// mesh over three paths.
func (b *bench) samePair(ctx context.Context, o *outages) error {
	for _, mode := range []struct{ name, subflows string }{
		{"manager.samepair", "{manager: Agent, mode: NDiffPorts, count: 3}"},
		{"manager.fullmesh", "{manager: Agent, mode: FullMesh, count: 6}"},
	} {
		if err := o.subflowsOf(ctx, mode.subflows); err != nil {
			return fmt.Errorf("%s: %w", mode.name, err)
		}
		var subflows, mbit, mosts []float64
		for trial := range b.trials {
			result, most, err := o.one(ctx, 4)
			if err != nil {
				return fmt.Errorf("%s: %w", mode.name, err)
			}
			subflows, mbit, mosts = append(subflows, float64(result.Subflows)), append(mbit, result.Mbit), append(mosts, 100*most)
			fmt.Printf("%s trial %d: %d subflows, %.1f Mbit/s, %.1f %% of it on one path\n", mode.name, trial+1, result.Subflows, result.Mbit, 100*most)
		}
		b.add(mode.name+".subflows", "subflows", subflows)
		b.add(mode.name+".mbit", "Mbit/s", mbit)
		b.add(mode.name+".on_one_path_pct", "% of the bytes", mosts)
	}
	return nil
}

// refreshing resets the oldest subflow every few seconds for two minutes.
func (b *bench) refreshing(ctx context.Context, o *outages) error {
	if err := o.subflowsOf(ctx, "{manager: Agent, count: 3}"); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	opened, resets := make(chan *net.TCPConn, 1), make(chan resetting, 1)
	go func() { resets <- o.reset(ctx, <-opened) }()
	address := net.JoinHostPort(o.server.IPv4, strconv.Itoa(lab.TrafficPort))
	result, err := traffic.Run(ctx, func(ctx context.Context) (net.Conn, error) {
		connection, err := o.client.Dial(ctx, "tcp", address)
		if err != nil {
			return nil, err
		}
		opened <- connection.(*net.TCPConn)
		return connection, nil
	}, traffic.Options{Duration: refreshLasts, Warmup: managerWarmup, Bin: 10 * time.Millisecond, Verify: true})
	if err != nil {
		return fmt.Errorf("transfer: %w", err)
	}
	cancel()
	done := <-resets
	if err := errors.Join(done.err, intact(result)); err != nil {
		return err
	}
	fmt.Printf("refreshing: %d resets in %s, %.1f Mbit/s, %d subflows at the end, longest gap %.0f ms\n",
		done.count, refreshLasts, result.Mbit, result.Subflows, result.LongestGapMs)
	b.add("manager.refreshing.resets", "subflows", []float64{float64(done.count)})
	b.add("manager.refreshing.mbit", "Mbit/s", []float64{result.Mbit})
	b.add("manager.refreshing.subflows", "subflows", []float64{float64(result.Subflows)})
	b.add("manager.refreshing.longest_gap_ms", "ms", []float64{result.LongestGapMs})
	return nil
}

type resetting struct {
	count int
	err   error
}

// reset resets the first of a connection's subflows again and again, as a middlebox
// would, until the context ends.
func (o *outages) reset(ctx context.Context, connection *net.TCPConn) (done resetting) {
	ticker := time.NewTicker(refreshEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return done
		case <-ticker.C:
		}
		subflows, err := traffic.Subflows(connection)
		if err != nil || len(subflows) == 0 {
			continue // the transfer has ended
		}
		if _, err := o.client.Run("ss", "--kill", "--tcp", "sport", "=", ":"+strconv.Itoa(int(subflows[0].Local.Port()))); err != nil {
			done.err = err
			return done
		}
		done.count++
	}
}

// delaying counts the joins of short flows, with subflows that wait and without.
func (b *bench) delaying(ctx context.Context, o *outages) error {
	f, err := newFlows(ctx, o.client.Namespace, o.server.Namespace, o.server.IPv4)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.stop()) }()
	for _, mode := range []struct{ name, subflows string }{
		{"manager.at_once", "{manager: Agent, count: 3}"},
		{"manager.delaying", "{manager: Agent, count: 3, openAfter: {bytes: " + delayAfter + "}}"},
	} {
		if err := o.subflowsOf(ctx, mode.subflows); err != nil {
			return fmt.Errorf("%s: %w", mode.name, err)
		}
		before, err := joins(o.server.Namespace)
		if err != nil {
			return err
		}
		sizes := make([]int64, delayedFlows)
		for i := range sizes {
			sizes[i] = shortFlow
		}
		if _, err := f.runAtMost(ctx, sizes, 1); err != nil {
			return fmt.Errorf("%s: %w", mode.name, err)
		}
		after, err := joins(o.server.Namespace)
		if err != nil {
			return err
		}
		long, _, err := o.one(ctx, 4)
		if err != nil {
			return fmt.Errorf("%s: %w", mode.name, err)
		}
		each := float64(after-before) / delayedFlows
		fmt.Printf("%s: %.2f joins for each flow of %d bytes; a long one has %d subflows and %.1f Mbit/s\n", mode.name, each, shortFlow, long.Subflows, long.Mbit)
		b.add(mode.name+".joins_of_short_flows", "for each flow", []float64{each})
		b.add(mode.name+".subflows_of_long_flow", "subflows", []float64{float64(long.Subflows)})
		b.add(mode.name+".long_flow_mbit", "Mbit/s", []float64{long.Mbit})
	}
	return nil
}

// joins is the number of MP_JOIN that came to a namespace in a SYN.
func joins(namespace *network.Namespace) (int, error) {
	out, err := namespace.Run("nstat", "--ignore", "--zeros", "--noupdate", "MPTcpExtMPJoinSynRx")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(out) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "MPTcpExtMPJoinSynRx" {
			return strconv.Atoi(fields[1])
		}
	}
	return 0, fmt.Errorf("nstat does not tell of joins: %s", out)
}

// sharedBottleneck compares large flows over three paths, two of which share a link,
// with and without that being said of them.
func (b *bench) sharedBottleneck(ctx context.Context) (err error) {
	o, err := newOutagesOn(ctx, network.Spec{
		Paths: pathNames[:3], LinkMbit: linkMbit, Shared: [][]string{pathNames[:2]},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.Down()) }()
	if err := o.programmed(ctx); err != nil {
		return err
	}
	var with, without []float64
	for trial := range b.trials {
		for _, said := range []bool{false, true} {
			if err := o.say(ctx, said); err != nil {
				return err
			}
			result, _, err := o.one(ctx, 4)
			if err != nil {
				return err
			}
			if said {
				without = append(without, result.Mbit)
			} else {
				with = append(with, result.Mbit)
			}
		}
		fmt.Printf("shared bottleneck trial %d: %.1f Mbit/s with both paths, %.1f with one of them\n", trial+1, with[trial], without[trial])
	}
	b.add("shared.both_mbit", "Mbit/s", with)
	b.add("shared.removed_mbit", "Mbit/s", without)
	b.add("shared.removed_ratio", "to both", ratios(without, with, 1))
	return nil
}

// say declares that the first two paths share a bottleneck, or takes that back.
func (o *outages) say(ctx context.Context, shared bool) error {
	value := "null"
	if shared {
		value = `"uplink"`
	}
	patch := `{"spec":{"bottleneckGroup":` + value + `}}`
	for _, path := range pathNames[:2] {
		if out, err := o.Kubectl(ctx, "patch", "mpath", path, "--type", "merge", "--patch", patch).CombinedOutput(); err != nil {
			return fmt.Errorf("failed to change path %s: %w: %s", path, err, out)
		}
	}
	time.Sleep(2 * time.Second) // for the plans to follow
	return o.waitForPolicy(ctx)
}
