// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"braid.dev/braid/agent/attach"
	"braid.dev/braid/agent/entries"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/agent/overlays"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/bpf"
	"braid.dev/braid/bpf/transport"
)

// exchangeCredits is that of exchange.h: credits are given to peers, and taken from them.
const exchangeCredits = 1 << 1

// arrivalHooks are those of a path's NIC: what comes in is seen before another program ends
// the run.
var arrivalHooks = []attach.Hook{{Name: "note_arrival", Type: ebpf.AttachTCXIngress, Anchor: link.Head, Handle: 5}}

// withCredits: the policy has its pods give credits and heed them.
func withCredits(of *v1alpha1.Incast) bool {
	return of != nil && of.Mode == v1alpha1.IncastCredits && len(of.Peers) > 0
}

// addCredits tells the programs whom credits are given to and taken from.
func addCredits(e *transport.TransportExchange, of *v1alpha1.Incast) {
	e.Flags |= exchangeCredits
	for _, cidr := range of.Peers[:min(len(of.Peers), len(e.CreditPeers))] {
		if prefix, err := netip.ParsePrefix(string(cidr)); err == nil { // the API takes no other
			e.CreditPeers[e.CreditPrefixes] = prefixOf(prefix)
			e.CreditPrefixes++
		}
	}
}

func prefixOf(prefix netip.Prefix) (of transport.TransportPrefix) {
	of.Address.Word, of.Mask.Word = maskOf(prefix)
	if prefix.Addr().Is4() {
		of.Ipv4 = 1
	}
	return of
}

// applyIncast brings NICs and maps to what the model's receivers need: with none of them
// nothing is attached.
func (p *Part) applyIncast(model *node.Model, report *node.Report) error {
	receivers, capacities, nics := map[transport.TransportAddress]uint32{}, map[uint32]uint64{}, map[uint32]uint32{}
	for i := range model.Endpoints {
		if endpoint := &model.Endpoints[i]; withCredits(endpoint.Incast) {
			for _, address := range endpoint.Addresses {
				receivers[transport.TransportAddress{Word: bpf.Words(address)}] = 1
			}
		}
	}
	for _, path := range model.NICs() {
		if len(receivers) > 0 && path.Capacity > 0 && uint32(path.Number) < transport.CreditPaths {
			capacities[uint32(path.Number)] = uint64(path.Capacity) / 8 / transport.CreditWhole * transport.CreditParts
			nics[uint32(path.Interface)] = uint32(path.Number)
		}
	}
	if len(nics) == 0 {
		lackCapacity(model, report)
	}
	for number := range uint32(transport.CreditPaths) {
		if err := p.loaded.Value.CreditCapacities.Put(number, capacities[number]); err != nil {
			return fmt.Errorf("failed to write the capacities of paths: %w", err)
		}
	}
	return errors.Join(
		p.writeTunnels(model), entries.Replace(p.loaded.Value.CreditReceivers, receivers, "who gives credits"), entries.Replace(p.loaded.Value.CreditNics, nics, "where credits are given"), p.attachArrivals(nics))
}

// writeTunnels says by what packets with flows in them are known.
func (p *Part) writeTunnels(model *node.Model) error {
	known := overlays.Known(model.Tunnels)
	tunnels := transport.TransportTunnels{Port: known.Port, Kind: known.Kind, Kinds: known.Kinds, Filter: known.Filter}
	if err := p.loaded.Value.Tunnels.Put(uint32(0), tunnels); err != nil {
		return fmt.Errorf("failed to write the node's tunnels: %w", err)
	}
	return nil
}

// lackCapacity says of receivers that they cannot give credits.
func lackCapacity(model *node.Model, report *node.Report) {
	for i := range model.Endpoints {
		if endpoint := &model.Endpoints[i]; withCredits(endpoint.Incast) {
			report.Describe(endpoint.UID, func(status *v1alpha1.EndpointStatus) {
				node.AddMessage(status, "spec.incast: no path of this node has a capacity, so the pod gives no credits")
			})
		}
	}
}

// attachArrivals puts the program that sees what comes in on exactly these NICs.
func (p *Part) attachArrivals(nics map[uint32]uint32) error {
	wanted := map[int]bool{}
	for index := range nics {
		wanted[int(index)] = true
	}
	if err := p.arrivals.AttachOnly(wanted, p.loaded.Value.NoteArrival); err != nil {
		return fmt.Errorf("failed to attach note_arrival to the paths' NICs: %w", err)
	}
	return nil
}
