// SPDX-License-Identifier: Apache-2.0

// Package guard keeps pods within the guardrails: rates of pods and of tenants at
// the egress of the node's NICs, and packets from addresses that are not a pod's
// own at its interface. What it makes is pinned: limits hold while no agent runs.
package guard

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/go-logr/logr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"braid.dev/braid/agent/attach"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/agent/pins"
	"braid.dev/braid/api/v1alpha1"
)

// Options of a guard.
type Options struct {
	// PinPath is the agent's directory on a BPF file system.
	PinPath string
	// Clsact attaches by filters also where the kernel knows TCX.
	Clsact bool
	// Links tells when an interface has changed, at once; nil where nobody waits for new
	// ones between two models.
	Links func(context.Context) (<-chan struct{}, error)
	Log   logr.Logger
}

// Guard is the guard on the interfaces of the calling thread's network namespace.
// Apply and Remove must be called from there; all methods may be called from
// several goroutines.
type Guard struct {
	options    Options
	nics       *attach.Interfaces
	endpoints  *attach.Interfaces
	unparsable *attach.Interfaces
	tunnels    *attach.Interfaces
	queueEnds  *attach.Interfaces
	changed    chan struct{} // wakes Run

	mu      sync.Mutex
	loaded  *pins.Loaded[*objects]
	rows    *rows
	filled  map[node.Kind]map[uint32]bool // rows that may not be empty
	queues  map[uint32]queue              // by the number of their path
	sharing *sharing
	newPods newPods
}

// The hooks. On an endpoint's interface the source is looked at first, and what no rule
// sees dropped before other programs may end the hook.
var (
	endpointHooks   = []attach.Hook{{Name: "own_source", Type: ebpf.AttachTCXIngress, Anchor: link.Head, Handle: 3}}
	unparsableHooks = []attach.Hook{
		{Name: "unparsable_sent", Type: ebpf.AttachTCXIngress, Anchor: link.Head, Handle: 4},
		{Name: "unparsable_received", Type: ebpf.AttachTCXEgress, Anchor: link.Head, Handle: 4},
	}
)

// after is a hook of an egress right after another program of Braid, or last where that is
// not: the meter after to_uplink, which may send a packet elsewhere, because it must meet
// a packet where it leaves the node; name_sender after to_tunnel, because that writes to
// the same place. Programs of others that end the run come later.
func (o *Options) after(name, pattern string) []attach.Hook {
	predecessor := func(index int) ebpf.ProgramID {
		id, err := pinnedProgram(filepath.Join(o.PinPath, pattern), index)
		if err != nil {
			return 0
		}
		return id
	}
	return []attach.Hook{{Name: name, Type: ebpf.AttachTCXEgress, Anchor: link.Tail, After: predecessor, Handle: 3}}
}

// Where the datapath pins the links of those programs.
const (
	toUplinkLinks = "datapath/*/links/to_uplink_%d"
	toTunnelLinks = "datapath/*/tunnel_links/to_tunnel_%d"
)

func directory(pinPath string) string { return filepath.Join(pinPath, "guard") }

// Open prepares the guard. Nothing is loaded or attached before Apply gets something
// to guard; what an earlier agent left attached stays.
func Open(options Options) *Guard { return open(options, schema) }

func open(options Options, version string) *Guard {
	g := &Guard{options: options, changed: make(chan struct{}, 1)}
	g.loaded = pins.NewLoaded(pins.New(directory(options.PinPath), version, options.Log), g.load)
	links := filepath.Join(g.loaded.Directory(), "links")
	g.nics = attach.New(attach.Options{LinkDirectory: filepath.Join(links, "nics"), Hooks: options.after("meter", toUplinkLinks), Clsact: options.Clsact})
	g.endpoints = attach.New(attach.Options{LinkDirectory: filepath.Join(links, "endpoints"), Hooks: endpointHooks, Clsact: options.Clsact})
	g.unparsable = attach.New(attach.Options{LinkDirectory: filepath.Join(links, "unparsable"), Hooks: unparsableHooks, Clsact: options.Clsact})
	g.tunnels = attach.New(attach.Options{LinkDirectory: filepath.Join(links, "tunnels"), Hooks: options.after("name_sender", toTunnelLinks), Clsact: options.Clsact})
	g.queueEnds = attach.New(attach.Options{LinkDirectory: filepath.Join(links, "queues"), Hooks: queueHooks, Clsact: options.Clsact})
	return g
}

