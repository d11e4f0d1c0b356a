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

// encapsulations say over which paths natively routed packets are encapsulated, by the peer's
// number. The programs' structure has the name by which an agent takes over the map.
type encapsulations map[uint32]uplink.ToUplinkWrapping

// Key is what this node decapsulates by; 0 where it decapsulates nothing.
func (d *Datapath) Key() uint64 { return d.key.Load() }

// addEncapsulations brings to the maps what is needed before packets to peers are encapsulated, and
// leaves what was there: packets may be on their way.
func (d *Datapath) addEncapsulations(m *node.Model, nics []node.Path) (encapsulations, error) {
	wanted := encapsulationsOf(m, nics)
	own, err := d.ownEncapsulation(len(wanted) > 0)
	if err != nil {
		return nil, err
	}
	if own.Key != 0 {
		wanted[uplink.OuterOfThisNode] = own
	}
	for number, encapsulation := range wanted {
		if err := d.loaded.Value.maps().Wrappings.Put(number, encapsulation); err != nil {
			return nil, fmt.Errorf("failed to write how packets get over routers: %w", err)
		}
	}
	return wanted, nil
}

// removeEncapsulations removes what packets need no more, and notes the key.
func (d *Datapath) removeEncapsulations(m *node.Model, wanted encapsulations) error {
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

// encapsulationsOf has all peers to which a router leads: of one that does not
// decapsulate its paths are none.
func encapsulationsOf(m *node.Model, nics []node.Path) encapsulations {
	wanted := encapsulations{}
	for i := range m.Peers {
		peer := &m.Peers[i]
		beyond := slices.DeleteFunc(slices.Clone(nics), func(nic node.Path) bool {
			return !nic.Found.Routed || len(peer.Paths[nic.Name].Routers) == 0
		})
		switch {
		case peer.Decapsulates(m.PodRanges):
			addEncapsulation(wanted, peer, beyond)
		case len(beyond) > 0:
			wanted[peer.Number] = uplink.ToUplinkWrapping{}
		}
	}
	return wanted
}

// addEncapsulation has packets to a peer encapsulated on these paths.
func addEncapsulation(to encapsulations, peer *node.Peer, beyond []node.Path) {
	for _, nic := range beyond {
		encapsulation, mtu := to[peer.Number], uint32(nic.Found.MTU)
		if encapsulation.Paths == 0 || mtu < encapsulation.Mtu {
			encapsulation.Mtu = mtu
		}
		encapsulation.Key, encapsulation.Paths = peer.Key, encapsulation.Paths|1<<nic.Number
		to[peer.Number] = encapsulation
	}
}

// podRangesOf are the ranges of these peers and of the node itself.
func podRangesOf(m *node.Model, wanted encapsulations) map[uplink.ToUplinkRangeKey]uint32 {
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
		add(unmetered(m), uplink.NeverEncapsulated)
	}
	return ranges
}

// unmetered are the addresses of guarded pods that only their packets' sources tell, as behind a
// bridge: the meter at the NIC would not know them then, so they are never encapsulated.
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

// ownEncapsulation has this node's key. It is made up once, where it is needed, and is the next
// agent's too: other nodes go on with it, also when no router leads anywhere for a while.
func (d *Datapath) ownEncapsulation(needed bool) (own uplink.ToUplinkWrapping, _ error) {
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
