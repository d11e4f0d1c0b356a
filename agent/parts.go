// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/agent/announcements"
	"braid.dev/braid/agent/asking"
	"braid.dev/braid/agent/crowd"
	"braid.dev/braid/agent/datapath"
	"braid.dev/braid/agent/detours"
	"braid.dev/braid/agent/guard"
	"braid.dev/braid/agent/guestagent"
	"braid.dev/braid/agent/guests"
	"braid.dev/braid/agent/health"
	"braid.dev/braid/agent/hints"
	"braid.dev/braid/agent/machines"
	"braid.dev/braid/agent/metrics"
	"braid.dev/braid/agent/narrow"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/agent/pathmanager"
	"braid.dev/braid/agent/paths"
	"braid.dev/braid/agent/programs"
	"braid.dev/braid/agent/relayed"
	"braid.dev/braid/agent/rules"
	"braid.dev/braid/agent/saved"
	"braid.dev/braid/agent/schedule"
	"braid.dev/braid/agent/slow"
	"braid.dev/braid/agent/sockets"
	"braid.dev/braid/agent/spreading"
	"braid.dev/braid/agent/transport"
)

// parts are everything that the agent does on its node. This list is the only one: a
// part in it is applied, run, reported, closed and removed.
type parts struct {
	health   *health.Monitor
	hints    *hints.Hints
	datapath *datapath.Datapath
	detours  *detours.Detours

	// held is applied while the patient ones are: where it attaches its program to a new
	// pod, the kernel waits for a grace period of RCU, 10 to 20 ms that no other part needs.
	held *announcements.Holder

	crowd     *crowd.Crowd
	narrow    *narrow.Narrow
	slow      *slow.Slow
	pods      *pathmanager.Pods
	sockets   *sockets.Upgrader
	transport *transport.Part
	guard     *guard.Guard
	guests    *guests.Part
	asking    *asking.Part
	agents    *guestagent.Part
	machines  *machines.Part
	relayed   *relayed.Part
	rules     *rules.Rules

	spreading *spreading.Spreading
}

// urgent are those that packets wait for, in the order in which they are applied.
func (p *parts) urgent() []node.Part {
	return []node.Part{p.health, p.hints, p.datapath, p.detours}
}

// patient are those that take their time, or wait for others, in their order.
func (p *parts) patient() []node.Part {
	return []node.Part{p.crowd, p.narrow, p.slow, p.pods, p.sockets, p.transport, p.guard, p.guests, p.asking, p.agents, p.machines, p.relayed, p.spreading, p.health.Sizes()}
}

// all ends with the rules, which work beside the others.
func (p *parts) all() []node.Part {
	return slices.Concat(p.urgent(), []node.Part{p.held}, p.patient(), []node.Part{p.rules})
}

// wires lead from the parts to the agent.
type wires struct {
	wake       func() // makes the agent's loop run once more
	rulesKnown func() // there is more to say of rules
	measured   *metrics.Rounds
}

func (p *parts) openRules(options Options, reader client.Reader, to wires) {
	var configMaps programs.ConfigMaps
	if reader != nil {
		configMaps = programs.ConfigMapsOf(reader, options.Namespace)
	}
	p.rules = rules.Open(rules.Options{
		PinPath: options.PinPath, StatePath: options.StatePath, NamespaceDirectories: options.NamespaceDirectories,
		ProcPath: options.procPath(), ProgramDirectory: options.ProgramDirectory, ConfigMaps: configMaps,
		Flows: p.datapath.PinnedFlows, Spreading: p.spreading.Spreading, Notify: to.rulesKnown, Rounds: to.measured, Log: options.Log,
		NativeXDP: options.XDP == XDPNative, Wake: to.wake,
	})
}

// openGuests prepares what serves virtual machines.
func (p *parts) openGuests(options Options, to wires) {
	p.guests = guests.Open(guests.Options{PinPath: options.PinPath, Notify: to.wake, Log: options.Log.WithName("guests")})
	p.asking = asking.Open(asking.Options{
		PinPath: options.PinPath, Flows: func() (transport.Flows, error) { return p.datapath.OpenFlows() },
		Rules: func(of types.UID) asking.Rules { return p.rules.AskedBy(of) }, Log: options.Log.WithName("asking"),
	})
	p.agents = guestagent.New(guestagent.Options{
		Sockets: options.GuestAgentDirectory, Pods: options.PodsDirectory, Records: filepath.Join(options.StatePath, "guest-agents"),
		Notify: to.wake, Log: options.Log.WithName("guest-agents"),
	})
	p.machines = machines.New(options.Log.WithName("machines"))
}

