// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"braid.dev/braid/agent/node"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/bpf/uplink"
)

// noPeer keeps what is within a range out of it.
const noPeer = 0xffff

// anyEndpoint stands for whichever has the destination: a SYN from there may be for an
// address of the node's, and whose it is shows later.
const anyEndpoint = 0

// onlyIPv6 keeps IPv4 out of ranges of IPv6 so large that the maps' form of it lies within.
var onlyIPv6 = netip.MustParsePrefix("::ffff:0:0/96")

// writeOutside brings to the maps which endpoints are led to which destinations outside.
// Where there is no room for all, the rest is not steered.
func (d *Datapath) writeOutside(m *node.Model, c *changes) error {
	outside, known := d.loaded.Value.maps().Outside, map[uplink.ToUplinkOutsideKey]uint32{}
	if err := eachEntry(outside, func(key uplink.ToUplinkOutsideKey, number uint32) { known[key] = number }); err != nil {
		return fmt.Errorf("failed to read the destinations outside: %w", err)
	}
	wanted := outsideOf(m)
	if len(wanted) > uplink.MaxOutside {
		d.options.Log.Info("failed to take all destinations outside; nothing is steered to them", "endpoints times destinations", len(wanted), "room", uplink.MaxOutside)
		clear(wanted)
	}
	for key := range known {
		if _, stays := wanted[key]; !stays {
			c.outside = mayStillGo(m)
		}
	}
	if err := replaceAll(outside, known, wanted, func(key uplink.ToUplinkOutsideKey) any { return key }); err != nil {
		return fmt.Errorf("failed to write the destinations outside: %w", err)
	}
	return nil
}

// mayStillGo are the numbers of the endpoints that have a destination, by its number.
func mayStillGo(m *node.Model) map[uint32]map[uint32]bool {
	may := map[uint32]map[uint32]bool{}
	for i := range m.Outside {
		may[m.Outside[i].Number] = map[uint32]bool{}
	}
	for i := range m.Endpoints {
		for _, outside := range m.OutsideOf(&m.Endpoints[i]) {
			may[outside.Number][m.Endpoints[i].Number] = true
		}
	}
	return may
}

func outsideOf(m *node.Model) map[uplink.ToUplinkOutsideKey]uint32 {
	wanted := map[uplink.ToUplinkOutsideKey]uint32{}
	for i := range m.Endpoints {
		endpoint := &m.Endpoints[i]
		if len(endpoint.Paths) == 0 {
			continue
		}
		for _, outside := range m.OutsideOf(endpoint) {
			for _, number := range []uint32{endpoint.Number, anyEndpoint} {
				wanted[outsideKey(number, outside.Destination)] = outside.Number
				addMissing(wanted, number, outside.Destination)
			}
		}
	}
	return wanted
}

// addMissing keeps IPv4 out of this range, unless it is one of IPv4 itself or that is named too.
func addMissing(wanted map[uplink.ToUplinkOutsideKey]uint32, number uint32, destination netip.Prefix) {
	if destination.Addr().Is4() || destination.Bits() >= onlyIPv6.Bits() || !destination.Contains(onlyIPv6.Addr()) {
		return
	}
	key := outsideKey(number, onlyIPv6)
	if _, named := wanted[key]; !named {
		wanted[key] = noPeer
	}
}

// outsideKey is a range as the map has it: with the addresses of IPv4 in the form of IPv6.
func outsideKey(endpoint uint32, destination netip.Prefix) uplink.ToUplinkOutsideKey {
	bits := destination.Bits()
	if destination.Addr().Is4() {
		bits += onlyIPv6.Bits()
	}
	return uplink.ToUplinkOutsideKey{
		Bits: uint32(uplink.OutsideEndpointBits + bits), Endpoint: endpoint, Address: toAddress(destination.Addr()),
	}
}

// placesOutside is by what an endpoint with destinations outside is found where its address
// is not in the packet any more.
func placesOutside(m *node.Model, endpoint *node.Endpoint) []netip.Addr {
	if endpoint.Ingress() == 0 || len(m.OutsideOf(endpoint)) == 0 {
		return nil
	}
	var place [16]byte
	binary.BigEndian.PutUint16(place[:], uplink.OutsideInterface)
	binary.BigEndian.PutUint32(place[12:], uint32(endpoint.Ingress()))
	return []netip.Addr{netip.AddrFrom16(place)}
}

