// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"braid.dev/braid/internal/lab/traffic"
)

// measureMany shows how evenly many connections at once use three links.
func measureMany(ctx context.Context, b *bench) (err error) {
	r, err := newRig(ctx, 3)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	for _, connections := range []int{100, 1000} {
		if err := b.manyOver(ctx, r, connections); err != nil {
			return fmt.Errorf("%d connections: %w", connections, err)
		}
	}
	return nil
}

func (b *bench) manyOver(ctx context.Context, r *rig, connections int) error {
	var ratio, turnsRatio, evenness []float64
	options := traffic.Options{Connections: connections, Duration: 5 * time.Second, Warmup: 2 * time.Second}
	for trial := range b.trials {
		alone, err := b.inMode(ctx, r, single, options)
		if err != nil {
			return err
		}
		before, err := r.NICCounters(r.Nodes[0])
		if err != nil {
			return err
		}
		spread, err := b.inMode(ctx, r, braid, options)
		if err != nil {
			return err
		}
		after, err := r.NICCounters(r.Nodes[0])
		if err != nil {
			return err
		}
		inTurns, err := b.inMode(ctx, r, turns, options)
		if err != nil {
			return err
		}
		least, sum := 0.0, 0.0
		for path := range after {
			sent := float64(after[path].TxBytes - before[path].TxBytes)
			sum += sent
			if least == 0 || sent < least {
				least = sent
			}
		}
		ratio = append(ratio, spread/(alone*float64(r.links)))
		turnsRatio = append(turnsRatio, inTurns/(alone*float64(r.links)))
		evenness = append(evenness, least*float64(r.links)/sum)
		fmt.Printf("%d connections trial %d: %.1f Mbit/s on one link, %.1f on %d, %.1f with one subflow each; the least used link has %.2f of an even share\n",
			connections, trial+1, alone, spread, r.links, inTurns, evenness[trial])
	}
	b.add(fmt.Sprintf("many.connections%d.ratio", connections), "to links x single path", ratio)
	b.add(fmt.Sprintf("many.connections%d.one_subflow.ratio", connections), "to links x single path", turnsRatio)
	b.add(fmt.Sprintf("many.connections%d.least_share", connections), "of an even share", evenness)
	return nil
}

// inMode measures one mode. What a thousand senders still have in their buffers at
// the end takes longer to arrive than a receiver waits for it; that is not
// counted, and no failure.
func (b *bench) inMode(ctx context.Context, r *rig, m mode, options traffic.Options) (float64, error) {
	if err := r.set(ctx, m); err != nil {
		return 0, err
	}
	result, err := r.transfer(ctx, 4, options)
	if err != nil {
		return 0, err
	}
	return result.Mbit, nil
}
