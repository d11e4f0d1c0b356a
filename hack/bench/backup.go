// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

const (
	// backupPath is that of the subflow that becomes a backup.
	backupPath    = 0
	backupWarmup  = 2 * time.Second
	backupGrace   = 200 * time.Millisecond // after the rule was given
	backupLasts   = 2 * time.Second
	backupLatency = 2500 * time.Microsecond // one way: a round trip of 5 ms
)

// measureBackup makes one of two subflows a backup in mid-transfer, in both
// directions of the payload, for pods and for guests, and then ends the other one.
func measureBackup(ctx context.Context, b *bench) error {
	var leak, takeover []float64
	for _, guests := range []bool{false, true} {
		for _, direction := range []traffic.Direction{traffic.Up, traffic.Down} {
			leaks, gaps, err := b.backup(ctx, guests, direction)
			if err != nil {
				return fmt.Errorf("guests %v, %s: %w", guests, direction, err)
			}
			fmt.Printf("backup, guests %v, %-4s: leak %.3f %%, takeover %.0f ms\n", guests, direction, leaks, gaps)
			leak, takeover = append(leak, leaks...), append(takeover, gaps...)
		}
	}
	b.add("backup.leak_pct", "%", leak)
	b.add("backup.takeover_ms", "ms", takeover)
	return nil
}

func (b *bench) backup(ctx context.Context, guests bool, direction traffic.Direction) (leaks, gaps []float64, err error) {
	spec := network.Spec{Paths: pathNames[:2], LinkMbit: linkMbit, PodsPerNode: 1, PathDelays: map[string]time.Duration{}}
	for _, path := range spec.Paths {
		spec.PathDelays[path] = backupLatency
	}
	if guests {
		spec.PodsPerNode, spec.GuestsPerNode = 0, 1
	}
	r, err := newRuled(ctx, spec)
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	for range b.trials {
		leak, gap, err := r.backUp(ctx, direction)
		if err != nil {
			return nil, nil, err
		}
		leaks, gaps = append(leaks, leak), append(gaps, gap)
	}
	return leaks, gaps, nil
}

// backUp returns the share of the new bytes that go over the backup from 200 ms after
// the rule on, and the time without bytes after the other subflow was killed.
func (r *ruled) backUp(ctx context.Context, direction traffic.Direction) (leak, gap float64, err error) {
	if err := r.give(ruleOf(nil, v1alpha1.Action{Type: v1alpha1.ActionRecord})); err != nil {
		return 0, 0, err
	}
	lasts := backupWarmup + backupGrace + backupLasts + 2*time.Second
	t, err := r.begin(ctx, traffic.Options{Direction: direction, Duration: lasts, Warmup: backupWarmup})
	if err != nil {
		return 0, 0, err
	}
	time.Sleep(backupWarmup)
	paths, err := r.paths(t)
	if err != nil {
		return 0, 0, err
	}
	if err := r.give(backupRule()); err != nil {
		return 0, 0, err
	}
	time.Sleep(backupGrace)
	rates, err := t.rates(backupLasts)
	if err != nil {
		return 0, 0, err
	}
	var total, backup float64
	for end, rate := range rates {
		total += rate
		if paths[end] == backupPath {
			backup += rate
		}
	}
	if err := r.kill(paths); err != nil {
		return 0, 0, err
	}
	result, err := t.end()
	if err != nil {
		return 0, 0, err
	}
	return 100 * backup / total, result.LongestGapMs, r.give(nil)
}

func backupRule() []v1alpha1.PlanRule {
	yes := true
	path := v1alpha1.PathName(pathNames[backupPath])
	match := &v1alpha1.Match{Selectors: v1alpha1.Selectors{Paths: []v1alpha1.PathName{path}}}
	return ruleOf(match, v1alpha1.Action{Type: v1alpha1.ActionSetBackup, SetBackup: &v1alpha1.SetBackup{Backup: &yes}})
}

// kill ends all subflows but the backup, as a reset from the network would.
func (r *ruled) kill(paths map[netip.AddrPort]int) error {
	for end, path := range paths {
		if path == backupPath {
			continue
		}
		if _, err := r.client().Run("ss", "--kill", "--tcp", "sport", "=", ":"+strconv.Itoa(int(end.Port()))); err != nil {
			return err
		}
	}
	if !slices.Contains(pathsOf(paths), backupPath) {
		return errors.New("no subflow was on the backup's path")
	}
	return nil
}

func pathsOf(paths map[netip.AddrPort]int) (indexes []int) {
	for _, path := range paths {
		indexes = append(indexes, path)
	}
	return indexes
}
