// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
)

// Agents before there was a registry kept numbers in maps of each part. Their flows
// and records go on by these numbers: this is what reads them, once.

// inheritedPeer is the name of a peer whose addresses alone are known: bind finds out
// whose they are.
const inheritedPeer = "address "

// inherit registers what the pinned maps of an earlier agent say.
func (r *Registry) inherit() error {
	return errors.Join(r.inheritPaths(), r.inheritPeers(), r.inheritEndpoints())
}

func (r *Registry) inheritPaths() error {
	return r.inheritFrom("datapath/*/path_names", func(m *ebpf.Map) error {
		var name [64]byte
		for number := range uint32(MaxPaths) {
			if err := m.Lookup(number, &name); err != nil {
				return err
			}
			if text(name[:]) == "" {
				continue
			}
			if err := r.add(KindPath, text(name[:]), registryEntry{Number: number}); err != nil {
				return err
			}
		}
		return nil
	})
}

func (r *Registry) inheritPeers() error {
	return r.inheritFrom("datapath/*/peer_addresses", func(m *ebpf.Map) error {
		seen := map[uint32]bool{}
		var address [16]byte
		var number uint32
		entries := m.Iterate()
		for entries.Next(&address, &number) {
			if seen[number] || number >= MaxPeers {
				continue
			}
			seen[number] = true
			name := inheritedPeer + netip.AddrFrom16(address).Unmap().String()
			if err := r.add(KindPeer, name, registryEntry{Number: number}); err != nil {
				return err
			}
		}
		return entries.Err()
	})
}

// inheritEndpoints takes the numbers of endpoints with rules: their records go by
// them. Flows of others are told the new ones by the datapath.
func (r *Registry) inheritEndpoints() error {
	return r.inheritFrom("endpoints/*/endpoint_names", func(m *ebpf.Map) error {
		seen := map[uint32]bool{}
		var uid [64]byte
		var record struct{ Number, Interface uint32 }
		entries := m.Iterate()
		for entries.Next(&uid, &record) {
			if seen[record.Number] || record.Number == 0 || record.Number > MaxEndpoints {
				continue
			}
			seen[record.Number] = true
			if err := r.add(KindEndpoint, text(uid[:]), registryEntry{Number: record.Number, Interface: record.Interface}); err != nil {
				return err
			}
		}
		return entries.Err()
	})
}

func (r *Registry) add(kind Kind, name string, entry registryEntry) error {
	r.entries[kind][name] = &entry
	return r.put(kind, name, &entry)
}

// inheritFrom reads a pinned map, if there is one.
func (r *Registry) inheritFrom(pattern string, read func(*ebpf.Map) error) error {
	found, err := filepath.Glob(filepath.Join(r.pinPath, pattern))
	if err != nil || len(found) == 0 {
		return err
	}
	path := found[len(found)-1]
	m, err := ebpf.LoadPinnedMap(path, &ebpf.LoadPinOptions{ReadOnly: true})
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("opening %s of an earlier agent: %w", path, err)
	}
	defer m.Close()
	if err := read(m); err != nil {
		return fmt.Errorf("reading %s of an earlier agent: %w", path, err)
	}
	return nil
}

// bind gives peers the entries that are known by an address of theirs alone.
func (r *Registry) bind(peers []Peer) error {
	for _, peer := range peers {
		for _, address := range peer.Addresses {
			name := inheritedPeer + address.String()
			entry := r.entries[KindPeer][name]
			if entry == nil || r.entries[KindPeer][peer.Name] != nil {
				continue
			}
			if err := r.add(KindPeer, peer.Name, registryEntry{Number: entry.Number}); err != nil {
				return err
			}
			delete(r.entries[KindPeer], name)
			if err := r.pinned.Delete(keyOf(KindPeer, name)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
				return fmt.Errorf("renaming the number of %s: %w", peer.Name, err)
			}
		}
	}
	return nil
}
