// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"net/netip"

	"braid.dev/braid/agent/entries"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/agent/paths"
	"braid.dev/braid/bpf/uplink"
)

// writeOuters brings to the maps which addresses tunnels' packets have on routed paths, and
// which they have else. Both are the first ones of their family, here as on all other nodes.
func (d *Datapath) writeOuters(m *node.Model, nics []node.Path) error {
	wanted := outersOf(m, nics)
	return entries.Replace(d.loaded.Value.maps().Outers, wanted, "the addresses of nodes on routed paths")
}

func outersOf(m *node.Model, nics []node.Path) map[uint32]uplink.ToUplinkOuter {
	outers := map[uint32]uplink.ToUplinkOuter{}
	var own uplink.ToUplinkOuter
	for _, path := range nics {
		if !path.Found.Routed {
			continue
		}
		for _, prefix := range path.Found.Addresses {
			setOuter(&own, path.Number, prefix.Addr())
		}
		for i := range m.Peers {
			peer := &m.Peers[i]
			outer := outers[peer.Number]
			for _, address := range peer.Paths[path.Name].Addresses {
				setOuter(&outer, path.Number, address)
			}
			setOuter(&outer, uplink.OuterOfNode, peer.OfNode...)
			outers[peer.Number] = outer
		}
	}
	if len(outers) > 0 {
		setOuter(&own, uplink.OuterOfNode, paths.FromNode(m.NodeAddresses, m.Tunnels)...)
		outers[uplink.OuterOfThisNode] = own
	}
	return outers
}

// setOuter keeps the first address of each family at a place.
func setOuter(of *uplink.ToUplinkOuter, place uint8, addresses ...netip.Addr) {
	for _, address := range addresses {
		at := &of.Ipv6[place]
		if address.Is4() {
			at = &of.Ipv4[place]
		}
		if *at == (uplink.ToUplinkAddress{}) {
			*at = toAddress(address)
		}
	}
}
