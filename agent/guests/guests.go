// SPDX-License-Identifier: Apache-2.0

// Package guests gives connections that VMs begin further subflows, by the VMs' packets
// alone: the programs at a VM's interface announce ports of its peer to the guest, and put
// the port of each join back. What it makes is pinned, and goes on while no agent runs.
package guests

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"braid.dev/braid/agent/attach"
	"braid.dev/braid/agent/entries"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/agent/pins"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/bpf/guest"
)

// schema is the version of everything pinned: see docs/upgrade.md.
const schema = "v1"

// Options of a Part.
type Options struct {
	// PinPath is the agent's directory on a BPF file system.
	PinPath string
	// Clsact attaches by filters also where the kernel knows TCX.
	Clsact bool
	// Notify is called when there is more to say of a guest.
	Notify func()
	Log    logr.Logger
}

// Part is the node.Part that announces to guests, on the interfaces of the calling
// thread's network namespace.
type Part struct {
	options    Options
	interfaces *attach.Interfaces

	mutex  sync.Mutex
	loaded *pins.Loaded[*objects]
	told   map[uint32]v1alpha1.GuestSubflows // by the interfaces of guests
}

var _ node.Part = (*Part)(nil)

type objects struct {
	from guest.FromGuestObjects
	to   guest.ToGuestObjects
	// flows is what the map of one guest's flows is like.
	flows *ebpf.MapSpec
}

// Close lets go of programs and maps; they stay where they are pinned or attached.
func (o *objects) Close() error { return errors.Join(o.from.Close(), o.to.Close()) }

// All others are to see the ports that are real: what a guest sends is translated before
// them, and what it receives after them.
var hooks = []attach.Hook{
	{Name: "from_guest", Type: ebpf.AttachTCXIngress, Anchor: link.Head, First: true, Handle: 6, Priority: attach.FilterPriority - 1},
	{Name: "to_guest", Type: ebpf.AttachTCXEgress, Anchor: link.Tail, Last: true, Handle: 6, Priority: attach.FilterPriority + 1},
}

// Translates is the program of an interface that puts the real ports into the joins of its
// guest; 0 where there is none.
func Translates(index int) ebpf.ProgramID {
	for _, id := range attach.ProgramsAt(index, ebpf.AttachTCXIngress) {
		if attach.NameOf(id) == "from_guest" {
			return id
		}
	}
	return 0
}

// Open prepares. Nothing is loaded or attached before Apply gets a guest to announce to;
// what an earlier agent left attached stays.
func Open(options Options) *Part {
	p := &Part{options: options, told: map[uint32]v1alpha1.GuestSubflows{}}
	p.loaded = pins.NewLoaded(pins.New(filepath.Join(options.PinPath, "guests"), schema, options.Log), p.load)
	p.interfaces = attach.New(attach.Options{LinkDirectory: filepath.Join(p.loaded.Directory(), "links"), Hooks: hooks, Clsact: options.Clsact})
	return p
}

// load loads the programs. Flows are in maps of each guest, which only programs of the
// same version can read: of another version's connections the further subflows are lost.
func (p *Part) load() (*objects, error) {
	from, err := guest.LoadFromGuest()
	if err != nil {
		return nil, fmt.Errorf("reading the program at a guest's interface: %w", err)
	}
	to, err := guest.LoadToGuest()
	if err != nil {
		return nil, fmt.Errorf("reading the program towards a guest: %w", err)
	}
	for _, spec := range []*ebpf.CollectionSpec{from, to} {
		for _, name := range []string{"guests", "guest_counts", "guest_flows"} {
			spec.Maps[name].Pinning = ebpf.PinByName
		}
	}
	flows := from.Maps["guest_flows"]
	if err := p.loaded.Prepare(pins.Maps{Kept: []*ebpf.MapSpec{from.Maps["guests"], from.Maps["guest_counts"]}, Fresh: []*ebpf.MapSpec{flows}}); err != nil {
		return nil, err
	}
	o := &objects{flows: flows.InnerMap}
	options := &ebpf.CollectionOptions{Maps: ebpf.MapOptions{PinPath: p.loaded.Directory()}}
	if err := from.LoadAndAssign(&o.from, options); err != nil {
		return nil, fmt.Errorf("loading the program at a guest's interface: %w", err)
	}
	if err := to.LoadAndAssign(&o.to, options); err != nil {
		return nil, errors.Join(fmt.Errorf("loading the program towards a guest: %w", err), o.Close())
	}
	if err := p.interfaces.Choose(o.from.FromGuest); err != nil {
		return nil, errors.Join(err, o.Close())
	}
	return o, nil
}

