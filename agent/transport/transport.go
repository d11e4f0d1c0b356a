// SPDX-License-Identifier: Apache-2.0

// Package transport gives the TCP sockets of pods the settings of their policies, by
// programs on the machine's cgroup2 tree: pods need no right for it, and no change.
package transport

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"braid.dev/braid/agent/attach"
	"braid.dev/braid/agent/endpoints/namespace"
	"braid.dev/braid/agent/entries"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/agent/pace"
	"braid.dev/braid/agent/pace/shared"
	"braid.dev/braid/agent/pins"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/bpf/transport"
	"braid.dev/braid/internal/mptcpnl"
)

// schema is the version of everything pinned: see docs/upgrade.md.
const schema = "v3"

// Options of a Part.
type Options struct {
	// PinPath is the agent's directory on a BPF file system.
	PinPath string
	// CgroupRoot is where the root of the machine's cgroup2 tree is mounted; empty
	// to look for it.
	CgroupRoot string
	// NamespaceDirectories are where container runtimes mount network namespaces.
	NamespaceDirectories []string
	// ProcPath is where a proc file system with all processes of the machine is mounted;
	// empty means /proc.
	ProcPath string
	// Flows opens the flows that the uplinks remember, by which the path of a subflow is
	// known; nil where nobody knows.
	Flows func() (Flows, error)
	// AgentRequests carries out what peers ask for and no program can do; nil where nobody does.
	AgentRequests AgentRequests
	// Notify is called when there is more to say of endpoints.
	Notify func()
	Log    logr.Logger
}

// Part is the node.Part that does it. Nothing is loaded before a policy asks for it.
type Part struct {
	options Options
	loaded  *pins.Loaded[*objects]

	mutex    sync.Mutex
	pods     map[uint64]*pod // by the cookie of the network namespace
	cookies  map[found]uint64
	rates    rates
	arrivals *attach.Interfaces
	ended    counts // of exchanges that are no more

	requesting        map[uint64]bool // the namespaces in which peers have something done
	agentRequestsNext time.Time       // when requests are read again
}

// pod is one whose sockets get settings.
type pod struct {
	uid      types.UID
	path     string
	settings transport.TransportSettings
	exchange transport.TransportExchange
	rates    map[string]uint32 // to ask for, by the name of the path
	lacking  []string          // what it accepts and does not get, and why; some empty
	changed  time.Time         // of the settings; zero once its sockets have settled
	refused  refused           // as it was told last
}

// refused is what the kernel refused to some socket of a pod: settings, and requests of
// peers.
type refused struct{ settings, requests uint32 }

// found is a network namespace as long as the pod has it.
type found struct {
	uid   types.UID
	inode uint64
}

// Open prepares.
func Open(options Options) *Part {
	p := &Part{options: options, pods: map[uint64]*pod{}, cookies: map[found]uint64{}, requesting: map[uint64]bool{}}
	p.loaded = pins.NewLoaded(pins.New(filepath.Join(options.PinPath, "transport"), schema, options.Log), p.load)
	p.arrivals = attach.New(attach.Options{
		LinkDirectory: filepath.Join(p.loaded.Directory(), "arrivals"), Hooks: arrivalHooks,
	})
	return p
}

// Apply gives settings to the sockets of the model's endpoints. Where the kernel lacks one
// the endpoint has failed, and gets the others.
func (p *Part) Apply(_ context.Context, model *node.Model) (report node.Report) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	wanted := p.wantedBy(model, &report)
	if len(wanted) == 0 {
		if p.loaded.Exists() {
			report.Err = p.remove()
		}
		return report
	}
	if err := p.loaded.Load(); err != nil {
		for _, one := range wanted {
			report.Fail(one.uid, fmt.Errorf("spec.transport cannot be carried out: %w", err))
		}
		return report
	}
	report.Err = errors.Join(p.applyIncast(model, &report), p.write(wanted, &report))
	for cookie, one := range p.pods {
		p.describe(&report, one, p.refusedTo(cookie))
	}
	if report.Err == nil {
		report.Err = p.loaded.Finish()
	}
	return report
}

