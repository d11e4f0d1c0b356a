// SPDX-License-Identifier: Apache-2.0

// Package relayed tells the proxy of the node whose connections to relay, and the status
// whether it does.
package relayed

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/go-logr/logr"
	"github.com/vishvananda/netlink"

	"braid.dev/braid/agent/attach"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/internal/logonce"
	list "braid.dev/braid/internal/relayed"
)

// ErrNotRelayed is told where nothing at the endpoint's interface leads to a proxy.
var ErrNotRelayed = errors.New("sockets.mode: Proxy: no proxy on this node relays the endpoint's connections, which go on as plain TCP: " +
	"set proxy.enabled in the chart, and see kubectl logs of the node's braid-proxy; it needs Linux 6.6")

// program is the name of what the proxy attaches, draining that of its map which says that it
// is about to end.
const (
	program  = "from_client"
	draining = "draining"
	outcomes = "outcomes"
)

// look is how often the agent looks whether the proxy does its work.
const look = 5 * time.Second

// Part is the node.Part for it. It attaches nothing: what relays is the proxy's, and ends
// with it.
type Part struct {
	directory string
	notify    func()
	log       logr.Logger

	mu   sync.Mutex
	told map[int]bool // by interface: whether it is relayed
	dead map[int]bool // interfaces of relays without a proxy, at the last look
	// quiet counts the looks in a row at which there was no interface of a relay, and nobody
	// asked for one. A restart begins anew: what is there may be an earlier agent's.
	quiet int

	failed logonce.Error // the last error of a sweep
}

var _ node.Part = (*Part)(nil)

// New keeps the list in this directory.
func New(directory string, notify func(), log logr.Logger) *Part {
	return &Part{directory: directory, notify: notify, log: log, told: map[int]bool{}}
}

// Apply writes the list, and has endpoints wait that no proxy relays.
func (p *Part) Apply(_ context.Context, model *node.Model) (report node.Report) {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.told)
	var endpoints []list.Endpoint
	for i := range model.Endpoints {
		endpoint := &model.Endpoints[i]
		if endpoint.Proxy == nil || endpoint.Found == nil || endpoint.HostInterface == 0 {
			continue
		}
		endpoints = append(endpoints, entryOf(endpoint))
		relays := isRelayed(endpoint.HostInterface)
		p.told[endpoint.HostInterface] = relays
		if !relays {
			report.Await(endpoint.UID, ErrNotRelayed)
		}
	}
	if len(endpoints) > 0 {
		p.quiet = 0
	}
	report.Err = list.Write(p.directory, endpoints)
	return report
}

func entryOf(endpoint *node.Endpoint) list.Endpoint {
	return list.Endpoint{
		Interface: endpoint.HostInterface, Name: endpoint.FullName(),
		Addresses: endpoint.Addresses, Subflows: endpoint.Proxy.Subflows,
	}
}

// isRelayed asks the kernel, and not the proxy: it is what packets meet.
func isRelayed(index int) bool {
	return slices.ContainsFunc(attach.ProgramsAt(index, ebpf.AttachTCXIngress), relaysNew)
}

// relaysNew is true of a proxy's program that takes new connections: one that is about to
// end does not.
func relaysNew(id ebpf.ProgramID) bool {
	maps, isProxys := mapsOf(id)
	var stopped uint32
	_ = readNamed(maps, draining, func(m *ebpf.Map) { _ = m.Lookup(uint32(0), &stopped) })
	return isProxys && stopped == 0
}

// mapsOf are the maps of a proxy's program; false for another program.
func mapsOf(id ebpf.ProgramID) ([]ebpf.MapID, bool) {
	opened, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return nil, false
	}
	defer opened.Close()
	info, err := opened.Info()
	if err != nil || info.Name != program {
		return nil, false
	}
	maps, _ := info.MapIDs()
	return maps, true
}

// readNamed reads the map of this name; it is false where there is none.
func readNamed(maps []ebpf.MapID, name string, read func(*ebpf.Map)) bool {
	return slices.ContainsFunc(maps, func(id ebpf.MapID) bool { return readIfNamed(id, name, read) })
}

func readIfNamed(id ebpf.MapID, name string, read func(*ebpf.Map)) bool {
	opened, err := ebpf.NewMapFromID(id)
	if err != nil {
		return false
	}
	defer opened.Close()
	info, err := opened.Info()
	if err != nil || info.Name != name {
		return false
	}
	read(opened)
	return true
}

// Run looks from time to time, and notifies of changes.
func (p *Part) Run(ctx context.Context) error {
	return node.Every(ctx, look, func() {
		if p.hasChanged() && p.notify != nil {
			p.notify()
		}
		p.report(p.sweep())
	})
}

func (p *Part) hasChanged() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := map[int]bool{}
	for index := range p.told {
		now[index] = isRelayed(index)
	}
	return !maps.Equal(now, p.told)
}

// sweep removes interfaces of a proxy that was killed, once they are there at two looks: one
// that is being made has no program yet.
// Where no proxy has been for a while, and none is asked for, it does not look.
func (p *Part) sweep() error {
	if p.isQuiet() {
		return nil
	}
	found, living, err := list.Dead()
	if err != nil {
		return err
	}
	p.noteLook(len(found) + living)
	now := map[int]bool{}
	var left []netlink.Link
	for _, device := range found {
		index := device.Attrs().Index
		if now[index] = true; p.dead[index] {
			left = append(left, device)
		}
	}
	p.dead = now
	return list.Sweep(left)
}

// enough looks have found nothing.
const enough = 2

func (p *Part) isQuiet() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.quiet >= enough
}

// noteLook notes how many interfaces of relays there are.
func (p *Part) noteLook(found int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.quiet++; found > 0 || len(p.told) > 0 {
		p.quiet = 0
	}
}

// report logs an error once, however often it comes: each look tries again.
func (p *Part) report(err error) {
	p.failed.Log(p.log, err, "failed to remove what a proxy left that was killed")
}

// Remove takes the list away, and with it the proxy's work.
func (p *Part) Remove(context.Context) error {
	dead, _, err := list.Dead()
	if failed := list.Write(p.directory, nil); failed != nil {
		err = errors.Join(err, fmt.Errorf("telling the proxy to relay nobody: %w", failed))
	}
	return errors.Join(err, list.Sweep(dead))
}

// Close leaves the list: the proxy goes on without an agent.
func (*Part) Close() error { return nil }
