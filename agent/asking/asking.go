// SPDX-License-Identifier: Apache-2.0

// Package asking asks the peers of VMs for what policies and rules ask of peers. A guest's
// sockets are its own, so a program at the VM's interface writes requests into
// acknowledgements that the guest sends anyway. What it makes is pinned, and goes on while no
// agent runs.
package asking

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"net/netip"
	"path/filepath"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"braid.dev/braid/agent/attach"
	"braid.dev/braid/agent/entries"
	"braid.dev/braid/agent/guests"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/agent/pace"
	"braid.dev/braid/agent/pins"
	"braid.dev/braid/agent/transport"
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
	// Flows opens the flows that the uplinks remember, by which the path of a subflow is
	// known; nil where nobody knows.
	Flows func() (transport.Flows, error)
	// Rules tells what an endpoint's rules ask of peers; nil where nobody knows, and nothing
	// of an endpoint without rules.
	Rules func(of types.UID) Rules
	Log   logr.Logger
}

// Rules tell what those that match a subflow ask of its peer.
type Rules func(local, remote netip.AddrPort) (pace.Request, error)

// Part is the node.Part that does it, on the interfaces of the calling thread's network
// namespace.
type Part struct {
	options    Options
	interfaces *attach.Interfaces

	mutex    sync.Mutex
	loaded   *pins.Loaded[*objects]
	wants    map[uint32]want // by the interfaces of guests
	carriers transport.Carriers
	ended    uint64 // acknowledgements of guests that are no more
	next     pause
}

var _ node.Part = (*Part)(nil)

type objects struct {
	guest.AskPeersObjects
	// connections is what the map of one guest's connections is like.
	connections *ebpf.MapSpec
}

// want is what the peers of a guest are asked for, by the packets of one of its interfaces.
type want struct {
	guest.AskPeersAskingGuest
	owner types.UID
	// pod has the namespace of a pod that holds the guest; empty of a VM that is none.
	pod   string
	rates map[string]uint32 // by the name of the path
	rules bool              // rules ask for something on the subflows that they match
}

// Open prepares. Nothing is loaded or attached before Apply gets a guest whose peers are to
// be asked; what an earlier agent left attached stays.
func Open(options Options) *Part { return open(options, schema) }

func open(options Options, version string) *Part {
	p := &Part{options: options}
	p.loaded = pins.NewLoaded(pins.New(filepath.Join(options.PinPath, "asking"), version, options.Log), p.load)
	p.interfaces = attach.New(attach.Options{LinkDirectory: filepath.Join(p.loaded.Directory(), "links"), Hooks: hooks, Clsact: options.Clsact})
	return p
}

// Behind the program that puts real ports into joins, and before all others: what rules write
// of their own extends what is asked, and some end the run. Filters of one priority have no
// such order.
var hooks = []attach.Hook{{
	Name: "ask_peers", Type: ebpf.AttachTCXIngress, Anchor: link.Head, First: true, After: guests.Translates, Handle: 7, Priority: attach.FilterPriority - 1,
}}

// load loads the program. Connections are in maps of each guest, which only a program of the
// same version can read: they are asked anew.
func (p *Part) load() (*objects, error) {
	spec, err := guest.LoadAskPeers()
	if err != nil {
		return nil, fmt.Errorf("reading the program that asks the peers of guests: %w", err)
	}
	asking, connections := spec.Maps[guest.AskPeersMapAskingGuests], spec.Maps[guest.AskPeersMapAskedConnections]
	asking.Pinning, connections.Pinning = ebpf.PinByName, ebpf.PinByName
	if err := p.loaded.Prepare(pins.Maps{Kept: []*ebpf.MapSpec{asking}, Fresh: []*ebpf.MapSpec{connections}}); err != nil {
		return nil, err
	}
	o := &objects{connections: connections.InnerMap}
	if err := spec.LoadAndAssign(&o.AskPeersObjects, &ebpf.CollectionOptions{Maps: ebpf.MapOptions{PinPath: p.loaded.Directory()}}); err != nil {
		return nil, fmt.Errorf("loading the program that asks the peers of guests: %w", err)
	}
	if err := p.interfaces.Choose(o.AskPeers); err != nil {
		return nil, errors.Join(err, o.Close())
	}
	return o, nil
}

// wantsOf are those of a model's guests, by their interfaces.
func wantsOf(model *node.Model) map[uint32]want {
	wants, chains := map[uint32]want{}, model.Chains()
	for i := range model.Endpoints {
		endpoint := &model.Endpoints[i]
		if !endpoint.HasGuest() {
			continue
		}
		one := want{owner: endpoint.UID, rules: pace.AsksPeers(chains[endpoint.Chain])}
		var request *v1alpha1.TransportRequest
		if endpoint.Transport != nil {
			request = endpoint.Transport.Request
		}
		if request == nil && !one.rules {
			continue
		}
		one.ask(request)
		if endpoint.HoldsVirtualMachine() {
			one.pod = endpoint.Namespace
		}
		for _, index := range endpoint.Interfaces() {
			wants[uint32(index)] = one
		}
	}
	return wants
}