// masqueraded are the addresses of the node's that packets of pods may have when they leave the
// cluster; none where nothing outside is steered to.
func masqueraded(m *node.Model) (addresses []netip.Addr) {
	if len(m.Outside) == 0 {
		return nil
	}
	addresses = slices.Clone(m.NodeAddresses)
	for i := range m.Paths {
		for _, prefix := range m.Paths[i].Found.Addresses {
			addresses = append(addresses, prefix.Addr())
		}
	}
	return addresses
}

// hasLost tells whether the flow's endpoint is gone, or may not have its destination outside any
// more. Endpoints of flows with an address of the node's are not known by that.
func (c *changes) hasLost(flow *uplink.ToUplinkFlow, local netip.Addr) bool {
	if _, owned := c.owners[local]; !owned && c.endpoints[flow.Endpoint] {
		return true
	}
	may, isOutside := c.outside[uint32(flow.Peer)]
	return isOutside && !may[flow.Endpoint]
}

// gatewaysOf are the next hops out of the cluster. One that does not answer is asked for on
// and on.
func gatewaysOf(nics []node.Path, outside []node.Outside) map[neighbour]bool {
	wanted := map[neighbour]bool{}
	for _, path := range nics {
		for i := range outside {
			for _, gateway := range outside[i].Paths[path.Name].Addresses {
				if path.Up {
					wanted[neighbour{path.Interface, gateway}] = true
				}
			}
		}
	}
	return wanted
}

// describeOutside says of endpoints with destinations outside where their connections are not
// spread to them.
func describeOutside(m *node.Model, report *node.Report) {
	for i := range m.Endpoints {
		endpoint := &m.Endpoints[i]
		text := whyNotOutside(m, endpoint)
		if text == "" {
			continue
		}
		report.Describe(endpoint.UID, func(status *v1alpha1.EndpointStatus) { node.AddMessage(status, text) })
	}
}

// whyNotOutside is empty where there is nothing to say.
func whyNotOutside(m *node.Model, endpoint *node.Endpoint) string {
	for _, outside := range m.OutsideOf(endpoint) {
		var led []string
		for _, path := range endpoint.Paths {
			if outside.Paths[string(path.Path)].Up {
				led = append(led, string(path.Path))
			}
		}
		if len(led) == 0 && len(endpoint.Paths) > 0 {
			return fmt.Sprintf("connections to %s are not spread: none of the pod's paths has a gateway there that answers; kubectl braid paths says why", outside.Destination)
		}
		if len(led) == 1 && len(endpoint.Paths) > 1 {
			return fmt.Sprintf("connections to %s are not spread: of the pod's paths %s alone has a gateway there that answers; kubectl braid paths says why", outside.Destination, led[0])
		}
	}
	if len(m.OutsideOf(endpoint)) > 0 && (endpoint.Bridged || len(endpoint.Others) > 0) {
		return "connections outside are not spread where the cluster network masquerades them: the pod's interface is on a bridge, after which nothing tells whose such packets are"
	}
	return ""
}

// watchGateways says whom askGateways asks. Flows return to the path of a gateway that has not
// answered and does again: what they avoid they would try again only after a while.
func (d *Datapath) watchGateways(gateways map[neighbour]bool, nics []node.Path, outside []node.Outside) {
	d.gatewaysMu.Lock()
	defer d.gatewaysMu.Unlock()
	before := d.gateways
	d.gateways = gateways
	for _, path := range nics {
		for i := range outside {
			there := outside[i].Paths[path.Name]
			for _, address := range there.Addresses {
				at := neighbour{path.Interface, address}
				gateways[at] = there.Up
				if answered, known := before[at]; known && !answered && there.Up {
					d.NoteAnswer(outside[i].Name, path.Name)
				}
			}
		}
	}
}

// askGateways has the kernel ask each gateway whether it is still there. By itself it would
// do so once in half a minute, as no traffic through a router tells it. Three seconds without an
// answer make it fail, and the agent hears of that.
func (d *Datapath) askGateways() error {
	d.gatewaysMu.Lock()
	defer d.gatewaysMu.Unlock()
	if len(d.gateways) == 0 {
		return nil
	}
	known, err := listNeighbours()
	if err != nil {
		return err
	}
	for gateway := range d.gateways {
		switch entry := known[gateway]; {
		case entry.failed && entry.ours:
			err = gateway.askAnew(entry)
		case entry.confirmable && entry.ours:
			err = gateway.confirm()
		}
		if err != nil && !isGone(err) {
			return fmt.Errorf("asking the gateway %s of interface %d: %w", gateway.address, gateway.nic, err)
		}
	}
	return nil
}
