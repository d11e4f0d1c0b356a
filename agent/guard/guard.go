// SPDX-License-Identifier: Apache-2.0

// Package guard keeps pods within the guardrails: rates of pods and of tenants at
// the egress of the node's NICs, and packets from addresses that are not a pod's
// own at its interface. What it makes is pinned: limits hold while no agent runs.
package guard

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/go-logr/logr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"braid.dev/braid/agent/attach"
	"braid.dev/braid/agent/pins"
	"braid.dev/braid/api/v1alpha1"
)

// Options of a guard.
type Options struct {
	// PinPath is a directory on a BPF file system, for this node's guard alone.
	PinPath string
	// UplinkLinks and EndpointLinks are patterns, as of filepath.Glob, of the pinned
	// links of the programs after which the meter runs on a NIC, and before which
	// sources are looked at on an endpoint's interface. Each has one %d, for the
	// index of the interface; empty where there is no such program.
	UplinkLinks, EndpointLinks string
	// Clsact attaches by filters also where the kernel knows TCX.
	Clsact bool
	Log    logr.Logger
}

// State is all that the guard must know. A state in which nothing is guarded means
// that nothing is to be attached.
type State struct {
	// Paths are the node's NICs, one for each path.
	Paths []Path
	// Uplinks are the indexes of further NICs by which packets leave the node.
	Uplinks []int
	// Endpoints are the pods of the node's plan.
	Endpoints []Endpoint
	// Tenants have ceilings or shares.
	Tenants []v1alpha1.PlanTenant
}

// Path is this node's NIC on one path.
type Path struct {
	Name string
	// Interface is the NIC's index, positive.
	Interface int
	// Capacity in bits a second; 0 where it is not known: then there are no shares.
	Capacity int64
}

// Endpoint is a pod.
type Endpoint struct {
	UID             types.UID
	Namespace, Name string
	// Addresses of the pod, IPv4 and IPv6.
	Addresses []netip.Addr
	// Interface is the index of the host's end of its interface; 0 while it is not
	// found: then its packets are known by their source address.
	Interface int
	// Guard is what the plan says; nil for nothing.
	Guard *v1alpha1.PlanGuard
}

// Failures are what could not be done for single endpoints.
type Failures map[types.UID]error

// Guard is the guard on the interfaces of the calling thread's network namespace.
// Apply and Remove must be called from there; all methods may be called from
// several goroutines.
type Guard struct {
	options   Options
	pins      *pins.Pins
	nics      *attach.Interfaces
	endpoints *attach.Interfaces
	queueEnds *attach.Interfaces
	changed   chan struct{} // wakes Run

	mu      sync.Mutex
	objects *objects // nil while nothing is loaded
	netlink *netlink.Handle
	clean   bool // nothing is pinned, and nothing attached
	book    *book
	queues  map[uint32]queue // by the slot of their path
	sharing *sharing
}

// The hooks. On a NIC the meter is last, because it must meet a packet where it
// leaves the node, and to_uplink may send it elsewhere. On an endpoint's interface
// the source is looked at first.
var (
	nicHooks      = []attach.Hook{{Name: "meter", Type: ebpf.AttachTCXEgress, Anchor: link.Tail, Handle: 3}}
	endpointHooks = []attach.Hook{{Name: "own_source", Type: ebpf.AttachTCXIngress, Anchor: link.Head, Handle: 3}}
)

// Open prepares the guard. Nothing is loaded or attached before Apply gets something
// to guard; what an earlier agent left attached stays.
func Open(options Options) *Guard { return open(options, schema) }

func open(options Options, version string) *Guard {
	g := &Guard{
		options: options, pins: pins.New(options.PinPath, version, options.Log),
		changed: make(chan struct{}, 1), sharing: newSharing(),
	}
	links := filepath.Join(g.pins.Directory(), "links")
	g.nics = attach.New(attach.Options{LinkDirectory: filepath.Join(links, "nics"), Hooks: nicHooks, Clsact: options.Clsact})
	g.endpoints = attach.New(attach.Options{LinkDirectory: filepath.Join(links, "endpoints"), Hooks: endpointHooks, Clsact: options.Clsact})
	g.queueEnds = attach.New(attach.Options{LinkDirectory: filepath.Join(links, "queues"), Hooks: queueHooks, Clsact: options.Clsact})
	return g
}

