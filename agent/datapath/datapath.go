// SPDX-License-Identifier: Apache-2.0

// Package datapath loads the uplink half of the datapath, attaches it to the node's
// NICs and keeps its maps as the node's model says. Everything it makes is pinned:
// the packets go on without the agent, and the next agent takes over what it finds.
package datapath

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/go-logr/logr"

	"braid.dev/braid/agent/attach"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/agent/pins"
)

// Options of a datapath.
type Options struct {
	// PinPath is the agent's directory on a BPF file system.
	PinPath string
	// FlowEntries is the number of flows that the node remembers; 0 for the
	// default of 131072. The least used ones make room for new ones, and go on
	// by the cluster network's route.
	FlowEntries uint32
	// Apart has each flow leave by its own path whatever Share said, and no flow is busy then:
	// packets pay nothing for it.
	Apart bool
	// Clsact attaches by filters also where the kernel knows TCX.
	Clsact bool
	Log    logr.Logger
}

// Datapath is the uplink half on the NICs of the calling thread's network
// namespace. Run, SetHealth, ActivePeers and Loads may be called at any time, the others by
// one goroutine at a time.
type Datapath struct {
	options Options
	loaded  *pins.Loaded[*objects]
	uplinks *attach.Interfaces
	tunnels *attach.Interfaces
	peers   peerTable
	// youngPeers is while flows are picked up that began before their peers were known.
	youngPeers youngPeers
	room       uint32 // for peers, in what is loaded
	flows      sweeper
	loads      loadTable
	busy       busyTable
	lasting    lastingTable
	traffic    counters
	node       nodeEntry
	key        atomic.Uint64
	// gateways out of the cluster, to be asked whether they are there.
	gatewaysMu sync.Mutex
	gateways   map[neighbour]bool // whether they answered
	compared   bool               // flows with their endpoints, since nothing was loaded
	cleared    cleared
}

// The two hooks of each NIC. Our programs are first, because others may end the run, as
// Cilium's do. What to_uplink sends elsewhere passes all programs of the NIC by which it
// leaves. What from_uplink changes on routed paths others are to see as it is then.
var hooks = []attach.Hook{
	{Name: "to_uplink", Type: ebpf.AttachTCXEgress, Anchor: link.Head, First: true, Handle: 1},
	{Name: "from_uplink", Type: ebpf.AttachTCXIngress, Anchor: link.Head, First: true, Handle: 1},
}

// Open prepares the datapath. Nothing is loaded or attached before Apply gets a
// model with paths; what an earlier agent left attached stays.
func Open(options Options) *Datapath { return open(options, schema) }

func open(options Options, version string) *Datapath {
	d := &Datapath{options: options}
	d.loaded = pins.NewLoaded(pins.New(Directory(options.PinPath), version, options.Log), d.load)
	d.uplinks = attach.New(attach.Options{LinkDirectory: d.linkDirectory(), Hooks: hooks, Clsact: options.Clsact})
	d.tunnels = attach.New(attach.Options{LinkDirectory: filepath.Join(d.loaded.Directory(), "tunnel_links"), Hooks: tunnelHooks, Clsact: options.Clsact})
	return d
}

// Directory is where an agent's datapath is pinned.
func Directory(pinPath string) string { return filepath.Join(pinPath, "datapath") }

func (d *Datapath) linkDirectory() string { return filepath.Join(d.loaded.Directory(), "links") }

// Apply brings maps and programs to the model. Flows of endpoints that are gone
// return to the cluster network's route; all others keep their paths. A model without
// a NIC on any path means that nothing is to be attached.
func (d *Datapath) Apply(ctx context.Context, m *node.Model) (report node.Report) {
	report.Err = d.apply(ctx, m)
	describeOutside(m, &report)
	return report
}

