// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"braid.dev/braid/agent/chains"
	"braid.dev/braid/agent/datapath"
	"braid.dev/braid/agent/endpoints"
	"braid.dev/braid/agent/events"
	"braid.dev/braid/agent/inspect"
	"braid.dev/braid/agent/pace"
	"braid.dev/braid/agent/paths"
	"braid.dev/braid/agent/programs"
	"braid.dev/braid/agent/schedule"
	"braid.dev/braid/agent/seed"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/agentapi"
)

// rules carries out the chains of the plan: in packets, and in the pods' sockets.
type rules struct {
	log    logr.Logger
	chains *chains.Chains
	pacer  *pace.Pacer
	// scheduler carries out the strategy that is Braid's own.
	scheduler *schedule.Scheduler
	// probes let idle subflows hear of changes.
	probes *probes
	blocks ownBlocks
	// names and shown are what users see of it, events what rules report.
	names *inspect.Directory
	shown *inspect.Pins
	// live tells also of pods without rules.
	live   *inspect.Node
	events *events.Log
	// namesFile keeps the names for the time without an agent, socket is for the
	// debug commands.
	namesFile, socket string

	follower follower
	seeded   map[uint32]bool                     // endpoints by number
	statuses map[types.UID][]v1alpha1.RuleStatus // as they were published last
	unpaced  string                              // why sockets are not governed, as it was logged last
}

// eventsKept is how many events can be asked for later.
const eventsKept = 4096

func endpointPins(options Options) string { return filepath.Join(options.PinPath, "endpoints") }

func openRules(options Options, configMaps programs.ConfigMaps) *rules {
	pins := chains.Directory(endpointPins(options))
	namesFile := filepath.Join(options.StatePath, inspect.DirectoryName)
	names, err := inspect.OpenDirectory(namesFile)
	if err != nil {
		options.Log.Error(err, "endpoints are named anew")
		names, _ = inspect.OpenDirectory("") // of nothing
	}
	r := &rules{
		log:    options.Log,
		chains: chains.Open(chains.Options{PinPath: endpointPins(options), Log: options.Log.WithName("chains")}),
		pacer:  pace.Open(pace.Options{PinPath: pins, NamespaceDirectories: options.NamespaceDirectories, Proc: options.procPath(), Log: options.Log.WithName("pace")}),
		blocks: ownBlocks{pins: pins, directory: options.ProgramDirectory, configMaps: configMaps, log: options.Log.WithName("blocks")},
		names:  names, shown: inspect.NewPins(pins, names), events: events.NewLog(eventsKept),
		namesFile: namesFile, socket: filepath.Join(options.StatePath, inspect.SocketName),
		seeded: map[uint32]bool{}, statuses: map[types.UID][]v1alpha1.RuleStatus{},
	}
	r.live = &inspect.Node{Pins: r.shown, Flows: datapath.Open(datapathOptions(options)).PinnedFlows}
	r.scheduler = schedule.Open(r.matching, options.Log.WithName("schedule"))
	r.probes = newProbes(r.chains.Untold, options.Log.WithName("probes"))
	return r
}

// planned are the chains of a plan and where they go.
type planned struct {
	plan  *v1alpha1.MPTCPNodePlan // nil when there is none
	paths []paths.Path
	found map[types.UID]endpoints.Endpoint
}

// endpoints are those of the plan.
func (p *planned) endpoints() map[types.UID]v1alpha1.PlanEndpoint {
	all := map[types.UID]v1alpha1.PlanEndpoint{}
	if p.plan != nil {
		for _, endpoint := range p.plan.Spec.Endpoints {
			all[endpoint.UID] = endpoint
		}
	}
	return all
}

// apply gives the endpoints their chains, and notes in their results what became of
// that. It returns errUnfinished when an endpoint has not got its chain, or has not
// got rid of it.
func (r *rules) apply(ctx context.Context, p planned, results []v1alpha1.EndpointStatus) error {
	state, failures := r.state(p)
	loaded, err := r.blocks.apply(ctx, r.chains, p.plan)
	if err != nil {
		r.log.Error(err, "not all blocks are as the plan says")
	}
	state.Blocks, state.Refused = loaded.slots, loaded.refused
	if len(state.Endpoints) == 0 {
		if err := r.chains.TakeOver(); err != nil {
			r.log.Error(err, "sockets may stay as another version of the agent left them")
		}
		r.govern(p, loaded) // before its maps are gone
	}
	failed, err := r.chains.Apply(state)
	for uid, reason := range failed {
		failures[uid] = errors.Join(failures[uid], reason)
	}
	if len(state.Endpoints) > 0 {
		r.govern(p, loaded)
		r.seed(p)
	}
	r.probes.changed()
	if r.chains.AttachMode() == "" { // the maps are gone, and numbers begin anew
		clear(r.seeded)
		err = errors.Join(err, r.blocks.close())
	}
	r.show(ctx)
	r.live.SetPods(r.without(p))
	unfinished := r.note(p, loaded, failures, err, results)
	if r.chains.Lifted() {
		unfinished = errUnfinished
	}
	return errors.Join(unfinished, err)
}

