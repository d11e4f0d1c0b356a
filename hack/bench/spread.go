// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"braid.dev/braid/internal/lab/traffic"
)

// measureSpread compares one connection's goodput over 2, 3 and 4 links with
// that over a single one, with plain routing and with the kernel's own multipath
// routes.
func measureSpread(ctx context.Context, b *bench) error {
	for links := 2; links <= len(pathNames); links++ {
		if err := b.spreadOver(ctx, links); err != nil {
			return fmt.Errorf("%d links: %w", links, err)
		}
	}
	return nil
}

func (b *bench) spreadOver(ctx context.Context, links int) (err error) {
	r, err := newRig(ctx, links)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	for _, version := range []int{4, 6} {
		for _, direction := range []traffic.Direction{traffic.Up, traffic.Down} {
			modes := []mode{single, braid}
			if version == 4 && direction == traffic.Up {
				modes = append(modes, plain, multipath)
			}
			if err := b.compare(ctx, r, version, direction, modes); err != nil {
				return fmt.Errorf("IPv%d %s: %w", version, direction, err)
			}
		}
	}
	return nil
}

// compare measures the modes in turns, in another order each time.
func (b *bench) compare(ctx context.Context, r *rig, version int, direction traffic.Direction, modes []mode) error {
	goodput, usage := map[string][]float64{}, map[string][]cpu{}
	for trial := range b.trials {
		for _, i := range rand.Perm(len(modes)) {
			m := modes[i]
			if err := r.set(ctx, m); err != nil {
				return fmt.Errorf("%s: %w", m.name, err)
			}
			before, err := readCPU()
			if err != nil {
				return err
			}
			result, err := r.transfer(ctx, version, traffic.Options{Direction: direction, Duration: duration, Warmup: warmup})
			if err == nil {
				err = intact(result)
			}
			if err != nil {
				return fmt.Errorf("%s: %w", m.name, err)
			}
			used, err := before.since(result.Bytes)
			if err != nil {
				return err
			}
			goodput[m.name], usage[m.name] = append(goodput[m.name], result.Mbit), append(usage[m.name], used)
			fmt.Printf("%d links IPv%d %-4s trial %d %-9s %6.1f Mbit/s, %d subflows\n", r.links, version, direction, trial+1, m.name, result.Mbit, result.Subflows)
		}
	}
	b.addSpread(r.links, version, direction, goodput)
	if r.links == 3 && version == 4 && direction == traffic.Up {
		b.addCPU(usage)
	}
	return nil
}

func (b *bench) addSpread(links, version int, direction traffic.Direction, goodput map[string][]float64) {
	name := fmt.Sprintf("links%d.v%d.%s", links, version, direction)
	b.add("goodput."+name+".single", "Mbit/s", goodput["single"])
	b.add("goodput."+name+".braid", "Mbit/s", goodput["braid"])
	b.add("spread."+name+".ratio", "to links x single path", ratios(goodput["braid"], goodput["single"], links))
	if goodput["multipath"] == nil {
		return
	}
	b.add(fmt.Sprintf("plain_route.links%d.ratio", links), "to links x single path", ratios(goodput["plain"], goodput["single"], links))
	b.add(fmt.Sprintf("multipath_route.links%d.ratio", links), "to links x single path", ratios(goodput["multipath"], goodput["single"], links))
	b.add(fmt.Sprintf("spread.links%d.to_multipath_route", links), "ratio", ratios(goodput["braid"], goodput["multipath"], 1))
}

// ratios divides trial by trial.
func ratios(values, by []float64, times int) (quotients []float64) {
	for i := range values {
		quotients = append(quotients, values[i]/(by[i]*float64(times)))
	}
	return quotients
}