// openParts prepares the parts; nothing is loaded or changed before they are applied.
// reader may be nil where no policy is carried out.
func openParts(options Options, network *paths.Node, reader client.Reader, to wires) (*parts, error) {
	var p *parts
	p = &parts{
		datapath: datapath.Open(datapath.Options{PinPath: options.PinPath, Apart: !options.ShareSmallWindows, Log: options.Log}),
		held:     announcements.Open(announcements.Options{PinPath: options.PinPath, Log: options.Log.WithName("announcements")}),
		sockets:  sockets.NewUpgrader(filepath.Join(options.PinPath, "sockets")),
		transport: transport.Open(transport.Options{
			PinPath: options.PinPath, NamespaceDirectories: options.NamespaceDirectories, ProcPath: options.procPath(), Notify: to.wake,
			Log: options.Log.WithName("transport"), Flows: func() (transport.Flows, error) { return p.datapath.OpenFlows() },
			AgentRequests: func(path string, requests []schedule.Request, ended []schedule.Ends) error {
				return p.rules.SetRequests(path, requests, ended)
			},
		}),
		guard:   guard.Open(guard.Options{PinPath: options.PinPath, Links: network.WatchLinks, Log: options.Log.WithName("guard")}),
		relayed: relayed.New(options.StatePath, to.wake, options.Log.WithName("relayed")),
	}
	p.crowd = crowd.New(crowd.Options{Loads: p.datapath.Loads, Endpoints: p.datapath.EndpointLoads, Holder: p.held, Log: options.Log.WithName("crowd")})
	p.narrow = narrow.New(narrow.Options{Datapath: p.datapath, Off: !options.ShareSmallWindows, Log: options.Log.WithName("narrow")})
	p.slow = slow.New(p.datapath, options.Log.WithName("slow"))
	p.pods = pathmanager.NewPods(pathmanager.PodsOptions{
		StatePath: podStates(options), ProcPath: options.procPath(), NamespaceDirectories: options.NamespaceDirectories,
		Crowd: &p.crowd.Rooms, Watcher: p.held, Log: options.Log,
	})
	p.spreading = spreading.New(spreading.Options{
		Interval: options.SpreadingInterval, Flows: p.datapath.OpenFlows, Upgrade: p.sockets.Feature, Notify: to.wake, Log: options.Log,
		Crowded: func(tenant string) bool { return p.crowd.Of(tenant).IsBound() },
		Dead:    func() map[string]map[string]bool { return p.health.View().Dead() },
	})
	p.openGuests(options, to)
	p.openRules(options, reader, to)
	var err error
	if p.health, err = health.NewMonitor(health.MonitorOptions{
		Port: options.HealthPort, Active: p.datapath.ActivePeers, Answered: p.datapath.NoteAnswer, Heard: p.datapath.Heard, Notify: to.wake, Log: options.Log,
	}); err != nil {
		return nil, err
	}
	p.hints = hints.New(hints.Options{SetHealth: p.datapath.SetHealth, Prober: p.health, Notify: to.wake, Log: options.Log})
	if p.detours, err = detours.Open(detours.Options{
		Network: network, View: p.health.View, StatePath: options.StatePath, Notify: to.wake, Log: options.Log.WithName("detours"),
	}); err != nil {
		return nil, errors.Join(err, p.health.Close())
	}
	return p, nil
}

func (p *parts) close() (failed error) {
	for _, part := range p.all() {
		failed = errors.Join(failed, part.Close())
	}
	return failed
}

// Cleanup undoes everything that agents did on this node: programs, maps, routes,
// rules and settings of pods.
func Cleanup(ctx context.Context, options Options) error {
	network, err := paths.Open(netns.None())
	if err != nil {
		return err
	}
	defer network.Close()
	p, err := openParts(options, network, nil, wires{wake: func() {}})
	if err != nil {
		return err
	}
	all := p.all()
	for i := range all { // what was applied last goes first
		err = errors.Join(err, all[len(all)-1-i].Remove(ctx))
	}
	if failed := os.Remove(options.MetricsSocket()); !errors.Is(failed, os.ErrNotExist) {
		err = errors.Join(err, failed) // an agent that was killed leaves it
	}
	registry := node.OpenRegistry(options.PinPath, options.Log)
	return errors.Join(err, p.close(), registry.Remove(), saved.Remove(options.SavedPath), removeEmpty(options))
}

// removeEmpty removes the directories that an agent made and that nothing is in.
func removeEmpty(options Options) (failed error) {
	for _, directory := range []string{options.PinPath, podStates(options)} {
		err := os.Remove(directory)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EBUSY) {
			continue // EBUSY: a file system is mounted there
		}
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("failed to remove an empty directory: %w", err))
		}
	}
	return failed
}

// podStates is the directory of what pods were like before.
func podStates(options Options) string { return filepath.Join(options.StatePath, "pods") }
