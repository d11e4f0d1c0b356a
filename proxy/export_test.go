// SPDX-License-Identifier: Apache-2.0

package proxy

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
