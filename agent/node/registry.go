// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"braid.dev/braid/agent/pins"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/bpf/uplink"
)

// Kind of what has a number.
type Kind uint32

// Kinds.
const (
	KindPath Kind = iota + 1
	KindPeer
	KindEndpoint
	KindTenant
	KindAccount
)

// The numbers that there are. The last endpoint of the programs' maps is left out:
// traffic control has a class of that number.
const (
	MaxPaths     = v1alpha1.MaxPaths
	MaxPeers     = uplink.MaxPeers
	MaxEndpoints = 4094
	MaxTenants   = MaxEndpoints
)

// ranges are the first number of a kind, and how many there are.
var ranges = map[Kind]struct {
	what         string
	first, count uint32
}{
	KindPath: {"paths", 0, MaxPaths}, KindPeer: {"peers", 0, MaxPeers},
	KindEndpoint: {"endpoints", 1, MaxEndpoints}, KindTenant: {"tenants", 1, MaxTenants},
	KindAccount: {"accounts", 1, maxAccounts},
}

// nameLength is the room for a name: that of a Kubernetes object and its end.
const nameLength = 256

// registryKey is what has a number: a path, peer, namespace or account by its name, an
// endpoint by its UID.
type registryKey struct {
	Kind Kind
	Name [nameLength]byte
}

// registryEntry is what the registry keeps of it.
type registryEntry struct {
	Number uint32
	// Interface is the index of the host's end of an endpoint's interface, as it was
	// found last; 0 while it never was.
	Interface uint32
	// Flags of an endpoint. Agents before there were several took any for bridged.
	Flags uint32
	// Retired: it is gone, and programs or maps may still refer to the number.
	Retired uint32
}

// Flags of an entry.
const (
	bridged   uint32 = 1 << iota // as Endpoint.Bridged
	contested                    // another pod that was here before has an address of it
	proven                       // its interface was found by what the pod cannot write
)

const (
	registryDirectory = "node"
	registrySchema    = "v1"
	registryMap       = "registry"
)

// Registry gives paths, peers, endpoints, tenants and accounts their numbers. One that stays
// keeps its number, also over a restart of the agent, because flows, records and
// counters refer to it; and a number whose owner is gone belongs to nobody until all
// parts have forgotten it. It is not safe for concurrent use.
type Registry struct {
	pinPath string
	pins    *pins.Pins
	pinned  *ebpf.Map // nil while nothing has a number
	entries map[Kind]map[string]*registryEntry
	retired map[*registryEntry]uint64 // the round in which it was retired
}

// firstRound is that of the first model. Nothing was applied before.
const firstRound = 1

// OpenRegistry is of the agent's directory of pins. Nothing is made or read before a
// number is needed.
func OpenRegistry(pinPath string, log logr.Logger) *Registry {
	return &Registry{
		pinPath: pinPath, pins: pins.New(filepath.Join(pinPath, registryDirectory), registrySchema, log),
		entries: map[Kind]map[string]*registryEntry{}, retired: map[*registryEntry]uint64{},
	}
}

func registrySpec() *ebpf.MapSpec {
	return &ebpf.MapSpec{
		Name: registryMap, Type: ebpf.Hash, KeySize: 4 + nameLength, ValueSize: 16,
		MaxEntries: MaxPaths + MaxPeers + MaxEndpoints + MaxTenants + maxAccounts, Flags: unix.BPF_F_NO_PREALLOC, Pinning: ebpf.PinByName,
	}
}

// load opens the pinned map, or makes it, with what agents of earlier versions kept
// in the maps of their parts.
func (r *Registry) load() error {
	if r.pinned != nil {
		return nil
	}
	if err := r.pins.Prepare(pins.Maps{Kept: []*ebpf.MapSpec{registrySpec()}}); err != nil {
		return err
	}
	_, err := os.Stat(filepath.Join(r.pins.Directory(), registryMap))
	isNew := errors.Is(err, os.ErrNotExist)
	pinned, err := ebpf.NewMapWithOptions(registrySpec(), ebpf.MapOptions{PinPath: r.pins.Directory()})
	if err != nil {
		return fmt.Errorf("loading the registry of numbers: %w", err)
	}
	if r.entries, err = readRegistry(pinned); err != nil {
		return errors.Join(err, pinned.Close())
	}
	r.pinned, r.retired = pinned, map[*registryEntry]uint64{}
	if isNew {
		err = r.inherit()
	}
	for _, of := range r.entries {
		for _, entry := range of {
			if entry.Retired != 0 {
				r.retired[entry] = firstRound
			}
		}
	}
	return errors.Join(err, r.pins.Finish())
}