// Apply guards the endpoints as the state says: limits come first, and then the
// programs. The error is what concerns all endpoints.
func (g *Guard) Apply(state State) (Failures, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := state.validate(); err != nil {
		return nil, err
	}
	guarded := state.guarded()
	if len(guarded) == 0 {
		if !g.hasSomething() {
			return nil, nil
		}
		return nil, g.remove()
	}
	if err := g.load(); err != nil {
		return nil, err
	}
	if err := g.write(state, guarded); err != nil {
		return nil, err
	}
	clear(g.sharing.rest[:]) // classes have been written anew
	shareErr := g.tick(time.Now())
	g.wake()
	failures := Failures{}
	err := g.attach(state, failures)
	if err == nil {
		err = g.pins.Finish()
	}
	return failures, errors.Join(shareErr, err, removeQueues(g.queues))
}

func (s *State) validate() error {
	if len(s.Paths) > slots {
		return fmt.Errorf("%d paths: a node can use %d at most", len(s.Paths), slots)
	}
	for _, path := range s.Paths {
		if path.Interface <= 0 {
			return fmt.Errorf("path %q has no interface", path.Name)
		}
	}
	return nil
}

// guarded are the endpoints that something is to be done for: those with limits of
// their own, those of tenants, and where there are shares all, because the others
// have the share 1.
func (s *State) guarded() (guarded []Endpoint) {
	tenants, shares := map[string]bool{}, false
	for _, tenant := range s.Tenants {
		tenants[tenant.Namespace] = true
		for _, path := range tenant.Paths {
			shares = shares || path.Weight > 0
		}
	}
	for _, endpoint := range s.Endpoints {
		own := endpoint.Guard != nil && *endpoint.Guard != v1alpha1.PlanGuard{}
		if own || shares || tenants[endpoint.Namespace] {
			guarded = append(guarded, endpoint)
		}
	}
	return guarded
}

// Guarded are the endpoints that something is to be done for.
func (s *State) Guarded() map[types.UID]bool {
	uids := map[types.UID]bool{}
	for _, endpoint := range s.guarded() {
		uids[endpoint.UID] = true
	}
	return uids
}

// hasSomething is true when this agent or an earlier one left something.
func (g *Guard) hasSomething() bool {
	if g.objects != nil {
		return true
	}
	if !g.clean {
		_, err := os.Stat(g.options.PinPath)
		g.clean = errors.Is(err, os.ErrNotExist)
	}
	return !g.clean
}

// load loads the programs once. What another version pinned is taken over.
func (g *Guard) load() error {
	if g.objects != nil {
		return nil
	}
	g.clean = false
	loaded, err := loadObjects(g.pins)
	if err != nil {
		return err
	}
	b, err := readBook(loaded)
	if err == nil {
		err = errors.Join(g.nics.Choose(loaded.ownSource.OwnSource), g.endpoints.Choose(loaded.ownSource.OwnSource),
			g.queueEnds.Choose(loaded.ownSource.OwnSource))
	}
	if err == nil {
		// Shares are given from elsewhere: the handle stays in this namespace.
		g.netlink, err = netlink.NewHandle(unix.NETLINK_ROUTE)
	}
	if err != nil {
		return errors.Join(err, loaded.close())
	}
	g.objects, g.book = loaded, b
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
	return g.close()
}

func (g *Guard) close() error {
	if g.objects == nil {
		return nil
	}
	err := errors.Join(g.objects.close(), g.pins.Close())
	g.netlink.Close()
	g.objects, g.book, g.sharing = nil, nil, newSharing()
	return err
}

// Remove detaches all programs and removes everything pinned. It needs no earlier
// Apply, so it also removes what another agent left.
func (g *Guard) Remove() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.remove()
}

func (g *Guard) remove() error {
	failed := errors.Join(g.nics.Remove(), g.endpoints.Remove(), g.queueEnds.Remove(), removeQueues(nil), g.close())
	if err := os.RemoveAll(g.options.PinPath); err != nil {
		failed = errors.Join(failed, fmt.Errorf("removing the guard's pins: %w", err))
	}
	g.clean = failed == nil
	return failed
}