// state is what the chains must know. An endpoint that is not found for a moment
// keeps what it has.
func (r *rules) state(p planned) (chains.State, chains.Failures) {
	state, failures := chains.State{}, chains.Failures{}
	for _, path := range p.paths {
		if path.Index != 0 {
			state.Paths = append(state.Paths, chains.Path{Name: path.Name, Interface: path.Index})
		}
	}
	if p.plan == nil {
		return state, failures
	}
	interfaces := map[types.UID]int{}
	for _, attached := range r.chains.Endpoints() {
		interfaces[attached.UID] = attached.Interface
	}
	for uid, found := range p.found {
		interfaces[uid] = found.HostIndex
	}
	byName := chainsOf(p.plan)
	for i := range p.plan.Spec.Endpoints {
		endpoint := &p.plan.Spec.Endpoints[i]
		index, known := interfaces[endpoint.UID]
		if endpoint.Chain == "" || !known {
			continue
		}
		if len(byName[endpoint.Chain]) == 0 {
			failures[endpoint.UID] = fmt.Errorf("the plan has no chain %s", endpoint.Chain)
			continue
		}
		state.Endpoints = append(state.Endpoints, chains.Endpoint{
			UID: endpoint.UID, Name: endpoint.Namespace + "/" + endpoint.Name, Interface: index, Rules: byName[endpoint.Chain],
		})
	}
	return state, failures
}

func chainsOf(plan *v1alpha1.MPTCPNodePlan) map[string][]v1alpha1.PlanRule {
	byName := map[string][]v1alpha1.PlanRule{}
	for i := range plan.Spec.Chains {
		byName[plan.Spec.Chains[i].Name] = plan.Spec.Chains[i].Rules
	}
	return byName
}

// govern does in the pods' sockets what rules ask of them. Where the node cannot,
// limits are enforced in packets.
func (r *rules) govern(p planned, loaded loadedBlocks) {
	var governed []pace.Endpoint
	for _, attached := range r.chains.Endpoints() {
		found, here := p.found[attached.UID]
		// What rules ask in vain is in their statuses.
		wish, asks, _ := pace.Of(attached.Number, found.Path, attached.Rules, loaded.algorithm)
		if here && asks {
			governed = append(governed, wish)
		}
	}
	err := r.pacer.Apply(governed)
	reason := ""
	if err != nil {
		reason = err.Error()
	}
	if reason != "" && reason != r.unpaced {
		r.log.Error(err, "rates are not enforced by pacing")
	}
	r.unpaced = reason
	if err := r.scheduler.Apply(scheduled(p, r.chains.Endpoints())); err != nil {
		r.log.Error(err, "not all connections are scheduled as rules ask for")
	}
	if err := r.blocks.govern(p, loaded, r.chains.Endpoints()); err != nil {
		r.log.Error(err, "not all schedules govern the pods that ask for them")
	}
}

// seed tells the programs, once for each endpoint, of connections that are older
// than its chain.
func (r *rules) seed(p planned) {
	if r.chains.AttachMode() == "" {
		return
	}
	maps, err := seed.Open(r.blocks.pins)
	if err != nil {
		r.log.Error(err, "connections older than their chain are known from the middle alone")
		return
	}
	defer maps.Close()
	numbers := map[uint32]bool{}
	for _, attached := range r.chains.Endpoints() {
		found, here := p.found[attached.UID]
		if !here || r.seeded[attached.Number] {
			numbers[attached.Number] = r.seeded[attached.Number]
			continue
		}
		_, err := maps.Seed(seed.Pod{Namespace: found.Path, Number: attached.Number, Interface: attached.Interface})
		if err != nil {
			r.log.Error(err, "connections older than the chain are known from the middle alone", "endpoint", attached.Name)
		}
		numbers[attached.Number] = true
	}
	r.seeded = numbers
}

// show lets users see what there is now.
func (r *rules) show(ctx context.Context) {
	known := map[uint32]inspect.Endpoint{}
	for _, attached := range r.chains.Endpoints() {
		known[attached.Number] = inspect.Endpoint{Name: attached.Name, Rules: inspect.RuleNames(attached.Rules)}
	}
	err := r.names.Set(known)
	if err == nil && len(known) == 0 {
		err = removeFile(r.namesFile)
	}
	if err != nil {
		r.log.Error(err, "debug commands without an agent show numbers, or what is gone")
	}
	if err := r.follower.follow(ctx, r); err != nil {
		r.log.Error(err, "events are not received")
	}
}