// describe says what the kernel refused to sockets of a pod.
func (p *Part) describe(report *node.Report, one *pod, refused refused) {
	one.refused = refused
	var messages []string
	if names := refusals(refused.settings); names != "" {
		messages = append(messages, "the kernel did not take the whole of "+names+" for some socket: see docs/transport.md")
	}
	if names := refusedRequests(refused.requests); names != "" {
		messages = append(messages, "the kernel refused to some socket what a peer asked for within "+names)
	}
	messages = append(messages, slices.DeleteFunc(slices.Clone(one.lacking), func(why string) bool { return why == "" })...)
	for _, message := range messages {
		report.Describe(one.uid, func(status *v1alpha1.EndpointStatus) { node.AddMessage(status, message) })
	}
}

// wantedBy are the pods that were found, with what their policies give.
func (p *Part) wantedBy(model *node.Model, report *node.Report) map[uint64]*pod {
	wanted, cookies, chains := map[uint64]*pod{}, map[found]uint64{}, model.Chains()
	for i := range model.Endpoints {
		endpoint := &model.Endpoints[i]
		if endpoint.HasGuest() {
			continue // its sockets are the guest's: package asking asks their peers
		}
		asking := pace.AsksPeers(chains[endpoint.Chain])
		if !asking && !forSockets(endpoint) || endpoint.Found == nil || endpoint.Found.Path == "" {
			continue
		}
		key := found{endpoint.UID, endpoint.Found.Inode}
		cookie, err := p.cookie(key, endpoint.Found.Path)
		if namespace.IsGone(err) {
			continue // the pod has ended
		}
		if err != nil {
			report.Fail(endpoint.UID, fmt.Errorf("failed to find the pod's sockets: %w", err))
			continue
		}
		cookies[key] = cookie
		report.Fail(endpoint.UID, lacks(transportOf(endpoint).CongestionControl))
		wanted[cookie] = podOf(endpoint, asking)
	}
	p.cookies = cookies
	return wanted
}

// podOf is what a pod gets; asking is true where its rules ask peers.
func podOf(endpoint *node.Endpoint, asking bool) *pod {
	of := transportOf(endpoint)
	exchange := exchangeOf(of, endpoint.Incast, asking)
	lacking := []string{
		unknownAccepted(of.Accept), withoutAgent(endpoint, &exchange), withoutBacklog(mptcpnl.TellsOfBacklogs(), &exchange),
		withoutManager(mptcpnl.ConnectionsKeepBuffers(), endpoint),
	}
	return &pod{
		uid: endpoint.UID, path: endpoint.Found.Path, settings: settingsOf(of, exchange.Revision), exchange: exchange,
		rates: RatesByPath(of.Request), lacking: lacking,
	}
}

// withoutManager says that only the path manager reaches the buffers of MPTCP connections, where
// these keep what they have.
func withoutManager(keep bool, endpoint *node.Endpoint) string {
	if !keep || transportOf(endpoint).ReceiveBuffer == nil || endpoint.Subflows.Manager != v1alpha1.SubflowManagerNone {
		return ""
	}
	return "spec.transport.receiveBuffer: with spec.subflows.manager None MPTCP connections keep the kernel's own buffers from Linux 6.18 on"
}

// forSockets: something is to be given to sockets. The path manager sets how long
// connections without a subflow wait, for the whole pod.
func forSockets(endpoint *node.Endpoint) bool {
	of := transportOf(endpoint)
	exchange := exchangeOf(of, endpoint.Incast, false)
	settings := settingsOf(of, exchange.Revision)
	return settings.Given != 0
}

