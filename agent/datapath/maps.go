// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/bpf"
	"braid.dev/braid/bpf/uplink"
)

// slots is the number of paths that the programs can tell apart. Each path of
// the node keeps its slot while it exists, because flows refer to it.
const slots = uplink.MaxPaths

// maxPeers is the number of other nodes that the programs can tell apart.
const maxPeers = uplink.MaxPeers

// changes are what flows that are remembered may still not know of.
type changes struct {
	// What the new state no longer has.
	slots     map[uint8]bool
	peers     map[uint16]bool
	addresses map[netip.Addr]bool
	// owners are the ids of the endpoints by their addresses; set where there may
	// be flows with another id.
	owners map[netip.Addr]uint32
}

func (c *changes) empty() bool {
	return len(c.slots) == 0 && len(c.peers) == 0 && len(c.addresses) == 0 && len(c.owners) == 0
}

// writeMaps brings the maps to the state, peers and paths before the endpoints
// that refer to them.
func (d *Datapath) writeMaps(state State) (changes, error) {
	var g changes
	slotOf, err := d.writePathNames(state.Paths, &g)
	if err != nil {
		return g, err
	}
	if err := d.writePeers(state.Peers, slotOf, &g); err != nil {
		return g, err
	}
	if err := d.writeNode(state.Paths, slotOf); err != nil {
		return g, err
	}
	return g, d.writeEndpoints(state.Endpoints, slotOf, &g)
}

// writePathNames gives each path a slot: the one it had, else the first free.
func (d *Datapath) writePathNames(paths []Path, g *changes) (map[string]uint8, error) {
	before, err := d.objects.readPathNames()
	if err != nil {
		return nil, err
	}
	names := make([]string, 0, len(paths))
	for _, path := range paths {
		names = append(names, path.Name)
	}
	after, slotOf := assignSlots(before, names)
	g.slots = map[uint8]bool{}
	for slot := range slots {
		if before[slot] == after[slot] {
			continue
		}
		if before[slot] != "" {
			g.slots[uint8(slot)] = true
		}
		var name pathName
		copy(name[:], after[slot])
		if err := d.objects.pathNames.Put(uint32(slot), name); err != nil {
			return nil, fmt.Errorf("writing the name of path %q: %w", after[slot], err)
		}
	}
	return slotOf, nil
}

func (o *objects) readPathNames() ([slots]string, error) {
	var names [slots]string
	for slot := range slots {
		var name pathName
		if err := o.pathNames.Lookup(uint32(slot), &name); err != nil {
			return names, fmt.Errorf("reading the names of paths: %w", err)
		}
		names[slot] = string(name[:max(0, bytes.IndexByte(name[:], 0))])
	}
	return names, nil
}

// assignSlots keeps the slots of the names that stay and gives the new ones, in
// the order of their names, the slots that were free or became so.
func assignSlots(before [slots]string, names []string) (after [slots]string, slotOf map[string]uint8) {
	slotOf = map[string]uint8{}
	for slot, name := range before {
		if name != "" && slices.Contains(names, name) {
			after[slot], slotOf[name] = name, uint8(slot)
		}
	}
	for _, name := range slices.Sorted(slices.Values(names)) {
		if _, has := slotOf[name]; has {
			continue
		}
		slot := slices.Index(after[:], "")
		after[slot], slotOf[name] = name, uint8(slot)
	}
	return after, slotOf
}

func (d *Datapath) writeNode(paths []Path, slotOf map[string]uint8) error {
	var node uplink.ToUplinkNode
	for _, path := range paths {
		slot := slotOf[path.Name]
		node.Interface[slot] = uint32(path.Interface)
		if path.Up {
			node.PathsUp |= 1 << slot
		}
	}
	if err := d.objects.maps().Node.Put(uint32(0), node); err != nil {
		return fmt.Errorf("writing the node's paths: %w", err)
	}
	return nil
}

// writePeers gives each peer the index it had, which its addresses in the map
// tell, else a free one.
func (d *Datapath) writePeers(peers []Peer, slotOf map[string]uint8, g *changes) error {
	known, err := readAll[uint32](d.objects.maps().PeerAddresses)
	if err != nil {
		return fmt.Errorf("reading the addresses of peers: %w", err)
	}
	indexOf, err := assignPeers(known, peers)
	if err != nil {
		return err
	}
	if err := d.peers.write(peers, indexOf, slotOf); err != nil {
		return err
	}
	wanted := map[netip.Addr]uint32{}
	for _, peer := range peers {
		for _, address := range peer.Addresses {
			wanted[address] = indexOf[peer.Name]
		}
	}
	if err := replaceAll(d.objects.maps().PeerAddresses, known, wanted); err != nil {
		return fmt.Errorf("writing the addresses of peers: %w", err)
	}
	return d.clearPeers(known, indexOf, g)
}

