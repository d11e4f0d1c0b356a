// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/cilium/ebpf"

	"braid.dev/braid/agent/entries"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/bpf"
	"braid.dev/braid/bpf/uplink"
)

// pathNumbers are the numbers of the paths that have a NIC here, by their names.
type pathNumbers map[string]uint8

func numbersOf(paths []node.Path) pathNumbers {
	numbers := pathNumbers{}
	for _, path := range paths {
		numbers[path.Name] = path.Number
	}
	return numbers
}

// changes are what flows that are remembered may still not know of.
type changes struct {
	// What the model no longer has: paths, peers, accounts and endpoints by number, the last
	// also by address.
	paths, peers, accounts, endpoints map[uint32]bool
	addresses                         map[netip.Addr]bool
	// outside says of destinations outside, by number, which endpoints may still have them;
	// nil where none lost one.
	outside map[uint32]map[uint32]bool
	// owners are the numbers of the endpoints by their addresses; set where there may
	// be flows with another number.
	owners map[netip.Addr]uint32
}

func (c *changes) empty() bool {
	return len(c.paths) == 0 && len(c.peers) == 0 && len(c.accounts) == 0 && len(c.addresses) == 0 && len(c.owners) == 0 &&
		len(c.endpoints) == 0 && c.outside == nil
}

// writeMaps brings the maps to the model, peers and paths before the endpoints that
// refer to them.
func (d *Datapath) writeMaps(m *node.Model, nics []node.Path) (changes, error) {
	due := d.cleared.due(m.Retired, time.Now())
	c := changes{paths: due[node.KindPath], peers: due[node.KindPeer], accounts: due[node.KindAccount], endpoints: due[node.KindEndpoint]}
	numbers := numbersOf(nics)
	if err := d.writePeers(m, nics, numbers); err != nil {
		return c, err
	}
	if err := d.writeNode(nics, d.youngPeers.is(time.Now()), m.Endpoints); err != nil {
		return c, err
	}
	if err := d.writeTunnels(m.Tunnels); err != nil {
		return c, err
	}
	if err := d.writeEndpoints(m, numbers, &c); err != nil {
		return c, err
	}
	if err := d.lasting.forget(due); err != nil {
		return c, fmt.Errorf("failed to forget how long connections lasted: %w", err)
	}
	return c, d.writeOutside(m, &c)
}

func (d *Datapath) writeNode(nics []node.Path, picksUp bool, endpoints []node.Endpoint) error {
	value := uplink.ToUplinkNode{Clock: clock()}
	for _, path := range nics {
		value.Interface[path.Number] = uint32(path.Interface)
		if path.Up {
			value.PathsUp |= 1 << path.Number
		}
		if path.Found.Routed {
			value.Routed |= 1 << path.Number
		}
	}
	if picksUp || slices.ContainsFunc(endpoints, func(e node.Endpoint) bool { return mayMove(&e) }) {
		value.PicksUp = 1
	}
	if err := d.node.put(&value); err != nil {
		return fmt.Errorf("failed to write the node's paths: %w", err)
	}
	return nil
}

func (d *Datapath) writePeers(m *node.Model, nics []node.Path, numbers pathNumbers) error {
	known, err := readAll[uint32](d.loaded.Value.maps().PeerAddresses)
	if err != nil {
		return fmt.Errorf("failed to read the addresses of peers: %w", err)
	}
	if err := d.writeOuters(m, nics); err != nil {
		return err
	}
	encapsulations, err := d.addEncapsulations(m, nics)
	if err != nil {
		return err
	}
	fresh, err := d.peers.write(m.Steered(), numbers, encapsulations)
	if err != nil {
		return err
	}
	if fresh {
		d.youngPeers.note(time.Now())
	}
	if err := d.removeEncapsulations(m, encapsulations); err != nil {
		return err
	}
	if err := replaceAll(d.loaded.Value.maps().PeerAddresses, known, d.peerAddresses(m)); err != nil {
		return fmt.Errorf("failed to write the addresses of peers: %w", err)
	}
	for number := range m.Retired[node.KindPeer] {
		if err := d.peers.clear(number); err != nil {
			return err
		}
	}
	return nil
}

