// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/cilium/ebpf"

	"braid.dev/braid/agent/entries"
	"braid.dev/braid/bpf"
	"braid.dev/braid/bpf/uplink"
)

// The programs count the flows of each address that begins some, so that none takes
// the whole table. What they do not see, that a flow was silently given up or pushed
// out, is corrected here, beside the rounds: one sweep reads all flows.

// drift is by how much a count may be off: flows begin and end while they are counted.
const drift = 64

// sweepInterval spaces the sweeps out.
const sweepInterval = 25 * time.Second

// gatewayInterval spaces the questions to gateways out, and looks at the clock.
const gatewayInterval = time.Second

// Ages, in seconds of the node's clock.
const (
	// handshakeAge is longer than what lies between two SYNs of one attempt.
	handshakeAge = 120
	// restingAge is that of flows which count no more among those that their owner may
	// have. They keep their path, and count again when they are used.
	restingAge = 300
	// flowAge is that of conntrack's entries in a cluster: who is silent for so long has
	// died without a word.
	flowAge = 24 * 60 * 60
)

// sweeper corrects the counts, and forgets what is too old.
type sweeper struct {
	mu   sync.Mutex
	maps *uplink.ToUplinkMaps // nil while nothing is loaded
	// avoidance is what the last sweep found; nil before the first.
	avoidance *avoidance
}

func (s *sweeper) use(maps *uplink.ToUplinkMaps) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.maps, s.avoidance = maps, nil
}

// Run sweeps the tables of flows, and asks for gateways, until the context ends.
func (d *Datapath) Run(ctx context.Context) error {
	ticker, gateways := time.NewTicker(sweepInterval), time.NewTicker(gatewayInterval)
	defer ticker.Stop()
	defer gateways.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-gateways.C:
			if err := errors.Join(d.askGateways(), d.node.moveClock(clock())); err != nil {
				d.options.Log.Error(err, "failed to ask for gateways, or to move the programs' clock; trying again", "after", gatewayInterval.String())
			}
			continue
		case <-ticker.C:
		}
		if err := d.flows.sweep(); err != nil {
			d.options.Log.Error(err, "failed to sweep the table of flows; trying again", "after", sweepInterval.String())
		}
	}
}

func (s *sweeper) sweep() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.maps == nil {
		return nil
	}
	var node uplink.ToUplinkNode
	if err := s.maps.Node.Lookup(uint32(0), &node); err != nil {
		return fmt.Errorf("reading the node's clock: %w", err)
	}
	return errors.Join(s.sweepFlows(node.Clock), s.sweepHandshakes(node.Clock))
}

// isOlder tells whether something was used last so long before now. Of what another
// version of the programs noted the time is not known.
func isOlder(used, now, age uint32) bool { return used != 0 && now > used && now-used > age }

func (s *sweeper) sweepFlows(now uint32) error {
	counts, living, found := map[netip.Addr]uint32{}, uint32(0), &avoidance{}
	silence, err := newSilence(s.maps.Answered)
	if err != nil {
		return err
	}
	var old []uplink.ToUplinkFlowKey
	err = entries.Each(s.maps.Flows, func(key *uplink.ToUplinkFlowKey, flow *uplink.ToUplinkFlow) {
		if avoided := silence.avoided(flow); avoided != 0 {
			found.add(flow, avoided)
		}
		switch {
		case isOlder(flow.Used, now, flowAge):
			old = append(old, *key)
		case flow.Ended == uplink.EndedBoth || flow.Used == 0 || isOlder(flow.Used, now, restingAge):
		case flow.Role == uplink.RoleInitiator:
			counts[bpf.Address(key.Local.Word)]++
			living++
		default:
			counts[bpf.Address(key.Remote.Word)]++
			living++
		}
	})
	if err = errors.Join(err, silence.err); err != nil {
		return fmt.Errorf("reading the flows: %w", err)
	}
	s.avoidance = found
	return errors.Join(entries.Delete(s.maps.Flows, old...), s.correctOwners(counts), s.correctLiving(living))
}

func (s *sweeper) correctLiving(living uint32) error {
	var counted uint32
	if err := s.maps.LivingFlows.Lookup(uint32(0), &counted); err != nil {
		return fmt.Errorf("reading the number of flows: %w", err)
	}
	if !isOff(counted, living) {
		return nil
	}
	if err := s.maps.LivingFlows.Put(uint32(0), living); err != nil {
		return fmt.Errorf("correcting the number of flows: %w", err)
	}
	return nil
}

// correctOwners also forgets how many unknown connections were joined.
func (s *sweeper) correctOwners(counts map[netip.Addr]uint32) error {
	known, err := readAll[uplink.ToUplinkOwner](s.maps.Owners)
	if err != nil {
		return fmt.Errorf("reading the owners of flows: %w", err)
	}
	for address := range counts {
		if _, ok := known[address]; !ok {
			known[address] = uplink.ToUplinkOwner{}
		}
	}
	for address, owner := range known {
		count := counts[address]
		if owner.Unknown == 0 && !isOff(owner.Flows, count) {
			continue
		}
		if isOff(owner.Flows, count) {
			owner.Flows = count
		}
		owner.Unknown = 0
		if err := s.maps.Owners.Put(toAddress(address), owner); err != nil {
			return fmt.Errorf("correcting the number of flows of %s: %w", address, err)
		}
	}
	return nil
}

func isOff(counted, actual uint32) bool {
	return counted > actual+drift || actual > counted+drift
}

// sweepHandshakes forgets those that nobody ended, and gives their places back.
func (s *sweeper) sweepHandshakes(now uint32) error {
	var old []uplink.ToUplinkFlowKey
	var failed error
	err := entries.Each(s.maps.Handshakes, func(key *uplink.ToUplinkFlowKey, handshake *uplink.ToUplinkHandshake) {
		if !isOlder(handshake.Flow.Used, now, handshakeAge) {
			return
		}
		old = append(old, *key)
		failed = errors.Join(failed, s.givePlaceBack(&handshake.Flow))
	})
	if err != nil {
		return fmt.Errorf("reading the handshakes: %w", err)
	}
	return errors.Join(failed, entries.Delete(s.maps.Handshakes, old...))
}

// givePlaceBack is give_place_back of bpf/include/uplink/flow.h. A subflow that begins at
// the same time may not be counted: the next one then shares its path.
func (s *sweeper) givePlaceBack(flow *uplink.ToUplinkFlow) error {
	if flow.Role != uplink.RoleInitiator {
		return nil
	}
	key := uplink.ToUplinkConnectionKey{Endpoint: flow.Endpoint, Token: flow.Token}
	var connection uplink.ToUplinkConnection
	err := s.maps.Connections.Lookup(key, &connection)
	at := flow.Path % uplink.MaxPaths * 8
	if errors.Is(err, ebpf.ErrKeyNotExist) || err == nil && connection.Subflows>>at&0xff == 0 {
		return nil
	}
	if err == nil {
		connection.Subflows -= 1 << at
		err = s.maps.Connections.Update(key, connection, ebpf.UpdateExist)
	}
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("decrementing the subflows of a connection: %w", err)
	}
	return nil
}
