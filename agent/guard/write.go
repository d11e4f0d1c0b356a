// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"errors"
	"fmt"
	"math"
	"net/netip"

	"braid.dev/braid/agent/entries"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/bpf"
	"braid.dev/braid/bpf/guard"
)

// price is the time that a byte takes at a rate in bits a second, as the programs
// hold it. It is rounded up: the rate is never more.
func price(rate float64) uint64 {
	if rate <= 0 || math.IsInf(rate, 1) {
		return 0
	}
	return uint64(math.Ceil(8e9 / rate * (1 << guard.PriceShift)))
}

// write brings the maps to the rows.
func (g *Guard) write(m *node.Model) error {
	if err := errors.Join(g.emptyUnused(), g.writePaths(), g.writeTenants()); err != nil {
		return err
	}
	queues, queued := g.makeQueues()
	// A new pod that is known now goes from one row to the next with limits in both.
	if err := g.writeAllowances(queued); err != nil {
		return err
	}
	if err := g.writeIdentities(queues); err != nil {
		return err
	}
	if err := g.writeQueues(queues); err != nil {
		return err
	}
	g.queues = queues
	return entries.Replace(g.loaded.Value.maps().Nics, g.places(m), "the node's NICs")
}

func (g *Guard) writePaths() error {
	var capacities [slots]float64
	for _, path := range g.rows.paths {
		capacities[path.number] = path.capacity
	}
	for number, capacity := range capacities {
		if err := g.loaded.Value.maps().Paths.Put(uint32(number), guard.MeterPath{Price: price(crowded * capacity)}); err != nil {
			return fmt.Errorf("failed to write the capacity of a path: %w", err)
		}
	}
	return nil
}

func (g *Guard) writeTenants() error {
	for namespace, tenant := range g.rows.tenants {
		var value guard.MeterTenant
		for path, ceiling := range tenant.ceilings {
			value.Price[path] = price(ceiling)
		}
		if err := g.loaded.Value.maps().Tenants.Put(tenant.number, value); err != nil {
			return fmt.Errorf("failed to write the ceilings of tenant %s: %w", namespace, err)
		}
	}
	return nil
}

// writeAllowances leaves the shares as they are: those are given by sharing.
func (g *Guard) writeAllowances(queued map[uint32]uint32) error {
	for _, endpoint := range g.rows.endpoints {
		if err := g.writeAllowance(endpoint, queued[endpoint.Number]); err != nil {
			return fmt.Errorf("failed to write the limits of %s: %w", endpoint.FullName(), err)
		}
	}
	return nil
}

func (g *Guard) writeAllowance(endpoint *endpointRow, flags uint32) error {
	var before guard.MeterAllowance
	if err := g.loaded.Value.maps().Allowances.Lookup(endpoint.Number, &before); err != nil {
		return err
	}
	if endpoint.Guard != nil && endpoint.Guard.SpoofCheck {
		flags |= guard.SpoofCheck
	}
	after := guard.MeterAllowance{Tenant: endpoint.tenant.number, Flags: flags, Price: price(endpoint.maxRate), Share: before.Share}
	if after == before {
		return nil
	}
	return g.loaded.Value.maps().Allowances.Put(endpoint.Number, after)
}

// writeIdentities says by which addresses and interfaces endpoints are known.
func (g *Guard) writeIdentities(queues map[uint32]queue) error {
	g.newPods.mu.Lock()
	defer g.newPods.mu.Unlock()
	addresses, interfaces := map[guard.MeterAddress]uint32{}, map[uint32]uint32{}
	for _, endpoint := range g.rows.endpoints {
		for _, address := range endpoint.Addresses {
			addresses[toAddress(address)] = endpoint.Number
		}
		for _, index := range endpoint.Interfaces() {
			interfaces[uint32(index)] = endpoint.Number
		}
	}
	for index, held := range g.newPods.held {
		interfaces[uint32(index)] = held.row
	}
	for _, queue := range queues {
		interfaces[uint32(queue.end)] = guard.OutOfQueue
	}
	return errors.Join(
		entries.Replace(g.loaded.Value.maps().Addresses, addresses, "addresses of endpoints"),
		entries.Replace(g.loaded.Value.maps().Interfaces, interfaces, "interfaces of endpoints"),
	)
}

func toAddress(address netip.Addr) guard.MeterAddress {
	return guard.MeterAddress{Word: bpf.Words(address)}
}

// places say to which path each NIC belongs.
func (g *Guard) places(m *node.Model) map[uint32]uint32 {
	places := map[uint32]uint32{}
	for _, index := range m.Uplinks {
		places[uint32(index)] = noPath
	}
	for _, path := range g.rows.paths {
		places[uint32(path.nic)] = path.number
	}
	return places
}
