// SPDX-License-Identifier: Apache-2.0

package main

import (
	"time"

	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

// A sample is what a node's NICs had sent at a time (on the clock of traffic.Now), by
// path, in bytes.
type sample struct {
	at   int64
	sent map[string]uint64
}

const sampleEvery = 10 * time.Millisecond

// watch samples a node's NICs until the returned function is called.
func watch(n *network.Network, node *network.Node) (stop func() []sample) {
	end, ended := make(chan struct{}), make(chan []sample)
	go func() {
		var samples []sample
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
			one := sample{at: traffic.Now(), sent: map[string]uint64{}}
			for path, counted := range counters {
				one.sent[path] = counted.TxBytes
			}
			samples = append(samples, one)
		}
	}()
	return func() []sample {
		close(end)
		return <-ended
	}
}

// shareOf is a path's part of what was sent between two times, from 0 to 1.
func shareOf(samples []sample, path string, from, to int64) float64 {
	first, last := at(samples, from), at(samples, to)
	var sum, of float64
	for name := range last.sent {
		sent := float64(last.sent[name] - first.sent[name])
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
func at(samples []sample, when int64) sample {
	for _, one := range samples {
		if one.at >= when {
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

// movedAt is how long after a time a window begins in which a path carries nearly
// everything, in ms; negative if there is none before the other time.
func movedAt(samples []sample, path string, from, to int64) float64 {
	return firstWindow(samples, from, to, func(begin int64) bool {
		return shareOf(samples, path, begin, begin+movedWindow.Nanoseconds()) >= movedShare
	})
}

// usedAt is the same for a window in which a path carries a part of everything.
func usedAt(samples []sample, path string, share float64, from, to int64) float64 {
	return firstWindow(samples, from, to, func(begin int64) bool {
		return shareOf(samples, path, begin, begin+movedWindow.Nanoseconds()) >= share
	})
}

func firstWindow(samples []sample, from, to int64, holds func(begin int64) bool) float64 {
	for _, one := range samples {
		if one.at < from || one.at+movedWindow.Nanoseconds() > to {
			continue
		}
		if holds(one.at) {
			return float64(one.at-from) / 1e6
		}
	}
	return -1
}

// A gap is a time without bytes at a receiver, in ms after the start of the search.
type gap struct{ begin, end float64 }

func (g gap) length() float64 { return g.end - g.begin }

// longestGap is the longest between two times, to the precision of the bins.
func longestGap(result *traffic.Result, from, to int64) (longest gap) {
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
		if now+bin-begin > longest.length() {
			longest = gap{begin, now + bin}
		}
	}
	return longest
}
