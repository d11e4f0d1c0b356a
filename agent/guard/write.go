// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"
	"k8s.io/apimachinery/pkg/types"

	"braid.dev/braid/api/v1alpha1"
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

// write brings the maps to the state.
func (g *Guard) write(state State, guarded []Endpoint) error {
	if err := g.writePaths(state); err != nil {
		return err
	}
	if err := g.writeTenants(state, guarded); err != nil {
		return err
	}
	if err := g.bookEndpoints(guarded); err != nil {
		return err
	}
	queues, queued := g.makeQueues()
	nics := map[uint32]int{}
	for _, path := range state.Paths {
		nics[g.book.row(ofPath, path.Name)] = path.Interface
	}
	if err := g.writeIdentities(guarded, queues); err != nil {
		return err
	}
	if err := g.writeQueues(queues, nics); err != nil {
		return err
	}
	if err := g.writeAllowances(guarded, queued); err != nil {
		return err
	}
	g.queues = queues
	return g.writeNICs(state)
}

func (g *Guard) writePaths(state State) error {
	var names []string
	shared := map[string]bool{}
	for _, tenant := range state.Tenants {
		for _, path := range tenant.Paths {
			shared[string(path.Path)] = shared[string(path.Path)] || path.Weight > 0
		}
	}
	for _, path := range state.Paths {
		names = append(names, path.Name)
	}
	maps := g.objects.maps()
	if err := g.book.assign(g.objects, ofPath, names, func(slot uint32) error {
		return maps.PathUsages.Put(slot, guard.MeterPathUsage{})
	}); err != nil {
		return err
	}
	capacities := [slots]float64{}
	g.book.paths = nil
	for _, path := range state.Paths {
		booked := bookedPath{name: path.Name, slot: g.book.row(ofPath, path.Name)}
		if shared[path.Name] {
			booked.capacity = float64(path.Capacity)
		}
		capacities[booked.slot] = booked.capacity
		g.book.paths = append(g.book.paths, booked)
	}
	for slot, capacity := range capacities {
		if err := maps.Paths.Put(uint32(slot), guard.MeterPath{Price: price(crowded * capacity)}); err != nil {
			return fmt.Errorf("writing the capacity of a path: %w", err)
		}
	}
	return nil
}

// writeTenants books the namespaces of all guarded endpoints: those without a
// ceiling or share are others' equals.
func (g *Guard) writeTenants(state State, guarded []Endpoint) error {
	paths := map[string][]v1alpha1.PlanTenantPath{}
	for _, endpoint := range guarded {
		paths[endpoint.Namespace] = nil
	}
	for _, tenant := range state.Tenants {
		if _, here := paths[tenant.Namespace]; here {
			paths[tenant.Namespace] = tenant.Paths
		}
	}
	shared := g.objects.maps()
	if err := g.book.assign(g.objects, ofTenant, slices.Sorted(maps.Keys(paths)), func(row uint32) error {
		return shared.TenantUsages.Put(row, guard.MeterTenantUsage{})
	}); err != nil {
		return err
	}
	g.book.tenants = map[string]*bookedTenant{}
	for namespace, paths := range paths {
		booked := &bookedTenant{row: g.book.row(ofTenant, namespace)}
		var value guard.MeterTenant
		for _, path := range paths {
			slot, here := g.book.rows[nameOf(ofPath, string(path.Path))]
			if !here {
				continue
			}
			booked.ceilings[slot], booked.weights[slot] = float64(path.MaxRate), path.Weight
			value.Price[slot] = price(float64(path.MaxRate))
		}
		g.book.tenants[namespace] = booked
		if err := shared.Tenants.Put(booked.row, value); err != nil {
			return fmt.Errorf("writing the ceilings of tenant %s: %w", namespace, err)
		}
	}
	return nil
}