// clearPeers empties the entries of peers that are gone.
func (d *Datapath) clearPeers(known map[netip.Addr]uint32, indexOf map[string]uint32, g *changes) error {
	used := map[uint32]bool{}
	for _, index := range indexOf {
		used[index] = true
	}
	g.peers = map[uint16]bool{}
	for _, index := range known {
		if used[index] || g.peers[uint16(index)] {
			continue
		}
		g.peers[uint16(index)] = true
		if err := d.peers.clear(index); err != nil {
			return err
		}
	}
	return nil
}

func assignPeers(known map[netip.Addr]uint32, peers []Peer) (map[string]uint32, error) {
	if len(peers) > maxPeers {
		return nil, fmt.Errorf("%d peers: a node can know %d at most", len(peers), maxPeers)
	}
	indexOf, used := map[string]uint32{}, map[uint32]bool{}
	for _, index := range known {
		used[index] = true // also those of peers that go: their flows still refer to them
	}
	taken := map[uint32]bool{}
	for _, peer := range peers {
		for _, address := range peer.Addresses {
			if index, ok := known[address]; ok && !taken[index] {
				indexOf[peer.Name], taken[index] = index, true
				break
			}
		}
	}
	next := uint32(0)
	for _, peer := range peers {
		if _, has := indexOf[peer.Name]; has {
			continue
		}
		for used[next] {
			next++
		}
		if next >= maxPeers {
			return nil, errors.New("no index is free for a new peer until flows of earlier ones are forgotten")
		}
		indexOf[peer.Name], used[next] = next, true
	}
	return indexOf, nil
}

func peerValue(peer Peer, slotOf map[string]uint8) uplink.ToUplinkPeer {
	var value uplink.ToUplinkPeer
	for name, path := range peer.Paths {
		slot, here := slotOf[name]
		if !here || !path.Up {
			continue
		}
		for _, address := range path.Addresses {
			switch {
			case address.Is4() && value.Ipv4Paths>>slot&1 == 0:
				value.Ipv4[slot] = bpf.Words(address)[3]
				value.Ipv4Paths |= 1 << slot
			case address.Is6() && value.Ipv6Paths>>slot&1 == 0:
				value.Ipv6[slot] = toAddress(address)
				value.Ipv6Paths |= 1 << slot
			}
		}
	}
	return value
}

// writeEndpoints keeps the id and the turn of endpoints that stay.
func (d *Datapath) writeEndpoints(endpoints []Endpoint, slotOf map[string]uint8, g *changes) error {
	known, err := readAll[uplink.ToUplinkEndpoint](d.objects.maps().Endpoints)
	if err != nil {
		return fmt.Errorf("reading the endpoints: %w", err)
	}
	ids, err := assignIDs(known, endpoints)
	if err != nil {
		return err
	}
	if err := d.writePreferences(endpoints, ids, slotOf); err != nil {
		return err
	}
	wanted := map[netip.Addr]uplink.ToUplinkEndpoint{}
	for i, endpoint := range endpoints {
		for _, address := range endpoint.Addresses {
			value := known[address]
			value.Id, value.Weights, value.Interface = ids[i], packWeights(endpoint.Paths, slotOf), uint32(endpoint.Interface)
			wanted[address] = value
		}
	}
	if err := d.noteLocal(wanted); err != nil {
		return err
	}
	d.compareOwners(known, wanted, g)
	if err := replaceAll(d.objects.maps().Endpoints, known, wanted); err != nil {
		return fmt.Errorf("writing the endpoints: %w", err)
	}
	return nil
}

// compareOwners notes which addresses have lost their endpoint, and all owners
// where one is new: it may have been a responder before, as nobody's.
func (d *Datapath) compareOwners(known, wanted map[netip.Addr]uplink.ToUplinkEndpoint, g *changes) {
	g.addresses = map[netip.Addr]bool{}
	for address := range known {
		if _, stays := wanted[address]; !stays {
			g.addresses[address] = true
		}
	}
	owners, fresh := map[netip.Addr]uint32{}, !d.compared
	for address, endpoint := range wanted {
		owners[address] = endpoint.Id
		fresh = fresh || known[address].Id != endpoint.Id
	}
	if fresh {
		g.owners = owners
	}
}

