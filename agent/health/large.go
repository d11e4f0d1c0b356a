// SPDX-License-Identifier: Apache-2.0

package health

import (
	"context"
	"net/netip"
	"time"

	"braid.dev/braid/agent/node"
	"braid.dev/braid/agent/paths"
)

// A path can lose large packets alone: a switch or router on it has a smaller MTU than the
// NICs, and nobody tells. Connections then stand still that began well. So probes as large
// as the pods' packets are sent beside the small ones, with a tracker of their own. It judges
// by comparison, too: an agent that does not answer large ones, as older ones do not, and a
// network that takes them on no path have no dead paths by that.

const (
	// largeInterval lies between large probes of a path to a peer with flows.
	largeInterval = time.Second
	// largeLostToDie are large probes in a row, none sent in a hurry: a queue that is full for
	// a moment drops large packets before small ones.
	largeLostToDie = 5
	// mostSmallLost is what a path may lose of small probes where the size is to blame.
	mostSmallLost = 0.05
)

// large is how often large probes are sent, where small ones have this pace.
func (p pacing) large() pacing {
	return pacing{
		active: largeInterval, idle: largeInterval, mostIdle: -1,
		rate: p.rate / 10, burst: max(1, p.burst/10), lostToDie: largeLostToDie, keepsDead: true,
	}
}

func withoutSize(targets []Target) []Target {
	small := make([]Target, len(targets))
	for i, target := range targets {
		target.Size = 0
		small[i] = target
	}
	return small
}

func withSize(targets []Target) (large []Target) {
	for _, target := range targets {
		if target.Size > headers(target.Remote)+packetLength {
			large = append(large, target)
		}
	}
	return large
}

// sendLarge leaves it at nothing where the NIC itself does not take the packet: its MTU was
// changed just now.
func (p *Prober) sendLarge(by *socket, probe *probe, to netip.AddrPort) {
	if err := by.sendLarge(packet{kind: kindLarge, nonce: probe.nonce}, probe.target.Size, to); err != nil {
		p.large.withdraw(probe)
		return
	}
	p.large.sentAt(probe, p.clock.now(), by.stamps)
}

// doubtLarge forgets what large probes were lost while a path lost the small ones as well, once
// it answers these again: nothing of that tells of their size, and large ones take seconds to
// say otherwise.
func (p *Prober) doubtLarge() {
	for _, small := range p.tracker.changes.revived {
		large := p.large.targets[pair{small.Peer, small.Path}]
		if large == nil || large.state == Dead && large.died < small.died {
			continue
		}
		large.forget()
	}
	p.tracker.changes.revived = nil
}

// view is what both trackers know.
func (p *Prober) view() View {
	v := p.tracker.view()
	for of, target := range p.large.targets {
		sample := v.Sample(of.peer, of.path)
		if target.state == Dead && sample.State == Alive && sample.Loss <= mostSmallLost {
			sample.State, sample.LosesLarge = Dead, true
			v.Set(of.peer, of.path, sample)
		}
	}
	return v
}

// Sizes is the node.Part that learns from the pods how large the packets are that they send.
func (m *Monitor) Sizes() node.Part { return sizes{of: m} }

type sizes struct {
	node.Idle
	of *Monitor
}

// Apply has packets of that size probed, once it is known where the pods are.
func (s sizes) Apply(_ context.Context, model *node.Model) node.Report {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	if largest := largestPacket(model); largest != s.of.largest && model.LookComplete {
		s.of.largest = largest
		s.of.setTargets(time.Now())
	}
	return node.Report{}
}

// Remove and Close have nothing to do: the Monitor has all of it.
func (sizes) Remove(context.Context) error { return nil }

// Close has nothing to let go of.
func (sizes) Close() error { return nil }

// largestPacket is the size of the largest that pods of the plan send to other nodes; 0 where it
// is not known.
func largestPacket(model *node.Model) (largest int) {
	for i := range model.Endpoints {
		end := model.Look.HostEnds[model.Endpoints[i].HostInterface]
		largest = max(largest, end.MTU)
	}
	if largest == 0 {
		return 0
	}
	return largest + overheadOf(model.Tunnels)
}

// overheadOf is what tunnels add to a packet, at least: that of IPv4.
func overheadOf(tunnels []paths.Tunnel) (overhead int) {
	for _, tunnel := range tunnels {
		if !tunnel.Kind.Steered() {
			continue
		}
		adds := 20
		if tunnel.Port != 0 {
			adds = 50
		}
		if overhead == 0 || adds < overhead {
			overhead = adds
		}
	}
	return overhead
}
