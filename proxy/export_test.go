// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"errors"

	"github.com/cilium/ebpf"

	"braid.dev/braid/agent/entries"
	programs "braid.dev/braid/bpf/proxy"
)

// ForgetPeers has clients' packets leave by their interfaces, as to those of machines, which
// have no other end.
func (p *Proxy) ForgetPeers() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.relays {
		r.facts.HasPeer = 0
		if err := p.from.Relays.Put(uint32(r.outside), r.facts); err != nil {
			return err
		}
	}
	return nil
}

// Pause has held SYNs read by nobody, as on a node short of processors, until resume is called.
func (p *Proxy) Pause() (resume func()) {
	p.mu.Lock()
	return p.mu.Unlock
}

// CountReads is what reads a client's SYNs: it may be called when the client is gone.
func (p *Proxy) CountReads(index int) (count func() error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.relays[index]
	return func() error { return r.countRead(uint32(index)) }
}

// Counted is how many counts of SYNs there are, two of each client.
func (p *Proxy) Counted() (counts int, err error) {
	for _, m := range []*ebpf.Map{p.from.Handed, p.from.HandedRead} {
		err = errors.Join(err, entries.Each(m, func(*uint32, *uint32) { counts++ }))
	}
	return counts, err
}

// Outcomes are the counts as the agent reads them.
func (p *Proxy) Outcomes() (counts [programs.OutcomeReset + 1]uint64, err error) {
	if err := p.writeOutcomes(); err != nil {
		return counts, err
	}
	for kind := range counts {
		if err := p.from.Outcomes.Lookup(uint32(kind), &counts[kind]); err != nil {
			return counts, err
		}
	}
	return counts, nil
}

// Waiting is what waits in all that is relayed, in bytes.
func (p *Proxy) Waiting() (bytes int) {
	for _, of := range p.waiting() {
		for _, one := range of {
			bytes += one.bytes
		}
	}
	return bytes
}

// Reset is how many connections were reset because too much waited in them.
func (p *Proxy) Reset() uint64 { return p.outcomes.reset.Load() }

// MostUntouched is how many connections of one client are remembered that go on untouched.
const MostUntouched = mostUntouched

// Flows is how many connections of all clients the programs have entries of.
func (p *Proxy) Flows() (count int, err error) {
	return count, entries.Each(p.from.RelayedFlows, func(*flowKey, *programs.FromClientRelayed) { count++ })
}
