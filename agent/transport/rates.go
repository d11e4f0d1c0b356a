// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"

	"braid.dev/braid/agent/endpoints/namespace"
	"braid.dev/braid/agent/pathmanager/mptcpnl"
	"braid.dev/braid/bpf"
	"braid.dev/braid/bpf/transport"
)

// rates are what is asked for on single subflows.
type rates struct {
	asked    map[transport.TransportAskedRateKey]uint32 // nil until it was read
	carriers Carriers
}

// mostSubflows of a pod are looked at: what others have is not paced by their peers.
const mostSubflows = 16384

// lookAtRates tells the programs what to ask for on which subflow. It belongs to the lock.
func (p *Part) lookAtRates() error {
	wanted := map[transport.TransportAskedRateKey]uint32{}
	failed := p.readRates()
	for cookie, one := range p.pods {
		if len(one.rates) == 0 || p.options.Flows == nil {
			continue
		}
		if err := p.ratesOf(cookie, one, wanted); err != nil && !namespace.IsGone(err) {
			failed = errors.Join(failed, fmt.Errorf("looking at the subflows of pod %s: %w", one.uid, err))
		}
	}
	return errors.Join(failed, p.writeRates(wanted))
}

// readRates learns what an earlier agent asked for.
func (p *Part) readRates() error {
	if p.rates.asked != nil {
		return nil
	}
	p.rates.asked = map[transport.TransportAskedRateKey]uint32{}
	var key transport.TransportAskedRateKey
	var number uint32
	entries := p.loaded.Value.AskedRates.Iterate()
	for entries.Next(&key, &number) {
		p.rates.asked[key] = number
	}
	if err := entries.Err(); err != nil {
		return fmt.Errorf("reading what an earlier agent asked for: %w", err)
	}
	return nil
}

// ratesOf adds what the pod asks for on its subflows.
func (p *Part) ratesOf(cookie uint64, one *pod, wanted map[transport.TransportAskedRateKey]uint32) error {
	flows, err := p.options.Flows()
	if err != nil {
		return err
	}
	defer flows.Close()
	diagnostics, err := mptcpnl.DialDiagnosticsAt(one.path)
	if err != nil {
		return err
	}
	defer diagnostics.Close()
	left := mostSubflows
	return diagnostics.EachSocket(func(s *mptcpnl.Socket) bool {
		if number, ok := one.rates[p.rates.carriers.Of(flows, s.Local, s.Remote)]; ok && !s.Over && !s.Opening {
			wanted[keyOf(cookie, s.Local, s.Remote)] = number
		}
		left--
		return left > 0
	})
}

func keyOf(cookie uint64, local, remote netip.AddrPort) (key transport.TransportAskedRateKey) {
	key.Local.Word, key.Remote.Word = bpf.Words(local.Addr()), bpf.Words(remote.Addr())
	key.LocalPort, key.RemotePort, key.Netns = bpf.Port(local.Port()), bpf.Port(remote.Port()), cookie
	return key
}

// writeRates brings the map to what is wanted.
func (p *Part) writeRates(wanted map[transport.TransportAskedRateKey]uint32) error {
	for key, number := range wanted {
		if p.rates.asked[key] == number {
			continue
		}
		if err := p.loaded.Value.AskedRates.Put(key, number); err != nil {
			return fmt.Errorf("writing the request for a rate: %w", err)
		}
		p.rates.asked[key] = number
	}
	for key := range p.rates.asked {
		if _, still := wanted[key]; still {
			continue
		}
		if err := p.loaded.Value.AskedRates.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("withdrawing the request for a rate: %w", err)
		}
		delete(p.rates.asked, key)
	}
	return nil
}