func readRegistry(pinned *ebpf.Map) (map[Kind]map[string]*registryEntry, error) {
	all := map[Kind]map[string]*registryEntry{}
	for kind := range ranges {
		all[kind] = map[string]*registryEntry{}
	}
	var key registryKey
	var value registryEntry
	entries := pinned.Iterate()
	for entries.Next(&key, &value) {
		if of := all[key.Kind]; of != nil {
			kept := value
			of[text(key.Name[:])] = &kept
		}
	}
	if err := entries.Err(); err != nil {
		return nil, fmt.Errorf("reading the registry of numbers: %w", err)
	}
	return all, nil
}

// text is what stands before the first NUL.
func text(name []byte) string {
	before, _, _ := bytes.Cut(name, []byte{0})
	return string(before)
}

// isPinned: an agent before this one gave numbers.
func (r *Registry) isPinned() bool {
	_, err := os.Stat(r.pins.Directory())
	return err == nil
}

// assign gives each of the names a number: the one that it has, or a free one. Names
// that are not among them are retired. Where numbers run out, the names that found none
// are missing in the result, and left is how many.
func (r *Registry) assign(kind Kind, names []string, round uint64) (assigned map[string]*registryEntry, left int, err error) {
	assigned = map[string]*registryEntry{}
	used, wanted := map[uint32]bool{}, map[string]bool{}
	for _, name := range names {
		wanted[name] = true
	}
	for name, entry := range r.entries[kind] {
		used[entry.Number] = true
		if !wanted[name] {
			if err := r.retire(kind, name, entry, round); err != nil {
				return nil, 0, err
			}
		}
	}
	next := ranges[kind].first
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		entry := r.entries[kind][name]
		if entry == nil {
			for used[next] {
				next++
			}
			if next >= ranges[kind].first+ranges[kind].count {
				left++
				continue
			}
			used[next] = true
			entry = &registryEntry{Number: next}
			r.entries[kind][name] = entry
			if err := r.put(kind, name, entry); err != nil {
				return nil, 0, err
			}
		}
		if err := r.revive(kind, name, entry); err != nil {
			return nil, 0, err
		}
		assigned[name] = entry
	}
	return assigned, left, nil
}

func (r *Registry) retire(kind Kind, name string, entry *registryEntry, round uint64) error {
	if entry.Retired != 0 {
		return nil
	}
	entry.Retired = 1
	r.retired[entry] = round
	return r.put(kind, name, entry)
}

func (r *Registry) revive(kind Kind, name string, entry *registryEntry) error {
	if entry.Retired == 0 {
		return nil
	}
	entry.Retired = 0
	delete(r.retired, entry)
	return r.put(kind, name, entry)
}

// found notes where an endpoint's packets come into the node.
func (r *Registry) found(uid string, index int, flags uint32) error {
	entry := r.entries[KindEndpoint][uid]
	if entry == nil || entry.Interface == uint32(index) && entry.Flags == flags {
		return nil
	}
	entry.Interface, entry.Flags = uint32(index), flags
	return r.put(KindEndpoint, uid, entry)
}

// isContested: see contested.
func (r *Registry) isContested(uid types.UID) bool {
	entry := r.entries[KindEndpoint][string(uid)]
	return entry != nil && entry.Flags&contested != 0
}

// hadAll: an endpoint was found, and had all its addresses.
func (r *Registry) hadAll(uid types.UID) bool {
	entry := r.entries[KindEndpoint][string(uid)]
	return entry != nil && entry.Interface != 0 && !r.isContested(uid)
}

