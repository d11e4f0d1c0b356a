// SPDX-License-Identifier: Apache-2.0

package papers

import (
	"context"
	"fmt"
	"time"

	"braid.dev/braid/hack/bench/rig"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

// The preferred path is blocked for 5 s of each 15 s, four times.
const (
	blockFirst = 4 * time.Second
	blockLasts = 5 * time.Second
	blockEvery = 15 * time.Second
	blockTimes = 6
	// steadyMbit is what an application that does not fill a path sends.
	steadyMbit = 8
)

// measureBlocked is experiment B of seed 004: while the preferred path loses
// everything and keeps its carriers, traffic goes over the other.
func measureBlocked(ctx context.Context, m *rig.Measurement, h *hints) error {
	if err := h.settled(ctx, preferred); err != nil {
		return err
	}
	if err := blocked(ctx, m, h, "hint.", 0); err != nil {
		return err
	}
	return blocked(ctx, m, h, "hint.steady.", steadyMbit)
}

func blocked(ctx context.Context, m *rig.Measurement, h *hints, prefix string, mbit float64) error {
	var steps []step
	for i := range time.Duration(blockTimes) {
		// What the server would receive, as in the seed, and both directions.
		directions := [][]network.Direction{{network.ToNode}, nil}[i%2]
		block := func(blocked bool) func() error {
			return func() error { return h.Network.Block(h.Receiver.Node, preferred, blocked, directions...) }
		}
		steps = append(steps, step{blockFirst + i*blockEvery, block(true)}, step{blockFirst + i*blockEvery + blockLasts, block(false)})
	}
	lasts := blockFirst + (blockTimes-1)*blockEvery + 2*blockLasts
	seen, err := h.observe(ctx, h.braid(), traffic.Options{Duration: lasts, OfferedMbit: mbit}, steps...)
	if err != nil {
		return err
	}
	for i := range blockTimes {
		begin, free := seen.at[2*i], seen.at[2*i+1]
		end := free + blockLasts.Nanoseconds()
		m.Add(prefix+"leave_ms", rig.MovedAt(seen.samples, other, begin, free))
		m.Add(prefix+"gap_ms", rig.LongestGap(seen.Result, begin, free).Length())
		m.Add(prefix+"return_ms", rig.MovedAt(seen.samples, preferred, free, end))
		m.Add(prefix+"return_gap_ms", rig.LongestGap(seen.Result, free, end).Length())
	}
	return nil
}

// measureRecover is experiment E of seed 004: one of two paths is dropped under a
// connection that uses both, by its carrier and by silence, with Braid and with the
// kernel alone. What TCP itself waits for is measured beside it.
func measureRecover(ctx context.Context, m *rig.Measurement, h *hints) error {
	stopped, kernel := 0.0, h.kernel()
	kernel.mayStop = true
	for range m.Trials {
		timers := map[float64]float64{} // by what is offered
		for _, d := range h.drops() {
			timer, err := h.braid().Timer(ctx, traffic.Options{Duration: 4 * time.Second, OfferedMbit: d.mbit})
			if err != nil {
				return fmt.Errorf("plain TCP, %s: %w", d.name, err)
			}
			m.Add("recover."+d.name+"timer_ms", timer)
			timers[d.mbit] = timer
		}
		for _, w := range []way{kernel, h.braid()} {
			for _, d := range h.drops() {
				took, stops, err := h.recover(ctx, w, d)
				if err != nil {
					return fmt.Errorf("%s, %s: %w", w.name, d.name, err)
				}
				if stops {
					stopped++
				}
				m.Add("recover."+d.name+w.name+"_ms", took)
				m.Add("recover."+d.name+w.name+".beyond_timer_ms", took-timers[d.mbit])
			}
		}
	}
	m.Add("recover.kernel.stopped", stopped)
	return nil
}

// drop is a way for a path to be dropped.
type drop struct {
	name string
	mbit float64
	set  func(path string, up bool) error
}

func (h *hints) drops() []drop {
	carrier := func(path string, up bool) error { return h.Network.SetCarrier(h.Sender.Node, path, up) }
	silence := func(path string, up bool) error { return h.Network.Block(h.Sender.Node, path, !up) }
	return []drop{{"", steadyMbit, carrier}, {"full.", 0, carrier}, {"silent.", steadyMbit, silence}}
}

// ordinary is how long gaps are, ms, that are there without a failure too.
const ordinary = 25

// recover is the time from the drop of the path that carries most to the end of the
// longest gap in what arrives until the path is back, and whether the connection stopped for good.
// Where no gap is longer than ordinary ones it is that gap's length: its end says nothing of the drop.
func (h *hints) recover(ctx context.Context, w way, d drop) (took float64, stopped bool, err error) {
	const dropped, again, lasts = 3 * time.Second, 5 * time.Second, 6 * time.Second
	path := ""
	watched := rig.Watch(h.Network, h.Sender.Node)
	seen, err := h.observe(ctx, w, traffic.Options{Duration: lasts, OfferedMbit: d.mbit},
		step{dropped - time.Second/2, func() error {
			path = busiest(watched())
			return nil
		}},
		step{dropped, func() error { return d.set(path, false) }},
		step{again, func() error { return d.set(path, true) }})
	if err != nil {
		return 0, false, err
	}
	time.Sleep(time.Second) // for the path to be known as good
	gap := rig.LongestGap(seen.Result, seen.at[1], seen.at[2])
	if gap.Length() <= ordinary {
		return gap.Length(), seen.stopped, nil
	}
	return gap.End, seen.stopped, nil
}

// busiest is the path that sent most in the last second.
func busiest(samples []rig.Sample) (path string) {
	last, most := samples[len(samples)-1], -1.0
	for name := range last.Sent {
		if share := rig.ShareOf(samples, name, last.At-time.Second.Nanoseconds(), last.At); share > most {
			path, most = name, share
		}
	}
	return path
}