// peerAddresses are by whom peers are found. Where there is no room for all, the rest is
// not steered to.
func (d *Datapath) peerAddresses(m *node.Model) map[netip.Addr]uint32 {
	wanted, left := make(map[netip.Addr]uint32, len(m.Peers)), 0
	for _, peer := range m.Peers {
		for _, address := range peer.Addresses {
			if _, known := wanted[address]; known || len(wanted) < int(d.room)*uplink.PeerAddresses {
				wanted[address] = peer.Number
			} else {
				left++
			}
		}
	}
	if left > 0 {
		d.options.Log.Info("failed to take all addresses of peers; nothing is steered to the rest", "taken", len(wanted), "left", left)
	}
	return wanted
}

// peerValue has the next hop to the first address of each family on each path of both ends. Those
// that are up are marked; a subflow may have one of the others for when it is up again.
func peerValue(peer node.Peer, numbers pathNumbers, encapsulation uplink.ToUplinkWrapping) uplink.ToUplinkPeer {
	var value uplink.ToUplinkPeer
	for name, path := range peer.Paths {
		number, here := numbers[name]
		if !here {
			continue
		}
		var up uint8
		if path.Up {
			up = 1 << number
		}
		for _, address := range path.Addresses {
			switch {
			case address.Is4() && value.Ipv4[number] == 0:
				value.Ipv4[number] = bpf.Words(path.NextHop(address))[3]
				value.Ipv4Paths |= up
			case address.Is6() && value.Ipv6[number] == uplink.ToUplinkAddress{}:
				value.Ipv6[number] = toAddress(path.NextHop(address))
				value.Ipv6Paths |= up
			}
			if path.NextHop(address) != address {
				value.Beyond |= 1 << number
			}
		}
	}
	// What is encapsulated gets over routers too.
	value.Beyond &^= uint8(encapsulation.Paths)
	return value
}

// writeEndpoints leaves what the programs counted of endpoints that stay.
func (d *Datapath) writeEndpoints(m *node.Model, numbers pathNumbers, c *changes) error {
	known, err := readAll[uplink.ToUplinkEndpoint](d.loaded.Value.maps().Endpoints)
	if err != nil {
		return fmt.Errorf("failed to read the endpoints: %w", err)
	}
	if err := d.writePreferences(m.Endpoints, numbers, d.youngPeers.is(time.Now())); err != nil {
		return err
	}
	wanted := map[netip.Addr]uplink.ToUplinkEndpoint{}
	for i := range m.Endpoints {
		endpoint := &m.Endpoints[i]
		if len(endpoint.Paths) == 0 {
			continue
		}
		for _, address := range append(placesOutside(m, endpoint), endpoint.Addresses...) {
			value := known[address]
			value.Id, value.Weights, value.Interface = endpoint.Number, packWeights(endpoint.Paths, numbers), uint32(endpoint.Ingress())
			wanted[address] = value
		}
	}
	if err := d.noteLocal(slices.AppendSeq(masqueraded(m), maps.Keys(wanted))); err != nil {
		return err
	}
	d.compareOwners(known, wanted, c)
	if err := replaceAll(d.loaded.Value.maps().Endpoints, known, wanted); err != nil {
		return fmt.Errorf("failed to write the endpoints: %w", err)
	}
	return nil
}

// compareOwners notes which addresses have lost their endpoint, and all owners where
// one is new: it may have been a responder before, as nobody's.
func (d *Datapath) compareOwners(known, wanted map[netip.Addr]uplink.ToUplinkEndpoint, c *changes) {
	c.addresses = map[netip.Addr]bool{}
	for address := range known {
		if _, stays := wanted[address]; !stays {
			c.addresses[address] = true
		}
	}
	owners, fresh := map[netip.Addr]uint32{}, !d.compared
	for address, endpoint := range wanted {
		owners[address] = endpoint.Id
		fresh = fresh || known[address].Id != endpoint.Id
	}
	if fresh {
		c.owners = owners
	}
}

// maxEndpoints is the number of entries of the preferences; nobody has the number 0.
const maxEndpoints = uplink.MaxEndpoints