func (r *Registry) put(kind Kind, name string, entry *registryEntry) error {
	if err := r.pinned.Put(keyOf(kind, name), entry); err != nil {
		return fmt.Errorf("writing the number of %s: %w", name, err)
	}
	return nil
}

func keyOf(kind Kind, name string) *registryKey {
	key := &registryKey{Kind: kind}
	copy(key.Name[:nameLength-1], name)
	return key
}

// Numbers of some kinds.
type Numbers map[Kind]map[uint32]bool

// retiredNumbers are all that wait to be forgotten.
func (r *Registry) retiredNumbers() Numbers {
	numbers := Numbers{}
	for kind, of := range r.entries {
		numbers[kind] = map[uint32]bool{}
		for _, entry := range of {
			if entry.Retired != 0 {
				numbers[kind][entry.Number] = true
			}
		}
	}
	return numbers
}

// release frees the numbers that were retired up to a round, because all parts have
// forgotten them; those of endpoints stay while some are draining. It is true where
// there were any.
func (r *Registry) release(round uint64, draining bool) (released bool, failed error) {
	for kind, of := range r.entries {
		if draining && kind == KindEndpoint {
			continue
		}
		for name, entry := range of {
			since, retired := r.retired[entry]
			if !retired || since > round {
				continue
			}
			if err := r.pinned.Delete(keyOf(kind, name)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
				failed = errors.Join(failed, fmt.Errorf("freeing the number of %s: %w", name, err))
				continue
			}
			delete(of, name)
			delete(r.retired, entry)
			released = true
		}
	}
	return released, failed
}

// isEmpty: nothing has a number.
func (r *Registry) isEmpty() bool {
	for _, of := range r.entries {
		if len(of) > 0 {
			return false
		}
	}
	return true
}

// Close lets go of the registry; it stays pinned.
func (r *Registry) Close() error {
	if r.pinned == nil {
		return nil
	}
	err := errors.Join(r.pinned.Close(), r.pins.Close())
	r.pinned, r.entries, r.retired = nil, map[Kind]map[string]*registryEntry{}, map[*registryEntry]uint64{}
	return err
}

// Remove forgets all numbers, also those that an earlier agent gave.
func (r *Registry) Remove() error {
	err := r.Close()
	if failed := os.RemoveAll(filepath.Join(r.pinPath, registryDirectory)); failed != nil {
		err = errors.Join(err, fmt.Errorf("removing the registry of numbers: %w", failed))
	}
	return err
}

// Names are what numbers stand for, by the pinned registry alone.
type Names struct {
	Paths [MaxPaths]string
	// Endpoints are UIDs.
	Endpoints map[uint32]string
	// Interfaces are the hosts' ends of endpoints' interfaces, as they were found last.
	Interfaces map[uint32]int
}

// ReadNames reads the pinned registry of an agent that may run or not. Nothing has a
// name where there is none.
func ReadNames(pinPath string) (Names, error) {
	names := Names{Endpoints: map[uint32]string{}, Interfaces: map[uint32]int{}}
	directory := pins.New(filepath.Join(pinPath, registryDirectory), registrySchema, logr.Discard()).Directory()
	pinned, err := ebpf.LoadPinnedMap(filepath.Join(directory, registryMap), &ebpf.LoadPinOptions{ReadOnly: true})
	if errors.Is(err, os.ErrNotExist) {
		return names, nil
	}
	if err != nil {
		return names, fmt.Errorf("opening the registry of numbers: %w", err)
	}
	defer pinned.Close()
	all, err := readRegistry(pinned)
	for name, entry := range all[KindPath] {
		if entry.Retired == 0 {
			names.Paths[entry.Number%MaxPaths] = name
		}
	}
	for uid, entry := range all[KindEndpoint] {
		names.Endpoints[entry.Number], names.Interfaces[entry.Number] = uid, int(entry.Interface)
	}
	return names, err
}

// String names a kind for messages.
func (k Kind) String() string {
	return cmp.Or(strings.TrimSuffix(ranges[k].what, "s"), fmt.Sprint(uint32(k)))
}
