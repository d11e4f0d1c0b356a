// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"

	"braid.dev/braid/agent/entries"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/bpf/uplink"
)

// wrappings say over which paths natively routed packets get headers, by the peer's number.
type wrappings map[uint32]uplink.ToUplinkWrapping

// Key is what this node takes headers off by; 0 where it takes none off.
func (d *Datapath) Key() uint64 { return d.key.Load() }

// addWrappings brings to the maps what is needed before packets go to peers in headers, and
// leaves what was there: packets may be on their way.
func (d *Datapath) addWrappings(m *node.Model, nics []node.Path) (wrappings, error) {
	wanted := wrappingsOf(m, nics)
	own, err := d.ownWrapping(len(wanted) > 0)
	if err != nil {
		return nil, err
	}
	if own.Key != 0 {
		wanted[uplink.OuterOfThisNode] = own
	}
	for number, wrapping := range wanted {
		if err := d.loaded.Value.maps().Wrappings.Put(number, wrapping); err != nil {
			return nil, fmt.Errorf("failed to write how packets get over routers: %w", err)
		}
	}
	return wanted, nil
}

// leaveWrappings takes away what packets need no more, and notes the key.
func (d *Datapath) leaveWrappings(m *node.Model, wanted wrappings) error {
	err := errors.Join(
		entries.Replace(d.loaded.Value.maps().Wrappings, wanted, "how packets get over routers"),
		entries.Replace(d.loaded.Value.maps().PodRanges, podRangesOf(m, wanted), "the ranges of pods' addresses"),
	)
	if err != nil {
		return err
	}
	if len(m.PodRanges) > 0 {
		d.key.Store(wanted[uplink.OuterOfThisNode].Key)
	} else {
		d.key.Store(0)
	}
	return nil
}

// wrappingsOf has all peers to which a router leads: of one that takes no headers off its
// paths are none.
func wrappingsOf(m *node.Model, nics []node.Path) wrappings {
	wanted := wrappings{}
	for i := range m.Peers {
		peer := &m.Peers[i]
		beyond := slices.DeleteFunc(slices.Clone(nics), func(nic node.Path) bool {
			return !nic.Found.Routed || len(peer.Paths[nic.Name].Routers) == 0
		})
		switch {
		case peer.TakesHeaders(m.PodRanges):
			addWrapping(wanted, peer, beyond)
		case len(beyond) > 0:
			wanted[peer.Number] = uplink.ToUplinkWrapping{}
		}
	}
	return wanted
}

// addWrapping has packets to a peer get headers on these paths.
func addWrapping(to wrappings, peer *node.Peer, beyond []node.Path) {
	for _, nic := range beyond {
		wrapping, mtu := to[peer.Number], uint32(nic.Found.MTU)
		if wrapping.Paths == 0 || mtu < wrapping.Mtu {
			wrapping.Mtu = mtu
		}
		wrapping.Key, wrapping.Paths = peer.Key, wrapping.Paths|1<<nic.Number
		to[peer.Number] = wrapping
	}
}

// podRangesOf are the ranges of these peers and of the node itself.
func podRangesOf(m *node.Model, wanted wrappings) map[uplink.ToUplinkRangeKey]uint32 {
	ranges := map[uplink.ToUplinkRangeKey]uint32{}
	add := func(of []netip.Prefix, number uint32) {
		for _, prefix := range of {
			ranges[rangeKey(prefix)] = number
		}
	}
	for i := range m.Peers {
		if _, is := wanted[m.Peers[i].Number]; is {
			add(m.Peers[i].PodRanges, m.Peers[i].Number)
		}
	}
	if _, is := wanted[uplink.OuterOfThisNode]; is {
		add(m.PodRanges, uplink.OuterOfThisNode)
		add(unmetered(m), uplink.OnlyUnwrapped)
	}
	return ranges
}

// unmetered are the addresses of guarded pods that only their packets' sources tell, as behind a
// bridge: the meter at the NIC would not know them within headers, so they get none.
func unmetered(m *node.Model) (addresses []netip.Prefix) {
	for i := range m.Endpoints {
		endpoint := &m.Endpoints[i]
		if endpoint.PlanEndpoint == nil || endpoint.Guard == nil || endpoint.Ingress() != 0 {
			continue
		}
		for _, address := range endpoint.Addresses {
			addresses = append(addresses, netip.PrefixFrom(address, address.BitLen()))
		}
	}
	return addresses
}

func rangeKey(prefix netip.Prefix) uplink.ToUplinkRangeKey {
	bits := prefix.Bits()
	if prefix.Addr().Is4() {
		bits += onlyIPv6.Bits()
	}
	return uplink.ToUplinkRangeKey{Bits: uint32(bits), Address: toAddress(prefix.Addr())}
}

// ownWrapping has this node's key. It is made up once, where it is needed, and is the next
// agent's too: other nodes go on with it, also when no router leads anywhere for a while.
func (d *Datapath) ownWrapping(needed bool) (own uplink.ToUplinkWrapping, _ error) {
	err := d.loaded.Value.maps().Wrappings.Lookup(uint32(uplink.OuterOfThisNode), &own)
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return own, fmt.Errorf("failed to read the node's key: %w", err)
	}
	for needed && own.Key == 0 {
		var key [8]byte
		if _, err := rand.Read(key[:]); err != nil {
			return own, fmt.Errorf("failed to make the node's key: %w", err)
		}
		own.Key = binary.NativeEndian.Uint64(key[:])
	}
	return own, nil
}
