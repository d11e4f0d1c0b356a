// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"time"

	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

// A Sample is what a node's NICs had sent at a time (on the clock of traffic.Now), by
// path, in bytes.
type Sample struct {
	At   int64
	Sent map[string]uint64
}

const sampleEvery = 10 * time.Millisecond

// Watch samples a node's NICs until the returned function is called.
func Watch(n *network.Network, node *network.Node) (stop func() []Sample) {
	end, ended := make(chan struct{}), make(chan []Sample)
	go func() {
		var samples []Sample
		ticker := time.NewTicker(sampleEvery)
		defer ticker.Stop()
		for {
			select {
			case <-end:
				ended <- samples
				return
			case <-ticker.C:
			}
			counters, err := n.NICCounters(node)
			if err != nil {
				continue
			}
			one := Sample{At: traffic.Now(), Sent: map[string]uint64{}}
			for path, counted := range counters {
				one.Sent[path] = counted.TxBytes
			}
			samples = append(samples, one)
		}
	}()
	return func() []Sample {
		close(end)
		return <-ended
	}
}

// ShareOf is a path's part of what was sent between two times, from 0 to 1.
func ShareOf(samples []Sample, path string, from, to int64) float64 {
	first, last := at(samples, from), at(samples, to)
	var sum, of float64
	for name := range last.Sent {
		sent := float64(last.Sent[name] - first.Sent[name])
		sum += sent
		if name == path {
			of = sent
		}
	}
	if sum == 0 {
		return 0
	}
	return of / sum
}

// at is the first sample from a time on, or the last there is.
func at(samples []Sample, when int64) Sample {
	for _, one := range samples {
		if one.At >= when {
			return one
		}
	}
	return samples[len(samples)-1]
}

const (
	// movedWindow is how long a path must carry movedShare of everything to count as
	// the one that is used.
	movedWindow = 100 * time.Millisecond
	movedShare  = 0.95
)

// MovedAt is how long after a time a window begins in which a path carries nearly
// everything, in ms; negative if there is none before the other time.
func MovedAt(samples []Sample, path string, from, to int64) float64 {
	return firstWindow(samples, from, to, func(begin int64) bool {
		return ShareOf(samples, path, begin, begin+movedWindow.Nanoseconds()) >= movedShare
	})
}

// UsedAt is the same for a window in which a path carries a part of everything.
func UsedAt(samples []Sample, path string, share float64, from, to int64) float64 {
	return firstWindow(samples, from, to, func(begin int64) bool {
		return ShareOf(samples, path, begin, begin+movedWindow.Nanoseconds()) >= share
	})
}

func firstWindow(samples []Sample, from, to int64, holds func(begin int64) bool) float64 {
	for _, one := range samples {
		if one.At < from || one.At+movedWindow.Nanoseconds() > to {
			continue
		}
		if holds(one.At) {
			return float64(one.At-from) / 1e6
		}
	}
	return -1
}

// A Gap is a time without bytes at a receiver, in ms after the start of the search.
type Gap struct{ Begin, End float64 }

// Length of the gap.
func (g Gap) Length() float64 { return g.End - g.Begin }

// LongestGap is the longest between two times, to the precision of the bins.
func LongestGap(result *traffic.Result, from, to int64) (longest Gap) {
	bin := result.BinMs
	begin := -1.0
	for i := int(float64(from-result.StartNs) / 1e6 / bin); i <= int(float64(to-result.StartNs)/1e6/bin); i++ {
		now := float64(i)*bin - float64(from-result.StartNs)/1e6
		if i < len(result.Bins) && result.Bins[i] > 0 {
			begin = -1
			continue
		}
		if begin < 0 {
			begin = max(now, 0)
		}
		if now+bin-begin > longest.Length() {
			longest = Gap{begin, now + bin}
		}
	}
	return longest
}