// ask fills in what a policy asks for; request may be nil.
func (w *want) ask(request *v1alpha1.TransportRequest) {
	if request != nil {
		w.Asked, w.Number = transport.Asked(request)
		w.rates = transport.RatesByPath(request)
	}
	sum := fnv.New32a()
	_ = json.NewEncoder(sum).Encode([]any{w.Asked, w.Number, w.rates, w.rules}) // none can fail
	w.Revision = sum.Sum32() | 1
}

// Apply has the peers of the model's guests asked. A guest is not programmed before the
// program is at its interface.
func (p *Part) Apply(_ context.Context, model *node.Model) (report node.Report) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	wants := wantsOf(model)
	if len(wants) == 0 {
		p.wants = nil
		if p.loaded.Exists() {
			report.Err = p.remove()
		}
		return report
	}
	if err := p.loaded.Load(); err != nil {
		for _, one := range wants {
			report.Fail(one.owner, fmt.Errorf("the guest's peers cannot be asked: %w", err))
		}
		if !errors.Is(err, pins.ErrRefused) {
			report.Err = err
		}
		return report
	}
	p.share(wants, &report)
	p.wants = wants
	seen, said := attach.Look(), map[types.UID]bool{}
	for index, one := range wants {
		report.Fail(one.owner, errors.Join(p.admit(index, one), p.interfaces.Ensure(seen, int(index), p.loaded.Value.AskPeers)))
		if !said[one.owner] {
			report.Describe(one.owner, one.describe)
		}
		said[one.owner] = true
	}
	report.Err = p.dismissOthers(wants)
	if report.Err == nil {
		report.Err = p.loaded.Finish()
	}
	return report
}

// describe says what is asked for the guest.
func (w *want) describe(status *v1alpha1.EndpointStatus) {
	node.AddMessage(status, "the guest's acknowledgements ask its peers for "+w.names())
}

// mostPods is how many interfaces of pods that hold VMs are asked for on a node: each has a
// table of 0.6 MB, and whoever makes a pod can say that it holds a VM.
const mostPods = 128

var errShare = fmt.Errorf("the guest's peers are not asked: the node has tables for %d pods that hold VMs, shared by their namespaces, and this pod's namespace has used its part", mostPods)

// share takes from wants what goes beyond.
func (p *Part) share(wants map[uint32]want, report *node.Report) {
	guests.Share(wants, mostPods, func(one want) string { return one.pod }, p.has, func(one want) { report.Fail(one.owner, errShare) })
}

// has tells whether a guest has a table already.
func (p *Part) has(index uint32) bool {
	var id uint32
	return p.loaded.Value.AskedConnections.Lookup(index, &id) == nil
}

// admit gives a guest a map of its own for its connections, unless it has one, and what its
// peers are asked for.
func (p *Part) admit(index uint32, one want) error {
	if err := entries.MakeInner(p.loaded.Value.AskedConnections, index, p.loaded.Value.connections, "the guest's connections"); err != nil {
		return err
	}
	var before guest.AskPeersAskingGuest
	err := p.loaded.Value.AskingGuests.Lookup(index, &before)
	if err == nil && before.Revision == one.Revision {
		return nil
	}
	one.Written = before.Written
	if err := p.loaded.Value.AskingGuests.Put(index, &one.AskPeersAskingGuest); err != nil {
		return fmt.Errorf("writing what the guest's peers are asked for: %w", err)
	}
	return nil
}

// dismissOthers forgets guests that are none any more.
func (p *Part) dismissOthers(wants map[uint32]want) error {
	failed := p.interfaces.DetachOthers(func(index int) bool {
		_, stays := wants[uint32(index)]
		return stays
	})
	known, err := entries.Keys[uint32](p.loaded.Value.AskingGuests)
	failed = errors.Join(failed, err)
	for _, index := range known {
		if _, stays := wants[index]; stays {
			continue
		}
		p.ended += p.writtenOf(index)
		failed = errors.Join(failed, entries.Delete(p.loaded.Value.AskedConnections, index), entries.Delete(p.loaded.Value.AskingGuests, index))
	}
	if failed != nil {
		return fmt.Errorf("forgetting guests whose peers are not asked any more: %w", failed)
	}
	return nil
}

// Close lets go of everything without changing it: peers are asked as before.
func (p *Part) Close() error {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	failed := errors.Join(p.loaded.Close(), p.carriers.Close())
	p.carriers, p.wants = transport.Carriers{}, nil
	return failed
}

// Remove detaches the program and removes everything pinned. Peers put back what they were
// asked for when they are not asked any more.
func (p *Part) Remove(context.Context) error {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	return p.remove()
}

func (p *Part) remove() error { return p.loaded.Remove(p.interfaces.Remove) }