// transportOf is the endpoint's spec.transport; an empty one where it has none.
func transportOf(endpoint *node.Endpoint) *v1alpha1.Transport {
	if endpoint.Transport == nil {
		return &v1alpha1.Transport{}
	}
	return endpoint.Transport
}

func (p *Part) cookie(of found, path string) (uint64, error) {
	if cookie, known := p.cookies[of]; known {
		return cookie, nil
	}
	identity, err := namespace.IdentifyAt(path)
	return identity.Cookie, err
}

// lacks says that the kernel has no such congestion control.
func lacks(congestionControl string) error {
	if congestionControl == "" {
		return nil
	}
	if err := pace.MustKnow(congestionControl); err != nil {
		return fmt.Errorf("spec.transport.congestionControl: %w", err)
	}
	return nil
}

// write brings the map to what is wanted, and sockets that exist with it. A pod for which
// that fails has failed, and is written again the next time.
func (p *Part) write(wanted map[uint64]*pod, report *node.Report) error {
	gone, failed := p.missing(wanted)
	failed = errors.Join(failed, p.release(gone))
	before := p.pods
	p.pods = map[uint64]*pod{}
	for cookie, one := range wanted {
		if err := p.give(cookie, one, before[cookie]); err != nil {
			report.Fail(one.uid, err)
			continue
		}
		p.pods[cookie] = one
	}
	return failed
}

// give writes the settings of a pod's sockets, unless they are those from before.
func (p *Part) give(cookie uint64, one, before *pod) error {
	if before != nil && before.settings == one.settings {
		one.changed = before.changed
		return nil
	}
	if err := errors.Join(p.writeExchange(cookie, one), p.letAgentRequests(cookie, one)); err != nil {
		return err
	}
	if err := p.loaded.Value.TransportSettings.Put(cookie, &one.settings); err != nil {
		return fmt.Errorf("failed to write spec.transport for the pod's sockets: %w", err)
	}
	one.changed = time.Now()
	if err := p.sweep(one.path); err != nil {
		return err
	}
	return p.startUsual(cookie, one)
}

// writeExchange comes before the settings, which say that there is one.
func (p *Part) writeExchange(cookie uint64, one *pod) error {
	exchanges := p.loaded.Value.TransportExchanges
	var before transport.TransportExchange
	known := exchanges.Lookup(cookie, &before) == nil
	if one.exchange.Revision == 0 {
		if known {
			p.ended.add(&before)
		}
		if err := exchanges.Delete(cookie); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("failed to forget what the pod asks its peers for: %w", err)
		}
		return nil
	}
	if known {
		one.exchange.Honoured, one.exchange.Refused = before.Honoured, before.Refused
	}
	if err := exchanges.Put(cookie, &one.exchange); err != nil {
		return fmt.Errorf("failed to write what the pod asks its peers for, and accepts: %w", err)
	}
	return nil
}

// missing are the namespaces that have settings and shall have none, also by an earlier
// agent.
func (p *Part) missing(wanted map[uint64]*pod) (gone []uint64, err error) {
	set, err := entries.Keys[uint64](p.loaded.Value.TransportSettings)
	if err != nil {
		return nil, fmt.Errorf("failed to list the network namespaces with settings: %w", err)
	}
	return slices.DeleteFunc(set, func(cookie uint64) bool { return wanted[cookie] != nil }), nil
}

// release puts the sockets of these namespaces back as they were.
func (p *Part) release(cookies []uint64) (failed error) {
	unknown := map[uint64]bool{}
	for _, cookie := range cookies {
		if err := p.loaded.Value.TransportSettings.Delete(cookie); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			failed = errors.Join(failed, fmt.Errorf("failed to forget the settings of a network namespace: %w", err))
		}
		failed = errors.Join(failed, p.writeExchange(cookie, &pod{}), p.letAgentRequests(cookie, &pod{}))
		if one := p.pods[cookie]; one != nil {
			failed = errors.Join(failed, p.sweep(one.path), p.endAgentRequests(cookie, one.path))
		} else {
			unknown[cookie] = true
		}
	}
	refused, err := namespace.Search(unknown, p.options.NamespaceDirectories, cmp.Or(p.options.ProcPath, "/proc"), p.sweepIn)
	if refused > 0 {
		p.options.Log.Info("failed to look at some network namespaces; sockets there may keep settings", "files", refused)
	}
	for _, cookie := range cookies {
		failed = errors.Join(failed, p.endUsual(cookie))
	}
	return errors.Join(failed, err)
}