// errSockets is of pods.
var errSockets = errors.New("subflows.manager: Host is for VMs, and nothing says that this pod holds one: " +
	"its sockets are the node's to manage, so choose manager: Kernel or Agent in the policy that decides for it, or annotate a pod that holds one " +
	v1alpha1.AnnotationVirtualMachine + `: "true"`)

// want is what the connections of a guest are to get, on one of its interfaces.
type want struct {
	guest.FromGuestGuest
	owner types.UID
	// pod has the namespace of a pod that holds the guest; empty of a VM that is none.
	pod string
}

// wantsOf are those of a model's guests, by their interfaces.
func wantsOf(model *node.Model, report *node.Report) map[uint32]want {
	wants := map[uint32]want{}
	for i := range model.Endpoints {
		endpoint := &model.Endpoints[i]
		subflows := &endpoint.Subflows
		if subflows.Manager != v1alpha1.SubflowManagerHost {
			continue
		}
		if !endpoint.HasGuest() {
			report.Fail(endpoint.UID, errSockets)
			continue
		}
		one := want{owner: endpoint.UID, FromGuestGuest: guest.FromGuestGuest{
			Bytes: uint64(subflows.OpenAfterBytes), Time: uint64(subflows.OpenAfterMillis) * uint64(time.Millisecond),
			Joins: uint32(max(0, min(subflows.Count-1, guest.AnnouncedPorts))),
		}}
		if subflows.Reopen == v1alpha1.ReopenNever {
			one.Once = 1
		}
		if endpoint.HoldsVirtualMachine() {
			one.pod = endpoint.Namespace
		}
		for _, index := range endpoint.Interfaces() {
			wants[uint32(index)] = one
		}
	}
	return wants
}

// Apply has the node announce to the model's guests. A guest is not programmed before the
// programs are at its interface.
func (p *Part) Apply(_ context.Context, model *node.Model) (report node.Report) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	wants := wantsOf(model, &report)
	if len(wants) == 0 {
		clear(p.told)
		if p.loaded.Exists() {
			report.Err = p.remove()
		}
		return report
	}
	if err := p.loaded.Load(); err != nil {
		for _, one := range wants {
			report.Fail(one.owner, fmt.Errorf("further subflows of the guest: %w", err))
		}
		if !errors.Is(err, pins.ErrRefused) {
			report.Err = err
		}
		return report
	}
	p.share(wants, &report)
	seen := attach.Look()
	for index, one := range wants {
		report.Fail(one.owner, errors.Join(p.admit(index, one), p.interfaces.Ensure(seen, int(index), p.loaded.Value.from.FromGuest, p.loaded.Value.to.ToGuest)))
	}
	report.Err = p.dismissOthers(wants)
	if report.Err == nil {
		report.Err = p.loaded.Finish()
	}
	p.describe(wants, &report)
	return report
}

// admit gives a guest a map of its own for its flows, unless it has one.
func (p *Part) admit(index uint32, one want) error {
	maps := &p.loaded.Value.from.FromGuestMaps
	if err := entries.MakeInner(maps.GuestFlows, index, p.loaded.Value.flows, "the guest's flows"); err != nil {
		return err
	}
	for _, key := range []uint32{index, all} {
		err := maps.GuestCounts.Update(key, guest.FromGuestGuestCounts{}, ebpf.UpdateNoExist)
		if err != nil && !errors.Is(err, ebpf.ErrKeyExist) {
			return fmt.Errorf("making the counters of the guest: %w", err)
		}
	}
	if err := maps.Guests.Put(index, &one.FromGuestGuest); err != nil {
		return fmt.Errorf("writing the entry of the guest: %w", err)
	}
	return nil
}

// all is the key of what is counted for all guests together.
const all = 0

// dismissOthers forgets guests that are none any more, and their keys.
func (p *Part) dismissOthers(wants map[uint32]want) error {
	failed := p.interfaces.DetachOthers(func(index int) bool {
		_, stays := wants[uint32(index)]
		return stays
	})
	maps := &p.loaded.Value.from.FromGuestMaps
	known, err := entries.Keys[uint32](maps.Guests)
	failed = errors.Join(failed, err)
	for _, index := range known {
		if _, stays := wants[index]; stays {
			continue
		}
		for _, m := range []*ebpf.Map{maps.GuestFlows, maps.GuestCounts, maps.Guests} {
			failed = errors.Join(failed, entries.Delete(m, index))
		}
	}
	if failed != nil {
		return fmt.Errorf("forgetting guests that are gone: %w", failed)
	}
	return nil
}

// Close lets go of everything without changing it: guests are announced to as before.
func (p *Part) Close() error {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	return p.loaded.Close()
}

// Remove detaches the programs and removes everything pinned. Joins end with a reset;
// their connections go on with the first subflow.
func (p *Part) Remove(context.Context) error {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	return p.remove()
}

func (p *Part) remove() error { return p.loaded.Remove(p.interfaces.Remove) }
