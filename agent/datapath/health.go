// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/cilium/ebpf"

	"braid.dev/braid/agent/entries"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/bpf/uplink"
)

// PeerHealth is what is known of the paths to one peer. A path that it does not
// name is alive and good.
type PeerHealth struct {
	// Dead paths are not used while another path to the peer can be.
	Dead map[string]bool
	// By distant paths answers take much longer than by others: first subflows that move little rest on
	// others. Of those that it does not name holds what an earlier agent said.
	Distant map[string]bool
	// Good says, for each class of preferences, of which paths it is false that
	// they are good enough to be preferred.
	Good []map[string]bool
}

// SetHealth says how good the paths to the peers are, by the peers' names; paths
// to others are good. The next packet heeds it. What an earlier agent said holds
// until the first call.
func (d *Datapath) SetHealth(health map[string]PeerHealth) error { return d.peers.setHealth(health) }

// ActivePeers are the peers that subflows sent packets to since the last call. It
// reads the peers of the maps in batches.
func (d *Datapath) ActivePeers() (map[string]bool, error) { return d.peers.takeActive() }

// NoteAnswer says that a peer has just answered on a path, so that no flow that waits for
// an answer takes the path for dead. It may be called at any time.
func (d *Datapath) NoteAnswer(peer, path string) {
	if err := d.peers.noteAnswer(peer, path); err != nil {
		d.options.Log.Error(err, "failed to note that a peer answered", "peer", peer, "path", path)
	}
}

// Heard tells how long ago a peer answered on a path: what a flow sent there, or a probe. It is
// negative where that is not known, and exact to a step of the kernel's timer. It may be called at
// any time.
func (d *Datapath) Heard(peer, path string) time.Duration {
	ago, err := d.peers.heard(peer, path)
	if err != nil {
		d.options.Log.Error(err, "failed to read when a peer answered: it is probed for it", "peer", peer, "path", path)
		return -1
	}
	return ago
}

// peerTable is what the maps say of the peers. Health changes it at any time, also
// while Apply waits for something.
type peerTable struct {
	mu      sync.Mutex
	maps    *uplink.ToUplinkMaps // nil while nothing is loaded
	paths   pathNumbers
	entries map[string]*peerEntry
	health  map[string]PeerHealth // nil before SetHealth
	// inherited is the health that an earlier agent left, by the peers' numbers.
	inherited map[uint32]uplink.ToUplinkHealth
	// reached are the numbers of peers to which a path led when they were written last; nil where
	// none ever were.
	reached map[uint32]bool
}

// peerEntry is a peer's part of the maps.
type peerEntry struct {
	number uint32
	value  uplink.ToUplinkPeer // with all paths that are up
	// What the maps hold; nil while that is not known.
	written       *uplink.ToUplinkPeer
	writtenHealth *uplink.ToUplinkHealth
}

func (t *peerTable) load(o *objects) error {
	inherited := map[uint32]uplink.ToUplinkHealth{}
	if err := entries.Each(o.maps().Health, func(number *uint32, value *uplink.ToUplinkHealth) {
		if *value != (uplink.ToUplinkHealth{}) {
			inherited[*number] = *value
		}
	}); err != nil {
		return fmt.Errorf("reading the health of peers: %w", err)
	}
	reached, err := reachedBefore(o.maps().Peers)
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.maps, t.entries, t.inherited, t.reached = o.maps(), map[string]*peerEntry{}, inherited, reached
	return nil
}

// reachedBefore are those that an earlier agent wrote; nil where there are none.
func reachedBefore(peers *ebpf.Map) (reached map[uint32]bool, err error) {
	err = entries.Each(peers, func(number *uint32, value *uplink.ToUplinkPeer) {
		if !isReached(value) {
			return
		}
		if reached == nil {
			reached = map[uint32]bool{}
		}
		reached[*number] = true
	})
	if err != nil {
		return nil, fmt.Errorf("reading the peers: %w", err)
	}
	return reached, nil
}

// isReached is true where a path leads to the peer.
func isReached(value *uplink.ToUplinkPeer) bool { return value.Ipv4Paths|value.Ipv6Paths != 0 }

func (t *peerTable) unload() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.maps, t.entries, t.reached = nil, nil, nil
}

// write writes all peers, with how packets get over routers to them, and forgets others. It tells
// whether a path leads to one to which none has led before; of the first ones nothing began earlier
// that the programs could have seen.
func (t *peerTable) write(peers []node.Peer, paths pathNumbers, encapsulations encapsulations) (fresh bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.paths = paths
	entries, reached := map[string]*peerEntry{}, map[uint32]bool{}
	for _, peer := range peers {
		entry := &peerEntry{number: peer.Number, value: peerValue(peer, paths, encapsulations[peer.Number])}
		if before := t.entries[peer.Name]; before != nil && before.number == entry.number {
			entry.written, entry.writtenHealth = before.written, before.writtenHealth
		}
		entries[peer.Name] = entry
		if isReached(&entry.value) {
			reached[entry.number] = true
			fresh = fresh || t.reached != nil && !t.reached[entry.number]
		}
	}
	t.entries, t.reached = entries, reached
	return fresh, t.writeAll()
}

// clear empties the entry of a peer that is gone.
func (t *peerTable) clear(number uint32) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.inherited, number)
	return t.put(number, &uplink.ToUplinkPeer{}, &uplink.ToUplinkHealth{})
}