// Apply guards the model's endpoints: limits come first, and then the programs. An
// endpoint is not programmed while a guardrail is not kept.
func (g *Guard) Apply(_ context.Context, m *node.Model) (report node.Report) {
	g.mu.Lock()
	defer g.mu.Unlock()
	guarded := guardedOf(m)
	report.Err = g.apply(m, guarded, &report)
	for _, endpoint := range guarded {
		report.Fail(endpoint.UID, report.Err)
	}
	for uid, of := range report.Endpoints {
		of.Failed = fmt.Errorf("guardrails are not kept: %w", of.Failed)
		report.Endpoints[uid] = of
	}
	return report
}

func (g *Guard) apply(m *node.Model, guarded []*node.Endpoint, report *node.Report) error {
	if len(guarded) == 0 && m.NewPods() == nil {
		if !g.loaded.Exists() {
			return nil
		}
		return g.remove()
	}
	if err := m.Validate(); err != nil {
		return err
	}
	if err := g.loaded.Load(); err != nil {
		return err
	}
	if err := g.renumber(); err != nil {
		return err
	}
	g.rows = rowsOf(m, guarded, report)
	if err := errors.Join(g.hold(m), g.write(m)); err != nil {
		return err
	}
	clear(g.sharing.rest[:]) // classes have been written anew
	shareErr := g.tick(time.Now())
	g.wake()
	err := g.attach(m, report)
	if err == nil {
		err = g.loaded.Finish()
	}
	return errors.Join(shareErr, err, removeQueues(g.queues), g.detachQueues())
}

// guardedOf are the endpoints that something is to be done for: those with limits of
// their own, those of tenants, and where there are shares all, because the others
// have the share 1.
func guardedOf(m *node.Model) (guarded []*node.Endpoint) {
	tenants, shares := tenantPaths(m), false
	for _, paths := range tenants {
		for _, path := range paths {
			shares = shares || path.Weight > 0
		}
	}
	for i := range m.Endpoints {
		endpoint := &m.Endpoints[i]
		_, ofTenant := tenants[endpoint.Namespace]
		own := endpoint.Guard != nil && *endpoint.Guard != v1alpha1.PlanGuard{}
		if own || shares || ofTenant {
			guarded = append(guarded, endpoint)
		}
	}
	return guarded
}

// load loads the programs. What another version pinned is taken over.
func (g *Guard) load() (*objects, error) {
	loaded, err := loadObjects(g.loaded.Pins)
	if err != nil {
		return nil, err
	}
	for _, interfaces := range []*attach.Interfaces{g.nics, g.endpoints, g.unparsable, g.tunnels, g.queueEnds} {
		err = errors.Join(err, interfaces.Choose(loaded.ownSource.OwnSource))
	}
	if err == nil {
		// Shares are given from elsewhere: the handle stays in this namespace.
		loaded.netlink, err = netlink.NewHandle(unix.NETLINK_ROUTE)
	}
	if err == nil {
		loaded.home, err = os.Open("/proc/thread-self/ns/net")
	}
	if err == nil {
		err = g.newPods.begin(loaded)
	}
	if err != nil {
		return nil, errors.Join(err, loaded.Close())
	}
	g.rows, g.filled, g.sharing = &rows{}, allRows(), newSharing()
	return loaded, nil
}

// renumber empties all rows where an agent that had numbers of its own filled them.
func (g *Guard) renumber() error {
	names := filepath.Join(g.loaded.Directory(), "names")
	if _, err := os.Stat(names); err != nil {
		return nil
	}
	if err := g.emptyUnused(); err != nil {
		return err
	}
	if err := os.Remove(names); err != nil {
		return fmt.Errorf("failed to remove the names of an earlier agent's rows: %w", err)
	}
	return nil
}

func (g *Guard) wake() {
	select {
	case g.changed <- struct{}{}:
	default:
	}
}

// Close lets go of everything without changing it: limits go on to hold.
func (g *Guard) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.newPods.end()
	return g.loaded.Close()
}

// Remove detaches all programs and removes everything pinned. It needs no earlier
// Apply, so it also removes what another agent left.
func (g *Guard) Remove(context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.remove()
}

func (g *Guard) remove() error {
	g.newPods.end()
	return g.loaded.Remove(g.nics.Remove, g.endpoints.Remove, g.unparsable.Remove, g.tunnels.Remove, g.queueEnds.Remove, func() error { return removeQueues(nil) })
}
