// SPDX-License-Identifier: Apache-2.0

package product

import (
	"context"
	"fmt"
	"time"

	"braid.dev/braid/hack/bench/rig"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

var (
	plain     = rig.Mode{Name: "plain", Subflows: rig.EachPath}
	multipath = rig.Mode{Name: "multipath", Subflows: rig.EachPath, Multipath: true}
	// inTurns has first subflows alone, which take turns on the paths.
	inTurns = rig.Mode{Name: "turns", Braid: true}
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

// measureMany shows how evenly many connections at once use three links.
func measureMany(ctx context.Context, m *rig.Measurement, p *rig.Pair) error {
	for _, connections := range []int{100, 1000} {
		for range m.Trials {
			if err := manyTrial(ctx, m, p, connections); err != nil {
				return fmt.Errorf("%d connections: %w", connections, err)
			}
		}
	}
	return nil
}

// manyTrial compares modes. What a thousand senders still have in their buffers at the
// end takes longer to arrive than a receiver waits for it; that is not counted, and no
// failure.
func manyTrial(ctx context.Context, m *rig.Measurement, p *rig.Pair, connections int) error {
	options := traffic.Options{Connections: connections, Duration: 5 * time.Second, Warmup: 2 * time.Second}
	mbit, evenness := map[string]float64{}, map[string]float64{}
	for _, mode := range []rig.Mode{rig.Single, rig.Braid, inTurns} {
		if err := p.Set(ctx, mode); err != nil {
			return err
		}
		before, err := p.NICCounters(p.Nodes[0])
		if err != nil {
			return err
		}
		result, err := p.Route(4).Transfer(ctx, options)
		if err != nil {
			return err
		}
		after, err := p.NICCounters(p.Nodes[0])
		if err != nil {
			return err
		}
		mbit[mode.Name], evenness[mode.Name] = result.Mbit, leastShare(before, after)
	}
	name := fmt.Sprintf("many.connections%d.", connections)
	all := mbit["single"] * float64(len(p.Spec.Paths))
	m.Add(name+"ratio", mbit["braid"]/all)
	m.Add(name+"one_subflow.ratio", mbit["turns"]/all)
	m.Add(name+"least_share", evenness["braid"])
	return nil
}

// leastShare is what the least used NIC sent, to an even share.
func leastShare(before, after map[string]network.Counters) float64 {
	least, sum := -1.0, 0.0
	for path := range after {
		sent := float64(after[path].TxBytes - before[path].TxBytes)
		sum += sent
		if least < 0 || sent < least {
			least = sent
		}
	}
	return least * float64(len(after)) / sum
}
