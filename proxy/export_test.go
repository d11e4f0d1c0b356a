// SPDX-License-Identifier: Apache-2.0

package proxy

import programs "braid.dev/braid/bpf/proxy"

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

// Outcomes are the counts as the agent reads them.
func (p *Proxy) Outcomes() (counts [programs.OutcomeNow + 1]uint64, err error) {
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
