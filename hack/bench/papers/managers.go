// SPDX-License-Identifier: Apache-2.0

package papers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"braid.dev/braid/hack/bench/rig"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

const (
	refreshEvery = 3 * time.Second
	refreshLasts = 2 * time.Minute
	// delayedFlows of shortFlow bytes each are ended before delayAfter bytes.
	delayedFlows = 50
	shortFlow    = 100_000
	delayAfter   = "1Mi"
)

var managerTransfer = traffic.Options{Duration: 5 * time.Second, Warmup: 1500 * time.Millisecond}

// measureManagers repeats the path managers of seed 000, section 7, each as a policy:
// subflows of the same pair of addresses, a full mesh, subflows that are opened
// again, and such that wait. Then paths that share a bottleneck.
func measureManagers(ctx context.Context, m *rig.Measurement, _ rig.Nothing) error {
	err := rig.Use(ctx, rig.LabOver(3), func(l *rig.Lab) error {
		for _, measure := range []func(context.Context, *rig.Measurement, *rig.Lab) error{ndiffports, delaying, refreshing} {
			if err := measure(ctx, m, l); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	shared := network.Spec{Paths: rig.Paths[:3], LinkMbit: rig.LinkMbit, Shared: [][]string{rig.Paths[:2]}}
	return rig.Use(ctx, rig.LabOn(shared), func(l *rig.Lab) error { return sharedBottleneck(ctx, m, l) })
}

// ndiffports compares three subflows of one pair of addresses on one path with a full
// mesh over three paths.
func ndiffports(ctx context.Context, m *rig.Measurement, l *rig.Lab) error {
	for name, subflows := range map[string]string{
		"manager.samepair.": "{manager: Agent, mode: NDiffPorts, count: 3}",
		"manager.fullmesh.": "{manager: Agent, mode: FullMesh, count: 6}",
	} {
		if err := l.Spread(ctx, subflows); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		for range m.Trials {
			watched := rig.Watch(l.Network, l.Sender.Node)
			result, err := l.Transfer(ctx, managerTransfer)
			samples := watched()
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			most, begin := 0.0, result.StartNs
			for _, path := range l.Network.Spec.Paths {
				most = max(most, rig.ShareOf(samples, path, begin+managerTransfer.Warmup.Nanoseconds(), begin+managerTransfer.Duration.Nanoseconds()))
			}
			m.Add(name+"subflows", float64(result.Subflows))
			m.Add(name+"mbit", result.Mbit)
			m.Add(name+"on_one_path_pct", 100*most)
		}
	}
	return nil
}

// refreshing has an agent replace subflows that are reset.
func refreshing(ctx context.Context, m *rig.Measurement, l *rig.Lab) error {
	if err := l.Spread(ctx, "{manager: Agent, count: 3}"); err != nil {
		return err
	}
	for range m.Trials {
		if err := refresh(ctx, m, l); err != nil {
			return err
		}
	}
	return nil
}

// refresh resets the oldest subflow every few seconds for two minutes, as a
// middlebox would.
func refresh(ctx context.Context, m *rig.Measurement, l *rig.Lab) error {
	running, err := l.Route(4).Start(ctx, traffic.Options{
		Duration: refreshLasts, Warmup: managerTransfer.Warmup, Bin: 10 * time.Millisecond, Verify: true,
	})
	if err != nil {
		return err
	}
	resets := 0
	for begun := time.Now(); time.Since(begun) < refreshLasts-refreshEvery; {
		time.Sleep(refreshEvery)
		subflows, err := traffic.Subflows(running.Connection)
		if err != nil || len(subflows) == 0 {
			return running.Why(fmt.Errorf("the connection has no subflows: %w", err))
		}
		if err := rig.Reset(l.Sender, subflows[0].Local); err != nil {
			return errors.Join(err, running.Stop())
		}
		resets++
	}
	result, err := running.EndIntact()
	if err != nil {
		return err
	}
	m.Add("manager.refreshing.resets", float64(resets))
	m.Add("manager.refreshing.mbit", result.Mbit)
	m.Add("manager.refreshing.subflows", float64(result.Subflows))
	m.Add("manager.refreshing.longest_gap_ms", result.LongestGapMs)
	return nil
}

// delaying counts the joins of short flows, with subflows that wait and without.
func delaying(ctx context.Context, m *rig.Measurement, l *rig.Lab) (err error) {
	f, err := rig.NewFlows(ctx, l.Sender, l.Receiver)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	for range m.Trials {
		for name, subflows := range map[string]string{
			"manager.at_once.":  "{manager: Agent, count: 3, openAfter: {time: 0s}}",
			"manager.delaying.": "{manager: Agent, count: 3, openAfter: {bytes: " + delayAfter + "}}",
		} {
			if err := delay(ctx, m, l, f, name, subflows); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	return nil
}

// delay counts the joins of short flows with a policy, and then has a long one.
func delay(ctx context.Context, m *rig.Measurement, l *rig.Lab, f *rig.Flows, name, subflows string) error {
	if err := l.Spread(ctx, subflows); err != nil {
		return err
	}
	before, err := joins(l.Receiver.Namespace)
	if err != nil {
		return err
	}
	if _, err := f.Run(ctx, slices.Repeat([]int64{shortFlow}, delayedFlows), 1); err != nil {
		return err
	}
	after, err := joins(l.Receiver.Namespace)
	if err != nil {
		return err
	}
	long, err := l.Transfer(ctx, managerTransfer)
	if err != nil {
		return err
	}
	m.Add(name+"joins_of_short_flows", float64(after-before)/delayedFlows)
	m.Add(name+"subflows_of_long_flow", float64(long.Subflows))
	m.Add(name+"long_flow_mbit", long.Mbit)
	return nil
}

// joins is the number of MP_JOIN that came to a namespace in a SYN.
func joins(namespace *network.Namespace) (int, error) {
	return namespace.KernelCounter("MPTcpExtMPJoinSynRx")
}

// sharedBottleneck compares large flows over three paths, two of which share a link,
// with and without that being said of them.
func sharedBottleneck(ctx context.Context, m *rig.Measurement, l *rig.Lab) error {
	for range m.Trials {
		for _, declared := range []string{"both", "removed"} {
			if err := declareBottleneck(ctx, l, declared == "removed"); err != nil {
				return err
			}
			result, err := l.Transfer(ctx, managerTransfer)
			if err != nil {
				return err
			}
			m.Add("shared."+declared+"_mbit", result.Mbit)
		}
		m.Add("shared.removed_ratio", m.Last("shared.removed_mbit")/m.Last("shared.both_mbit"))
	}
	return nil
}

// declareBottleneck declares that the first two paths share one, or takes that back.
func declareBottleneck(ctx context.Context, l *rig.Lab, shared bool) error {
	value := "null"
	if shared {
		value = `"uplink"`
	}
	patch := `{"spec":{"bottleneckGroup":` + value + `}}`
	if _, err := l.RunKubectl(ctx, "patch", "mpath", rig.Paths[0], rig.Paths[1], "--type", "merge", "--patch", patch); err != nil {
		return err
	}
	time.Sleep(2 * time.Second) // for the plans to follow
	return l.WaitForPolicy(ctx)
}
