// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// grants say which endpoint has an address. The plan may give one to several, and the
// node's route to one may lead to another pod: then it belongs to the endpoint that had
// it before, if one of them is known to, and else to none. One that is gone from the node
// has none. Whoever loses one is guarded without it. A VM has an address only while it is
// found and the node's route leads to it.
type grants struct {
	owners    map[netip.Addr]types.UID // of addresses that were found
	withheld  map[netip.Addr]bool      // from their only claimants
	contested map[types.UID]bool
}

func newGrants() grants {
	return grants{map[netip.Addr]types.UID{}, map[netip.Addr]bool{}, map[types.UID]bool{}}
}

// claimants are the endpoints of the plan by their addresses.
func (m *Model) claimants() map[netip.Addr][]*Endpoint {
	all := map[netip.Addr][]*Endpoint{}
	for i := range m.Endpoints {
		for _, address := range addressesOf(m.Endpoints[i].PlanEndpoint) {
			all[address] = append(all[address], &m.Endpoints[i])
		}
	}
	return all
}

// grantBefore grants addresses by what is known before anybody was looked for.
func (b *Builder) grantBefore(m *Model) {
	owners := map[netip.Addr]types.UID{}
	for address, of := range m.claimants() {
		if b.granted.withheld[address] { // the last look proved it of no VM
			of = slices.DeleteFunc(of, func(e *Endpoint) bool { return e.Guest != nil })
		}
		if owner := b.earlier(address, of); owner != nil {
			owners[address] = owner.UID
		} else if len(of) == 1 && of[0].Guest == nil && !b.granted.withheld[address] {
			owners[address] = of[0].UID
		}
	}
	m.takeAddresses(owners)
}

// earlier is the endpoint that had an address before: for this agent, or else for the
// last one.
func (b *Builder) earlier(address netip.Addr, of []*Endpoint) *Endpoint {
	if uid, known := b.granted.owners[address]; known {
		if at := slices.IndexFunc(of, func(e *Endpoint) bool { return e.UID == uid }); at >= 0 {
			return of[at]
		}
	}
	known := slices.DeleteFunc(slices.Clone(of), func(e *Endpoint) bool { return !b.registry.hadAll(e.UID) })
	if len(known) == 1 {
		return known[0]
	}
	return nil
}

// grant grants addresses by what was found.
func (b *Builder) grant(m *Model) {
	after := newGrants()
	owners := map[netip.Addr]types.UID{}
	for address, of := range m.claimants() {
		owner := b.ownerOf(address, of, m.LookComplete)
		if owner != nil {
			owners[address] = owner.UID
			if owner.Found != nil {
				after.owners[address] = owner.UID
			}
		}
		after.withheld[address] = owner == nil
		after.contest(of, owner)
		tell(address, of, owner)
	}
	b.granted = after
	m.takeAddresses(owners)
}

// ownerOf leaves out endpoints that are gone, where others are there.
func (b *Builder) ownerOf(address netip.Addr, of []*Endpoint, complete bool) *Endpoint {
	of = withoutUnproven(address, of, complete)
	earlier := b.earlier(address, of)
	living := living(of)
	if earlier != nil && (!complete || slices.Contains(living, earlier)) {
		return earlier
	}
	if len(living) == 0 && len(of) == 1 && of[0].Guest == nil {
		return of[0]
	}
	if len(living) == 1 && !slices.Contains(living[0].Found.Disputed, address) {
		return living[0]
	}
	return nil
}

// withoutUnproven leaves out VMs that are gone, and those to which the node does not route
// the address.
func withoutUnproven(address netip.Addr, of []*Endpoint, complete bool) []*Endpoint {
	return slices.DeleteFunc(slices.Clone(of), func(e *Endpoint) bool {
		if e.Found == nil {
			return e.Guest != nil && complete
		}
		return e.Guest != nil && slices.Contains(e.Found.Disputed, address)
	})
}

// living are the endpoints that were found.
func living(of []*Endpoint) []*Endpoint {
	return slices.DeleteFunc(slices.Clone(of), func(e *Endpoint) bool { return e.Found == nil })
}

// contest notes who is there without an address.
func (g *grants) contest(of []*Endpoint, owner *Endpoint) {
	for _, endpoint := range living(of) {
		g.contested[endpoint.UID] = g.contested[endpoint.UID] || owner != endpoint
	}
}

// tell tells those that claim one address, if several are there.
func tell(address netip.Addr, of []*Endpoint, owner *Endpoint) {
	living := living(of)
	if len(living) < 2 {
		return
	}
	for _, endpoint := range living {
		what := "and stays without it: it is not known which of them had it first"
		if owner == endpoint {
			what = "and keeps it, because it had it first"
		} else if owner != nil {
			what = "and stays without it, because the other one had it first"
		}
		endpoint.Contradiction = errors.Join(endpoint.Contradiction, fmt.Errorf("the pod has the address %s with another pod of this node, %s", address, what))
	}
}

// takeAddresses leaves each endpoint the addresses that it owns.
func (m *Model) takeAddresses(owners map[netip.Addr]types.UID) {
	for i := range m.Endpoints {
		endpoint := &m.Endpoints[i]
		endpoint.Addresses = slices.DeleteFunc(addressesOf(endpoint.PlanEndpoint), func(address netip.Addr) bool {
			return owners[address] != endpoint.UID
		})
	}
}

func (b *Builder) flagsOf(endpoint *Endpoint) (flags uint32) {
	if endpoint.Bridged {
		flags |= bridged
	}
	if endpoint.proven {
		flags |= proven
	}
	if b.granted.contested[endpoint.UID] || endpoint.Found == nil && b.registry.isContested(endpoint.UID) {
		flags |= contested
	}
	return flags
}