func (d *Datapath) apply(ctx context.Context, m *node.Model) error {
	nics := m.NICs()
	if len(nics) == 0 {
		return d.Remove(ctx)
	}
	if err := m.Validate(); err != nil {
		return err
	}
	if err := d.loadFor(m); err != nil {
		return err
	}
	gateways := gatewaysOf(nics, m.Outside)
	d.watchGateways(gateways, nics, m.Outside)
	if err := d.resolve(neighboursOf(nics, m.Peers), gateways); err != nil {
		return err
	}
	changes, err := d.writeMaps(m, nics)
	if err != nil {
		return err
	}
	d.traffic.show(m.Accounts, numbersOf(nics))
	err = errors.Join(
		attachTo(d.uplinks, "the uplinks", uplinksOf(nics, m.Uplinks), d.loaded.Value.programs()...),
		attachTo(d.tunnels, "the tunnels", steeredTunnels(m.Tunnels), d.loaded.Value.toTunnel.ToTunnel),
	)
	if err == nil {
		err = d.loaded.Finish()
	}
	failed := d.update(changes)
	if failed == nil {
		d.cleared.note(m.Retired, time.Now())
	}
	return errors.Join(err, failed)
}

// loadFor loads the programs with room for all peers. Maps that these outgrow are
// replaced by larger ones as those of another version are, and flows keep their paths.
func (d *Datapath) loadFor(m *node.Model) error {
	if room := roomForPeers(m); !d.loaded.Is() || room > d.room {
		if err := d.Close(); err != nil {
			return err
		}
		d.room = room
	}
	return d.loaded.Load()
}

// uplinksOf are the indexes of all NICs that get the programs. One that cannot be used
// stays attached: the cluster network may route through it.
func uplinksOf(nics []node.Path, others []int) map[int]bool {
	uplinks := map[int]bool{}
	for _, path := range nics {
		uplinks[path.Interface] = true
	}
	for _, index := range others {
		uplinks[index] = true
	}
	return uplinks
}

// AttachMode is how programs are attached: "tcx", "clsact", or "" before the
// first model with paths.
func (d *Datapath) AttachMode() string { return d.uplinks.Mode() }

// Close lets go of the datapath without changing it: programs and maps stay.
func (d *Datapath) Close() error {
	d.unload()
	return d.loaded.Close()
}

// Remove detaches all programs and removes everything pinned. It needs no
// earlier Apply, so it also removes what another agent left.
func (d *Datapath) Remove(context.Context) error {
	d.watchGateways(nil, nil, nil)
	d.unload()
	return d.loaded.Remove(d.uplinks.Remove, d.tunnels.Remove, releaseAllNeighbours)
}

// load loads the programs. What another version pinned is taken over.
func (d *Datapath) load() (*objects, error) {
	loaded, err := loadObjects(d.loaded.Pins, settings{room{flows: d.options.FlowEntries, peers: d.room}, d.options.Apart})
	if err != nil {
		return nil, err
	}
	if err := errors.Join(
		d.peers.load(loaded), d.uplinks.Choose(loaded.fromUplink.FromUplink), d.tunnels.Choose(loaded.fromUplink.FromUplink),
	); err != nil {
		d.peers.unload()
		return nil, errors.Join(err, loaded.Close())
	}
	d.flows.use(loaded.maps())
	d.loads.use(loaded.maps())
	d.busy.use(loaded.maps())
	d.lasting.use(loaded.maps())
	d.traffic.use(loaded.maps().Traffic)
	d.node.use(loaded.maps().Node)
	d.compared, d.cleared = false, cleared{}
	return loaded, nil
}

// unload keeps what goes on beside the rounds from the maps.
func (d *Datapath) unload() {
	d.peers.unload()
	d.flows.use(nil)
	d.loads.use(nil)
	d.busy.use(nil)
	d.lasting.use(nil)
	d.traffic.use(nil)
	d.node.use(nil)
}

// attachTo attaches to exactly these interfaces.
func attachTo(to *attach.Interfaces, what string, wanted map[int]bool, programs ...*ebpf.Program) error {
	if err := to.AttachOnly(wanted, programs...); err != nil {
		return fmt.Errorf("failed to attach to %s: %w", what, err)
	}
	return nil
}
