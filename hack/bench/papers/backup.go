// SPDX-License-Identifier: Apache-2.0

package papers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/hack/bench/rig"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

const (
	// backupPath is that of the subflow that becomes a backup.
	backupPath   = 0
	backupWarmup = 2 * time.Second
	backupGrace  = 200 * time.Millisecond // after the rule was given
	backupLasts  = 2 * time.Second
)

// measureBackup makes one of two subflows a backup in mid-transfer, in both
// directions of the payload, for pods and for guests, and then ends the other one.
func measureBackup(ctx context.Context, m *rig.Measurement, _ rig.Nothing) error {
	for _, senders := range []string{"pods", "guests"} {
		err := rig.Use(ctx, rig.PairOn(twoPaths(senders, rig.LinkMbit, 5*time.Millisecond)), func(p *rig.Pair) error {
			if err := p.Set(ctx, rig.Braid); err != nil {
				return err
			}
			for _, direction := range []traffic.Direction{traffic.Up, traffic.Down} {
				for range m.Trials {
					if err := backUp(ctx, m, p, direction); err != nil {
						return fmt.Errorf("%s: %w", direction, err)
					}
				}
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("%s: %w", senders, err)
		}
	}
	return nil
}

// twoPaths is a network of two nodes with a pod or a guest each.
func twoPaths(senders string, mbit int, rtt time.Duration) network.Spec {
	spec := network.Spec{Paths: rig.Paths[:2], LinkMbit: mbit, PathDelays: rig.Evenly(rig.Paths[:2], rtt/2)}
	if senders == "guests" {
		spec.GuestsPerNode = 1
	} else {
		spec.PodsPerNode = 1
	}
	return spec
}

// backUp measures the share of the new bytes that go over the backup from 200 ms after
// the rule on, and the time without bytes after the other subflow was reset.
func backUp(ctx context.Context, m *rig.Measurement, p *rig.Pair, direction traffic.Direction) error {
	if err := p.Give(rig.RuleOf(nil, v1alpha1.Action{Type: v1alpha1.ActionRecord})); err != nil {
		return err
	}
	lasts := backupWarmup + backupGrace + backupLasts + 2*time.Second
	t, err := p.Start(ctx, traffic.Options{Direction: direction, Duration: lasts, Warmup: backupWarmup})
	if err != nil {
		return err
	}
	time.Sleep(backupWarmup)
	paths, err := p.PathsOf(t)
	if err != nil {
		return err
	}
	match := &v1alpha1.Match{Selectors: v1alpha1.Selectors{Paths: []v1alpha1.PathName{v1alpha1.PathName(rig.Paths[backupPath])}}}
	if err := p.Give(rig.RuleOf(match, setBackup)); err != nil {
		return err
	}
	time.Sleep(backupGrace)
	rates, err := t.Rates(backupLasts)
	if err != nil {
		return err
	}
	var total, backup float64
	for end, rate := range rates {
		total += rate
		if paths[end] == backupPath {
			backup += rate
		}
	}
	if err := resetOthers(p, paths); err != nil {
		return err
	}
	result, err := t.EndIntact()
	if err != nil {
		return err
	}
	m.Add("backup.leak_pct", 100*backup/total)
	m.Add("backup.takeover_ms", result.LongestGapMs)
	return p.Give(nil)
}

// resetOthers ends all subflows but the backup.
func resetOthers(p *rig.Pair, paths map[netip.AddrPort]int) error {
	if !slices.Contains(slices.Collect(maps.Values(paths)), backupPath) {
		return errors.New("no subflow was on the backup's path")
	}
	for end, path := range paths {
		if path == backupPath {
			continue
		}
		if err := rig.Reset(p.Sender(), end); err != nil {
			return err
		}
	}
	return nil
}