// sweep brings the sockets that exist in a namespace to what the map says. One that is
// gone has none.
func (p *Part) sweep(path string) error {
	return namespace.IterateSocketsAt(path, p.loaded.Value.existing)
}

func (p *Part) sweepIn(file *os.File) error {
	return errors.Join(namespace.IterateSockets(file, p.loaded.Value.existing), p.endAgentRequestsIn(file))
}

// refusedTo is what the kernel refused to some socket of a namespace.
func (p *Part) refusedTo(cookie uint64) (of refused) {
	var settings transport.TransportSettings
	if err := p.loaded.Value.TransportSettings.Lookup(cookie, &settings); err == nil {
		of.settings = settings.Refused
	}
	var exchange transport.TransportExchange
	if settings.Given&(1<<transport.SettingExchange) == 0 {
		return of
	}
	if err := p.loaded.Value.TransportExchanges.Lookup(cookie, &exchange); err == nil {
		of.requests = exchange.Failed
	}
	return of
}

// How often is looked for what the kernel refused, and for subflows that joined idle
// connections: sockets that send have settled by themselves.
const (
	lookInterval  = time.Second
	sweepInterval = 30 * time.Second
)

// Run has sockets settle, and says when there is more to tell of an endpoint.
func (p *Part) Run(ctx context.Context) error {
	swept := time.Now()
	return node.Every(ctx, lookInterval, func() {
		all := time.Since(swept) >= sweepInterval
		if all {
			swept = time.Now()
		}
		if p.look(all) && p.options.Notify != nil {
			p.options.Notify()
		}
	})
}

// look sweeps the namespaces whose settings changed a moment ago, or all, and says
// whether the kernel refused something anew.
func (p *Part) look(all bool) (changed bool) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if !p.loaded.Is() {
		return false
	}
	if err := p.lookAtRates(); err != nil {
		p.options.Log.Error(err, "failed to ask for rates on paths; what is asked for stays")
	}
	if err := p.lookAtAgentRequests(); err != nil {
		p.options.Log.Error(err, "failed to carry out what peers asked for; it is tried again")
	}
	for cookie, one := range p.pods {
		changed = changed || p.refusedTo(cookie) != one.refused
		if !all && one.changed.IsZero() {
			continue
		}
		one.changed = time.Time{}
		if err := p.sweep(one.path); err != nil {
			p.options.Log.Error(err, "failed to give settings to a pod's sockets", "pod", one.uid)
		}
	}
	return changed
}

// Close lets go of everything: the programs go on, and sockets keep what they have.
func (p *Part) Close() error {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	failed := errors.Join(p.noteAll(), p.loaded.Close(), p.rates.carriers.Close())
	p.rates = rates{}
	return failed
}

// Remove puts all sockets back as they were, and leaves nothing attached or pinned.
func (p *Part) Remove(context.Context) error {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if !p.loaded.Exists() {
		return nil
	}
	return p.remove()
}

func (p *Part) remove() error {
	failed := p.loaded.Load()
	if failed == nil {
		var gone []uint64
		gone, failed = p.missing(nil)
		failed = errors.Join(failed, p.release(gone))
	}
	p.pods, p.rates.asked = map[uint64]*pod{}, nil
	return errors.Join(failed, p.loaded.Remove(p.arrivals.Remove), shared.Leave(shared.Directory(p.options.PinPath), shared.ByRequests))
}
