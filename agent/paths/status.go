// SPDX-License-Identifier: Apache-2.0

package paths

import (
	"net/netip"

	"braid.dev/braid/api/v1alpha1"
)

const (
	maxPathAddresses = 16 // of v1alpha1.NodePath.addresses
	maxGateways      = 8  // of v1alpha1.NodePath.gateways
	maxNodeAddresses = 64 // of v1alpha1.MPTCPNodeStatus.addresses
	maxOverlays      = 16 // of v1alpha1.MPTCPNodeStatus.overlays
)

// Status is the path as MPTCPNode.status.paths shows it. A NIC that is up and yet
// not usable has no addresses there, so that no other node sends to it.
func (p Path) Status() v1alpha1.NodePath {
	status := v1alpha1.NodePath{
		Name: v1alpha1.PathName(p.Name), Interface: p.NIC.Name, State: v1alpha1.LinkDown, Message: p.Message,
	}
	if p.Up {
		status.State = v1alpha1.LinkUp
	}
	if p.Up && !p.Usable {
		return status
	}
	status.Encapsulated = int32(p.Encapsulated)
	for _, gateway := range p.Gateways[:min(len(p.Gateways), maxGateways)] {
		status.Gateways = append(status.Gateways, gateway.String())
	}
	for _, prefix := range p.Addresses[:min(len(p.Addresses), maxPathAddresses)] {
		status.Addresses = append(status.Addresses, prefix.Addr().String())
	}
	return status
}

// Overlays are the tunnels as MPTCPNode.status.overlays shows them.
func (r Resolution) Overlays() (overlays []v1alpha1.NodeOverlay) {
	for _, tunnel := range r.Tunnels[:min(len(r.Tunnels), maxOverlays)] {
		overlays = append(overlays, v1alpha1.NodeOverlay{
			Device: tunnel.Name, Kind: string(tunnel.Kind), Port: int32(tunnel.Port), Steered: tunnel.Kind.Steered(),
		})
	}
	return overlays
}

// Addresses are all those by which routes of other nodes may name this node as
// next hop, as MPTCPNode.status.addresses shows them: the given InternalIPs, then
// those of the paths and of the other uplinks. No more than 64 are shown.
func (r Resolution) Addresses(nodeAddresses []netip.Addr) (texts []string) {
	all := append([]netip.Addr(nil), nodeAddresses...)
	for _, path := range r.Paths {
		all = append(all, hosts(path.Addresses)...)
	}
	for _, uplink := range r.Uplinks {
		all = append(all, hosts(uplink.Addresses)...)
	}
	listed := map[netip.Addr]bool{}
	for _, address := range all {
		if !listed[address] && len(texts) < maxNodeAddresses {
			listed[address] = true
			texts = append(texts, address.String())
		}
	}
	return texts
}

func hosts(prefixes []netip.Prefix) (addresses []netip.Addr) {
	for _, prefix := range prefixes {
		addresses = append(addresses, prefix.Addr())
	}
	return addresses
}