// without lists the pods of the plan that have no chain.
func (r *rules) without(p planned) (pods []inspect.Pod) {
	attached := map[types.UID]bool{}
	for _, endpoint := range r.chains.Endpoints() {
		attached[endpoint.UID] = true
	}
	for uid, endpoint := range p.endpoints() {
		if found, here := p.found[uid]; here && !attached[uid] {
			pods = append(pods, inspect.Pod{Endpoint: endpoint.Namespace + "/" + endpoint.Name, Namespace: found.Path})
		}
	}
	return pods
}

func removeFile(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("removing what is no longer needed: %w", err)
	}
	return nil
}

// note says in the results what became of the chains. whole is what failed for all.
func (r *rules) note(p planned, loaded loadedBlocks, failures chains.Failures, whole error, results []v1alpha1.EndpointStatus) error {
	var unfinished error
	wanted := p.endpoints()
	statuses := r.ruleStatuses(wanted, loaded)
	for i := range results {
		result := &results[i]
		chain := wanted[result.UID].Chain
		if chain == "" || result.State == v1alpha1.EndpointPending {
			continue
		}
		result.Rules = statuses[result.UID]
		if failed := errors.Join(failures[result.UID], whole); failed != nil {
			result.State, result.Message = v1alpha1.EndpointFailed, shorten(failed.Error())
			unfinished = errUnfinished
			continue
		}
		result.Chain = chain
	}
	r.statuses = statuses
	return unfinished
}

// ruleStatuses say for each endpoint how its rules are carried out.
func (r *rules) ruleStatuses(wanted map[types.UID]v1alpha1.PlanEndpoint, loaded loadedBlocks) map[types.UID][]v1alpha1.RuleStatus {
	limited := r.limitedSubflows()
	statuses := map[types.UID][]v1alpha1.RuleStatus{}
	for _, attached := range r.chains.Endpoints() {
		all := inspect.StatusOf(attached.Rules, limited[attached.Name], r.statuses[attached.UID])
		statuses[attached.UID] = loaded.addProblems(all, attached.Rules, wanted[attached.UID].Subflows.Manager)
	}
	return statuses
}

// limitedSubflows are those of endpoints with rules that limit rates, by endpoint. No
// others are read: a node may have tens of thousands.
func (r *rules) limitedSubflows() map[string][]agentapi.Subflow {
	of := map[string][]agentapi.Subflow{}
	for _, attached := range r.chains.Endpoints() {
		if inspect.Limits(attached.Rules) {
			of[attached.Name] = nil
		}
	}
	if len(of) == 0 {
		return of
	}
	err := r.shown.EachSubflow(func(subflow *agentapi.Subflow) {
		if before, limited := of[subflow.Endpoint]; limited && len(subflow.Limits) > 0 {
			kept := *subflow
			kept.Limits = slices.Clone(subflow.Limits)
			of[subflow.Endpoint] = append(before, kept)
		}
	})
	if err != nil {
		r.log.Error(err, "it is not known how rates are limited")
	}
	return of
}

// close leaves everything as it is.
func (r *rules) close() error {
	r.follower.stop()
	return errors.Join(r.scheduler.Close(), r.pacer.Close(), r.blocks.close(), r.chains.Close())
}

// undoing is how long a removal waits for packets on which effects of rules can be
// undone.
const undoing = 2 * time.Second

// remove undoes what this agent and earlier ones did.
func (r *rules) remove() error {
	failed := errors.Join(r.chains.TakeOver(), r.pacer.Remove())
	ctx, cancel := context.WithCancel(context.Background())
	var probing sync.WaitGroup
	probing.Go(func() { _ = r.probes.Run(ctx) }) // returns nil alone
	for deadline := time.Now().Add(undoing); ; time.Sleep(100 * time.Millisecond) {
		_, err := r.chains.Apply(chains.State{})
		if err != nil || r.chains.AttachMode() == "" || time.Now().After(deadline) {
			break // what is left of it is removed all the same
		}
		r.probes.changed()
	}
	cancel()
	probing.Wait()
	return errors.Join(failed, r.blocks.close(), r.chains.Remove(), removeFile(r.namesFile), removeFile(r.socket))
}

// serve answers the debug commands until the context ends.
func (r *rules) serve(ctx context.Context) error {
	server := &inspect.Server{Path: r.socket, Source: r.live, Events: r.events, Log: r.log.WithName("inspect")}
	if err := server.Start(ctx); err != nil {
		r.log.Error(err, "debug commands read the maps alone")
	}
	return nil
}