// maxEndpoints is the number of endpoints that the programs can tell apart, and
// one more, as nobody has the id 0.
const maxEndpoints = uplink.MaxEndpoints

// assignIDs gives each endpoint the id that one of its addresses has, else a free
// one: none that an endpoint had until now, because flows still refer to it.
func assignIDs(known map[netip.Addr]uplink.ToUplinkEndpoint, endpoints []Endpoint) ([]uint32, error) {
	ids, used, taken := make([]uint32, len(endpoints)), map[uint32]bool{}, map[uint32]bool{0: true}
	for _, endpoint := range known {
		used[endpoint.Id] = true
	}
	for i, endpoint := range endpoints {
		for _, address := range endpoint.Addresses {
			if id := known[address].Id; id < maxEndpoints && !taken[id] {
				ids[i], taken[id] = id, true
				break
			}
		}
	}
	next := uint32(1)
	for i := range ids {
		if ids[i] != 0 {
			continue
		}
		for used[next] || taken[next] {
			next++
		}
		if next >= maxEndpoints {
			return nil, fmt.Errorf("%d endpoints: a node can have %d at most", len(endpoints), maxEndpoints-1)
		}
		ids[i], taken[next] = next, true
	}
	return ids, nil
}

// writePreferences writes what is new or different, and clears what is nobody's.
func (d *Datapath) writePreferences(endpoints []Endpoint, ids []uint32, slotOf map[string]uint8) error {
	var wanted [maxEndpoints]uplink.ToUplinkPreference
	for i, endpoint := range endpoints {
		wanted[ids[i]] = preferenceValue(&endpoint, slotOf)
	}
	// At once: one by one, the entries take as many calls.
	var written [maxEndpoints]uplink.ToUplinkPreference
	m := d.objects.maps().Preferences
	if _, err := m.BatchLookup(new(ebpf.MapBatchCursor), make([]uint32, maxEndpoints), written[:], nil); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("reading the preferences of endpoints: %w", err)
	}
	for id, value := range written {
		if value == wanted[id] {
			continue
		}
		if err := m.Put(uint32(id), wanted[id]); err != nil {
			return fmt.Errorf("writing the preference of endpoint %d: %w", id, err)
		}
	}
	return nil
}

// preferenceValue is an endpoint's entry. Turns of flows go from 0 to 255.
func preferenceValue(endpoint *Endpoint, slotOf map[string]uint8) uplink.ToUplinkPreference {
	value := uplink.ToUplinkPreference{
		Preferred: packNames(endpoint.Preferred, slotOf), Backup: packNames(endpoint.Backup, slotOf),
		Class: uint8(endpoint.Class), Share: 256, Flags: uplink.PreferenceSet,
	}
	for _, path := range endpoint.Paths {
		value.Allowed |= packNames([]v1alpha1.PathName{path.Path}, slotOf)
	}
	if endpoint.Share > 0 {
		value.Share = uint16((endpoint.Share*256 + 50) / 100)
	}
	if endpoint.SamePath {
		value.Flags |= uplink.PreferenceSame
	}
	return value
}

func packNames(names []v1alpha1.PathName, slotOf map[string]uint8) (mask uint8) {
	for _, name := range names {
		if slot, here := slotOf[string(name)]; here {
			mask |= 1 << slot
		}
	}
	return mask
}

func packWeights(paths []v1alpha1.PathWeight, slotOf map[string]uint8) uint64 {
	var packed uint64
	for _, path := range paths {
		if slot, here := slotOf[string(path.Path)]; here {
			packed |= uint64(uint8(path.Weight)) << (slot * 8)
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
	var key uplink.ToUplinkAddress
	var value V
	entries := m.Iterate()
	for entries.Next(&key, &value) {
		all[bpf.Address(key.Word)] = value
	}
	return all, entries.Err()
}

// replaceAll writes what is new or different and deletes what is not wanted.
func replaceAll[V comparable](m *ebpf.Map, known, wanted map[netip.Addr]V) error {
	for address, value := range wanted {
		if before, ok := known[address]; ok && before == value {
			continue
		}
		if err := m.Put(toAddress(address), value); err != nil {
			return fmt.Errorf("%s: %w", address, err)
		}
	}
	for address := range known {
		if _, ok := wanted[address]; ok {
			continue
		}
		if err := m.Delete(toAddress(address)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("%s: %w", address, err)
		}
	}
	return nil
}