func (t *peerTable) put(number uint32, peer *uplink.ToUplinkPeer, health *uplink.ToUplinkHealth) error {
	if err := t.maps.Health.Put(number, health); err != nil {
		return fmt.Errorf("failed to write the health of peer %d: %w", number, err)
	}
	if err := t.maps.Peers.Put(number, peer); err != nil {
		return fmt.Errorf("failed to write peer %d: %w", number, err)
	}
	return nil
}

func (t *peerTable) setHealth(health map[string]PeerHealth) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.health = make(map[string]PeerHealth, len(health))
	for name, of := range health {
		t.health[name] = of.clone()
	}
	if t.maps == nil {
		return nil
	}
	t.forgetDistances()
	return t.writeAll()
}

func (h PeerHealth) clone() PeerHealth {
	copied := PeerHealth{Dead: maps.Clone(h.Dead), Distant: maps.Clone(h.Distant)}
	for _, good := range h.Good {
		copied.Good = append(copied.Good, maps.Clone(good))
	}
	return copied
}

// writeAll writes what is different.
func (t *peerTable) writeAll() error {
	for name, entry := range t.entries {
		health := t.healthValue(name, entry.number)
		value := entry.value
		value.Ipv4Paths = alive(value.Ipv4Paths, health.Dead)
		value.Ipv6Paths = alive(value.Ipv6Paths, health.Dead)
		if entry.written != nil && *entry.written == value && *entry.writtenHealth == health {
			continue
		}
		if err := t.put(entry.number, &value, &health); err != nil {
			return fmt.Errorf("peer %q: %w", name, err)
		}
		entry.written, entry.writtenHealth = &value, &health
	}
	return nil
}

// alive leaves out dead paths. Where none were left, it is not known which works:
// then each gets its part.
func alive(paths, dead uint8) uint8 {
	if paths&^dead == 0 {
		return paths
	}
	return paths &^ dead
}

func (t *peerTable) healthValue(name string, number uint32) (value uplink.ToUplinkHealth) {
	if t.health == nil {
		return t.paths.only(t.inherited[number])
	}
	for path, slot := range t.paths {
		known := t.health[name]
		if known.Dead[path] {
			value.Dead |= 1 << slot
		}
		if t.isDistant(name, number, path, slot) {
			value.Distant |= 1 << slot
		}
		for class, good := range known.Good[:min(len(known.Good), node.MaxClasses)] {
			if isGood, judged := good[path]; judged && !isGood {
				value.Bad[class] |= 1 << slot
			}
		}
	}
	return value
}

// isDistant is what an earlier agent left while this one does not know.
func (t *peerTable) isDistant(name string, number uint32, path string, slot uint8) bool {
	if distant, known := t.health[name].Distant[path]; known {
		return distant
	}
	return t.inherited[number].Distant>>slot&1 != 0
}

// forgetDistances forgets what an earlier agent left of those paths of which this one knows now.
func (t *peerTable) forgetDistances() {
	for name, entry := range t.entries {
		inherited := t.inherited[entry.number]
		if inherited.Distant == 0 {
			continue
		}
		for path, slot := range t.paths {
			if _, known := t.health[name].Distant[path]; known {
				inherited.Distant &^= 1 << slot
			}
		}
		t.inherited[entry.number] = inherited
	}
}

// only leaves out what is said of paths that are gone.
func (n pathNumbers) only(value uplink.ToUplinkHealth) uplink.ToUplinkHealth {
	var here uint8
	for _, number := range n {
		here |= 1 << number
	}
	value.Dead &= here
	value.Distant &= here
	for class := range value.Bad {
		value.Bad[class] &= here
	}
	return value
}

func (t *peerTable) noteAnswer(peer, path string) error {
	now, err := tick()
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	index, known := t.answeredIndex(peer, path)
	if !known {
		return nil
	}
	return t.maps.Answered.Put(index, now)
}

// heard is how long ago an answer was noted; negative where none was.
func (t *peerTable) heard(peer, path string) (time.Duration, error) {
	now, err := tick()
	if err != nil {
		return -1, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	index, known := t.answeredIndex(peer, path)
	if !known {
		return -1, nil
	}
	var answered uint32
	if err := t.maps.Answered.Lookup(index, &answered); err != nil || answered == 0 {
		return -1, err
	}
	ago := int32(now - answered) // the programs may have noted one since we looked at the clock
	if ago < -uplink.Patience {
		return -1, nil // weeks ago
	}
	return time.Duration(max(0, ago)) << uplink.Tick, nil
}

// answeredIndex is where the programs note answers of a peer on a path. The mutex must be held.
func (t *peerTable) answeredIndex(peer, path string) (index uint32, known bool) {
	number, here := t.paths[path]
	entry := t.entries[peer]
	if t.maps == nil || entry == nil || !here {
		return 0, false
	}
	return entry.number*uplink.MaxPaths + uint32(number), true
}

// takeActive reads and clears the programs' marks.
func (t *peerTable) takeActive() (map[string]bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	active, marked := map[string]bool{}, map[uint32]uplink.ToUplinkPeer{}
	if t.maps == nil {
		return active, nil
	}
	if err := entries.Each(t.maps.Peers, func(number *uint32, value *uplink.ToUplinkPeer) {
		if value.Active != 0 {
			marked[*number] = *value
		}
	}); err != nil {
		return nil, fmt.Errorf("reading which peers are sent to: %w", err)
	}
	for name, entry := range t.entries {
		value, ok := marked[entry.number]
		if !ok {
			continue
		}
		active[name] = true
		value.Active = 0
		if err := t.maps.Peers.Put(entry.number, value); err != nil {
			return nil, fmt.Errorf("writing peer %q: %w", name, err)
		}
	}
	return active, nil
}
