// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

// The preferred path is blocked for 5 s of each 15 s, four times.
const (
	blockFirst = 4 * time.Second
	blockLasts = 5 * time.Second
	blockEvery = 15 * time.Second
	blockTimes = 4
	// steadyMbit is what an application that does not fill a path sends.
	steadyMbit = 8
)

// measureBlocked is experiment B of seed 004: while the preferred path loses
// everything and keeps its carriers, traffic goes over the other.
func measureBlocked(ctx context.Context, b *bench) (err error) {
	h, err := newHints(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.close()) }()
	if err := h.settled(ctx, preferred); err != nil {
		return err
	}
	if err := b.blocked(ctx, h, "hint.", 0); err != nil {
		return err
	}
	return b.blocked(ctx, h, "hint.steady.", steadyMbit)
}

func (b *bench) blocked(ctx context.Context, h *hints, prefix string, mbit float64) error {
	var steps []step
	for i := range time.Duration(blockTimes) {
		// What the server would receive, as in the seed, and both directions.
		directions := [][]network.Direction{{network.ToNode}, nil}[i%2]
		block := func(blocked bool) func() error {
			return func() error { return h.Network.Block(h.server.Node, preferred, blocked, directions...) }
		}
		steps = append(steps, step{blockFirst + i*blockEvery, block(true)}, step{blockFirst + i*blockEvery + blockLasts, block(false)})
	}
	lasts := blockFirst + (blockTimes-1)*blockEvery + 2*blockLasts
	seen, err := h.observe(ctx, h.braid(), traffic.Options{Duration: lasts, OfferedMbit: mbit}, steps...)
	if err != nil {
		return err
	}
	var leave, gaps, back, returnGaps []float64
	for i := range blockTimes {
		blocked, free := seen.at[2*i], seen.at[2*i+1]
		end := free + blockLasts.Nanoseconds()
		leave = append(leave, movedAt(seen.samples, other, blocked, free))
		gaps = append(gaps, longestGap(seen.Result, blocked, free).length())
		back = append(back, movedAt(seen.samples, preferred, free, end))
		returnGaps = append(returnGaps, longestGap(seen.Result, free, end).length())
		fmt.Printf("hint B block %d, %g Mbit/s offered: on the other path after %.0f ms, gap %.0f ms; back after %.0f ms, gap %.0f ms\n",
			i+1, mbit, leave[i], gaps[i], back[i], returnGaps[i])
	}
	b.add(prefix+"leave_ms", "ms", leave)
	b.add(prefix+"gap_ms", "ms", gaps)
	b.add(prefix+"return_ms", "ms", back)
	b.add(prefix+"return_gap_ms", "ms", returnGaps)
	return nil
}

// measureRecover is experiment E of seed 004: one of two paths is dropped under a
// connection that uses both, by its carrier and by silence, with Braid and with the
// kernel alone.
func measureRecover(ctx context.Context, b *bench) (err error) {
	h, err := newHints(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.close()) }()
	took := map[string][]float64{}
	for trial := range b.trials {
		for _, w := range []way{h.kernel(), h.braid()} {
			for _, d := range h.drops() {
				milliseconds, err := h.recover(ctx, w, d)
				if err != nil {
					return fmt.Errorf("%s, %s: %w", w.name, d.name, err)
				}
				name := "recover." + d.name + w.name + "_ms"
				took[name] = append(took[name], milliseconds)
				fmt.Printf("recover trial %d: %s%s %.0f ms\n", trial+1, d.name, w.name, milliseconds)
			}
		}
	}
	for name, values := range took {
		b.add(name, "ms", values)
	}
	return nil
}

// drop is a way for a path to be dropped.
type drop struct {
	name string
	mbit float64
	set  func(path string, up bool) error
}

func (h *hints) drops() []drop {
	carrier := func(path string, up bool) error { return h.Network.SetCarrier(h.client.Node, path, up) }
	silence := func(path string, up bool) error { return h.Network.Block(h.client.Node, path, !up) }
	return []drop{{"", steadyMbit, carrier}, {"full.", 0, carrier}, {"silent.", steadyMbit, silence}}
}

// recover is the time from the drop of the path that carries most to the end of the
// longest gap in what arrives.
func (h *hints) recover(ctx context.Context, w way, d drop) (float64, error) {
	const dropped, again, lasts = 3 * time.Second, 5 * time.Second, 6 * time.Second
	path := ""
	stop := watch(h.Network, h.client.Node)
	seen, err := h.observe(ctx, w, traffic.Options{Duration: lasts, OfferedMbit: d.mbit},
		step{dropped - time.Second/2, func() error {
			path = busiest(stop())
			return nil
		}},
		step{dropped, func() error { return d.set(path, false) }},
		step{again, func() error { return d.set(path, true) }})
	if err != nil {
		return 0, err
	}
	time.Sleep(time.Second) // for the path to be known as good
	return longestGap(seen.Result, seen.at[1], seen.at[2]).end, nil
}

// busiest is the path that sent most in the last second.
func busiest(samples []sample) (path string) {
	last := samples[len(samples)-1].at
	for name := range samples[0].sent {
		if path == "" || shareOf(samples, name, last-time.Second.Nanoseconds(), last) > shareOf(samples, path, last-time.Second.Nanoseconds(), last) {
			path = name
		}
	}
	return path
}