// writePreferences writes what is new or different, and clears what is nobody's.
func (d *Datapath) writePreferences(endpoints []node.Endpoint, numbers pathNumbers, picksUp bool) error {
	var wanted [maxEndpoints]uplink.ToUplinkPreference
	for i := range endpoints {
		if len(endpoints[i].Paths) > 0 {
			wanted[endpoints[i].Number] = preferenceValue(&endpoints[i], numbers, picksUp)
		}
	}
	// At once: one by one, the entries take as many calls.
	var written [maxEndpoints]uplink.ToUplinkPreference
	m := d.loaded.Value.maps().Preferences
	if _, err := m.BatchLookup(new(ebpf.MapBatchCursor), make([]uint32, maxEndpoints), written[:], nil); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("failed to read the preferences of endpoints: %w", err)
	}
	for number, value := range written {
		if value == wanted[number] {
			continue
		}
		if err := m.Put(uint32(number), wanted[number]); err != nil {
			return fmt.Errorf("failed to write the preference of endpoint %d: %w", number, err)
		}
	}
	return nil
}

// preferenceValue is an endpoint's entry. Hashes of flows go from 0 to 255.
func preferenceValue(endpoint *node.Endpoint, numbers pathNumbers, picksUp bool) uplink.ToUplinkPreference {
	value := uplink.ToUplinkPreference{
		Preferred: packNames(endpoint.Preferred, numbers), Backup: packNames(endpoint.Backup, numbers),
		Class: uint8(endpoint.Class), Share: 256, Flags: uplink.PreferenceSet, Account: uint8(endpoint.Account),
	}
	for _, path := range endpoint.Paths {
		value.Allowed |= packNames([]v1alpha1.PathName{path.Path}, numbers)
	}
	if endpoint.Preference != nil && endpoint.Preference.Weight > 0 {
		value.Share = uint16((endpoint.Preference.Weight*256 + 50) / 100)
	}
	if endpoint.Subflows.Mode == v1alpha1.SubflowModeNDiffPorts {
		value.Flags |= uplink.PreferenceSame
	}
	if picksUp || mayMove(endpoint) {
		value.Flags |= uplink.PreferencePickUp
	}
	return value
}

// mayMove tells whether an endpoint may have come from another node, with its connections.
func mayMove(endpoint *node.Endpoint) bool {
	return endpoint.PlanEndpoint != nil && endpoint.HasGuest()
}

func packNames(names []v1alpha1.PathName, numbers pathNumbers) (mask uint8) {
	for _, name := range names {
		if number, here := numbers[string(name)]; here {
			mask |= 1 << number
		}
	}
	return mask
}

func packWeights(paths []v1alpha1.PathWeight, numbers pathNumbers) uint64 {
	var packed uint64
	for _, path := range paths {
		if number, here := numbers[string(path.Path)]; here {
			packed |= uint64(uint8(path.Weight)) << (number * 8)
		}
	}
	return packed
}

// toAddress is an address as a key or value of the maps.
func toAddress(address netip.Addr) uplink.ToUplinkAddress {
	return uplink.ToUplinkAddress{Word: bpf.Words(address)}
}

// readAll reads a map whose keys are addresses.
func readAll[V any](m *ebpf.Map) (map[netip.Addr]V, error) {
	all := map[netip.Addr]V{}
	err := entries.Each(m, func(key *uplink.ToUplinkAddress, value *V) { all[bpf.Address(key.Word)] = *value })
	return all, err
}

// replaceAll writes what is new or different and deletes what is not wanted.
func replaceAll[V comparable](m *ebpf.Map, known, wanted map[netip.Addr]V) error {
	for of, value := range wanted {
		if before, ok := known[of]; ok && before == value {
			continue
		}
		if err := m.Put(toAddress(of), value); err != nil {
			return fmt.Errorf("%v: %w", of, err)
		}
	}
	for of := range known {
		if _, ok := wanted[of]; ok {
			continue
		}
		if err := entries.Delete(m, toAddress(of)); err != nil {
			return fmt.Errorf("%v: %w", of, err)
		}
	}
	return nil
}
