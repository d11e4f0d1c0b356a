// SPDX-License-Identifier: Apache-2.0

package product

import (
	"context"
	"fmt"
	"time"

	"braid.dev/braid/hack/bench/rig"
	"braid.dev/braid/internal/lab/traffic"
)

var (
	plain     = rig.Mode{Name: "plain", Subflows: rig.EachPath}
	multipath = rig.Mode{Name: "multipath", Subflows: rig.EachPath, Multipath: true}
	// steady is long enough for a steady state after what is left out.
	steady = traffic.Options{Duration: 2500 * time.Millisecond, Warmup: 700 * time.Millisecond}
)

// measureSpread compares one connection's goodput over 2, 3 and 4 links with
// that over a single one, with plain routing and with the kernel's own multipath
// routes.
func measureSpread(ctx context.Context, m *rig.Measurement, _ rig.Nothing) error {
	for links := 2; links <= len(rig.Paths); links++ {
		err := rig.Use(ctx, rig.PairOver(links), func(p *rig.Pair) error { return spreadOver(ctx, m, p, links) })
		if err != nil {
			return fmt.Errorf("%d links: %w", links, err)
		}
	}
	return nil
}

func spreadOver(ctx context.Context, m *rig.Measurement, p *rig.Pair, links int) error {
	for _, version := range []int{4, 6} {
		for _, direction := range []traffic.Direction{traffic.Up, traffic.Down} {
			for range m.Trials {
				if err := spreadTrial(ctx, m, p, links, version, direction); err != nil {
					return fmt.Errorf("IPv%d %s: %w", version, direction, err)
				}
			}
		}
	}
	return nil
}

func spreadTrial(ctx context.Context, m *rig.Measurement, p *rig.Pair, links, version int, direction traffic.Direction) error {
	modes, full := []rig.Mode{rig.Single, rig.Braid}, version == 4 && direction == traffic.Up
	if full {
		modes = append(modes, plain, multipath)
	}
	mbit := map[string]float64{}
	for mode := range rig.Shuffled(modes) {
		options := steady
		options.Direction = direction
		before, err := rig.ReadCPU()
		if err != nil {
			return err
		}
		result, err := p.Transfer(ctx, mode, version, options)
		if err != nil {
			return err
		}
		mbit[mode.Name] = result.Mbit
		if !full || links != 3 {
			continue
		}
		used, err := before.Since(result.Bytes)
		if err != nil {
			return err
		}
		m.Add("cpu.sender_and_receiver."+mode.Name, used.Process)
		m.Add("cpu.softirqs."+mode.Name, used.Softirqs)
	}
	name := fmt.Sprintf("links%d.v%d.%s", links, version, direction)
	m.Add("goodput."+name+".single", mbit["single"])
	m.Add("goodput."+name+".braid", mbit["braid"])
	all := mbit["single"] * float64(links)
	m.Add("spread."+name+".ratio", mbit["braid"]/all)
	if full {
		m.Add(fmt.Sprintf("plain_route.links%d.ratio", links), mbit["plain"]/all)
		m.Add(fmt.Sprintf("multipath_route.links%d.ratio", links), mbit["multipath"]/all)
		m.Add(fmt.Sprintf("spread.links%d.to_multipath_route", links), mbit["braid"]/mbit["multipath"])
	}
	return nil
}