// bookEndpoints gives the endpoints their rows.
func (g *Guard) bookEndpoints(guarded []Endpoint) error {
	var names []string
	for _, endpoint := range guarded {
		names = append(names, string(endpoint.UID))
	}
	maps := g.objects.maps()
	if err := g.book.assign(g.objects, ofEndpoint, names, func(row uint32) error {
		g.sharing.forget(row)
		return errors.Join(maps.Allowances.Put(row, guard.MeterAllowance{}), maps.Usages.Put(row, guard.MeterUsage{}))
	}); err != nil {
		return err
	}
	g.book.endpoints = map[types.UID]*bookedEndpoint{}
	for _, endpoint := range guarded {
		booked := &bookedEndpoint{
			row: g.book.row(ofEndpoint, string(endpoint.UID)), namespace: endpoint.Namespace, name: endpoint.Name,
		}
		if endpoint.Guard != nil {
			booked.maxRate = float64(endpoint.Guard.MaxRate)
		}
		g.book.endpoints[endpoint.UID] = booked
	}
	return nil
}

// writeAllowances leaves the shares as they are: those are given by sharing.
func (g *Guard) writeAllowances(guarded []Endpoint, queued map[uint32]uint32) error {
	for _, endpoint := range guarded {
		booked := g.book.endpoints[endpoint.UID]
		if err := g.writeAllowance(booked, endpoint, queued[booked.row]); err != nil {
			return fmt.Errorf("writing the limits of %s/%s: %w", endpoint.Namespace, endpoint.Name, err)
		}
	}
	return nil
}

func (g *Guard) writeAllowance(booked *bookedEndpoint, endpoint Endpoint, flags uint32) error {
	var before guard.MeterAllowance
	if err := g.objects.maps().Allowances.Lookup(booked.row, &before); err != nil {
		return err
	}
	if endpoint.Guard != nil && endpoint.Guard.SpoofCheck {
		flags |= guard.SpoofCheck
	}
	after := guard.MeterAllowance{Tenant: g.book.tenants[endpoint.Namespace].row, Flags: flags, Price: price(booked.maxRate), Share: before.Share}
	if after == before {
		return nil
	}
	return g.objects.maps().Allowances.Put(booked.row, after)
}

// writeIdentities says by which addresses and interfaces endpoints are known.
func (g *Guard) writeIdentities(guarded []Endpoint, queues map[uint32]queue) error {
	addresses, interfaces := map[guard.MeterAddress]uint32{}, map[uint32]uint32{}
	for _, endpoint := range guarded {
		row := g.book.endpoints[endpoint.UID].row
		for _, address := range endpoint.Addresses {
			addresses[toAddress(address)] = row
		}
		if endpoint.Interface > 0 {
			interfaces[uint32(endpoint.Interface)] = row
		}
	}
	for _, queue := range queues {
		interfaces[uint32(queue.end)] = guard.OutOfQueue
	}
	return errors.Join(
		replaceAll(g.objects.maps().Addresses, addresses, "addresses of endpoints"),
		replaceAll(g.objects.maps().Interfaces, interfaces, "interfaces of endpoints"),
	)
}

func toAddress(address netip.Addr) guard.MeterAddress {
	return guard.MeterAddress{Word: bpf.Words(address)}
}

func (g *Guard) writeNICs(state State) error {
	return replaceAll(g.objects.maps().Nics, g.places(state), "the node's NICs")
}

// places say to which path each NIC belongs.
func (g *Guard) places(state State) map[uint32]uint32 {
	places := map[uint32]uint32{}
	for _, index := range state.Uplinks {
		places[uint32(index)] = noPath
	}
	for _, path := range state.Paths {
		places[uint32(path.Interface)] = g.book.row(ofPath, path.Name)
	}
	return places
}

// replaceAll writes what is new or different, and then deletes what is not wanted.
func replaceAll[K comparable](m *ebpf.Map, wanted map[K]uint32, what string) error {
	known := map[K]uint32{}
	var key K
	var value uint32
	entries := m.Iterate()
	for entries.Next(&key, &value) {
		known[key] = value
	}
	failed := entries.Err()
	for key, value := range wanted {
		if before, ok := known[key]; !ok || before != value {
			failed = errors.Join(failed, m.Put(key, value))
		}
	}
	for key := range known {
		if _, ok := wanted[key]; !ok {
			if err := m.Delete(key); !errors.Is(err, ebpf.ErrKeyNotExist) {
				failed = errors.Join(failed, err)
			}
		}
	}
	if failed != nil {
		return fmt.Errorf("writing %s: %w", what, failed)
	}
	return nil
}
