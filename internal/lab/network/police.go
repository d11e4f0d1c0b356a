// SPDX-License-Identifier: Apache-2.0

package network

import "time"

// Police has a path lose at once what is more than a rate, as clouds and providers do with what is more than was paid
// for: nothing is queued, and so many bytes may come at once after a pause. Each node may send so much.
func (n *Network) Police(path string, mbit, burst int) error {
	return n.Interpose(path, newPolicer(len(n.Nodes), mbit, burst, time.Now))
}

// policer is a bucket of tokens for each port, of a byte each.
type policer struct {
	now     func() time.Time
	rate    float64 // bytes a second
	burst   float64 // bytes
	buckets []bucket
}

type bucket struct {
	tokens float64
	filled time.Time
}

func newPolicer(ports, mbit, burst int, now func() time.Time) *policer {
	p := &policer{now: now, rate: float64(mbit) * 1_000_000 / 8, burst: float64(burst)}
	for range ports {
		p.buckets = append(p.buckets, bucket{p.burst, now()})
	}
	return p
}

// Pass lets a frame by for which there are tokens.
func (p *policer) Pass(port int, frame []byte) []Frame {
	b, now, size := &p.buckets[port], p.now(), float64(len(frame)-virtioHeader)
	b.tokens = min(p.burst, b.tokens+now.Sub(b.filled).Seconds()*p.rate)
	b.filled = now
	if b.tokens < size {
		return nil
	}
	b.tokens -= size
	return []Frame{{From: port, Data: frame}}
}

// Due holds nothing back.
func (*policer) Due(time.Time) []Frame { return nil }
