// SPDX-License-Identifier: Apache-2.0

// Package pace does what rules ask of the pods' own sockets: it paces them,
// shares one rate among several, and chooses their congestion control; and it finds
// what rules ask of their peers. No packet is touched.
package pace

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"braid.dev/braid/agent/endpoints/namespace"
	"braid.dev/braid/agent/entries"
	"braid.dev/braid/agent/pace/shared"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/bpf/endpoint"
	"braid.dev/braid/bpf/pace"
)

// ErrUnsupported means that this node cannot govern sockets; rate limits then
// need another mechanism.
var ErrUnsupported = errors.New("sockets cannot be governed here")

// Options of a Pacer.
type Options struct {
	// PinPath is the directory of the endpoint half's pins, on a BPF file system
	// and for this node alone. The map of subflows there is shared.
	PinPath string
	// SharedPath is where the map of paced sockets is pinned, which others share; empty
	// for a directory within PinPath.
	SharedPath string
	// CgroupRoot is where the root of the machine's cgroup2 tree is mounted; empty
	// to look for it.
	CgroupRoot string
	// NamespaceDirectories are where container runtimes mount network namespaces.
	NamespaceDirectories []string
	// Proc is where a proc file system with all processes of the machine is mounted;
	// empty means /proc.
	Proc string
	Log  logr.Logger
}

// Endpoint is a pod whose rules ask something of its sockets.
type Endpoint struct {
	// Number is the endpoint's in the keys of subflows.
	Number uint32
	// Path can be opened to enter the pod's network namespace.
	Path string
	// Revision changes with the endpoint's chain: then its sockets are looked at.
	Revision uint64
	// SharedLimits is true when a rate is shared: per connection or per endpoint.
	SharedLimits bool
	// Congestions are the names of congestion controls, of 15 bytes at most, by the
	// index in the endpoint's chain of the rule that chooses it. Where several
	// rules match, the last one decides.
	Congestions map[int]string
	// Requests are what rules ask of the peers of the subflows that they match, by their
	// index. Of several rates the least is asked for; of congestion controls and of
	// strategies that of the last rule.
	Requests map[int]Request
	// Binding is how many rules of the chain, the first ones, are the cluster's: the
	// others decide only where none of these does.
	Binding int
}

// Pacer governs the sockets of this machine's endpoints. Its methods may be
// called from several goroutines.
type Pacer struct {
	options Options
	changed chan struct{} // wakes Run

	mu          sync.Mutex
	objects     *objects // nil while nothing is loaded
	unsupported error
	endpoints   map[uint64]Endpoint // by the cookie of the network namespace
	applied     time.Time
	limiter     *limiter
}

// Open prepares a Pacer. Nothing is loaded or attached before Apply gets an
// endpoint; what an earlier agent left attached stays.
func Open(options Options) *Pacer {
	options.SharedPath = cmp.Or(options.SharedPath, shared.Directory(options.PinPath))
	return &Pacer{options: options, changed: make(chan struct{}, 1), endpoints: map[uint64]Endpoint{}}
}

// Apply governs the sockets of these endpoints, those that exist too, and puts
// those of all others back as they were. Call it after their chains were changed,
// and without endpoints before the endpoint half is removed. Without endpoints
// nothing stays attached. An endpoint whose namespace is gone is
// left out. The error is ErrUnsupported where the node cannot do it.
func (p *Pacer) Apply(endpoints []Endpoint) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	wanted, err := identify(endpoints)
	if err != nil {
		return err
	}
	if len(wanted) == 0 {
		return p.remove()
	}
	if err := p.load(); err != nil {
		p.unsupported = err
		return err
	}
	p.unsupported = nil
	if err := p.write(wanted); err != nil {
		return err
	}
	p.wake()
	return nil
}

// identify finds the namespaces' cookies. A pod that ended meanwhile has no
// sockets to govern.
func identify(endpoints []Endpoint) (map[uint64]Endpoint, error) {
	wanted := make(map[uint64]Endpoint, len(endpoints))
	for _, endpoint := range endpoints {
		if err := endpoint.validate(); err != nil {
			return nil, err
		}
		identity, err := namespace.IdentifyAt(endpoint.Path)
		if namespace.IsGone(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("identifying endpoint %d: %w", endpoint.Number, err)
		}
		wanted[identity.Cookie] = endpoint
	}
	return wanted, nil
}

// The bounds of the binary form.
const (
	longestCongestion = len(pace.PaceCongestion{}.Name) - 1 // and a zero
	mostRules         = endpoint.MaxRules
)

func (e *Endpoint) validate() error {
	for rule := range e.Requests {
		if rule < 0 || rule >= mostRules {
			return fmt.Errorf("endpoint %d has no rule %d", e.Number, rule)
		}
	}
	for rule, name := range e.Congestions {
		if rule < 0 || rule >= mostRules {
			return fmt.Errorf("endpoint %d has no rule %d", e.Number, rule)
		}
		if name == "" || len(name) > longestCongestion {
			return fmt.Errorf("congestion control %q of endpoint %d: the name must have 1 to %d bytes", name, e.Number, longestCongestion)
		}
	}
	return nil
}

func (p *Pacer) load() error {
	if p.objects != nil && p.objects.isPinned(p.options.PinPath) {
		return nil
	}
	if err := p.leave(); err != nil {
		p.options.Log.Error(err, "failed to undo pacing of an earlier agent; sockets may stay paced")
	}
	root := p.options.CgroupRoot
	if root == "" {
		var err error
		if root, err = CgroupRoot(); err != nil {
			return err
		}
	}
	loaded, err := load(p.options.PinPath, p.options.SharedPath)
	if err != nil {
		return err
	}
	if err := loaded.attach(p.options.PinPath, root); err != nil {
		return errors.Join(err, loaded.close())
	}
	limiter, err := newLimiter(loaded)
	if err != nil {
		return errors.Join(err, loaded.close())
	}
	if loaded.unswept != nil {
		p.options.Log.Error(loaded.unswept, "failed to reach the pods' sockets at once; changes of rates wait for a round trip of each")
	}
	p.objects, p.limiter = loaded, limiter
	return nil
}

// leave puts sockets back by programs whose pins are gone, as when the endpoint half
// was removed and is there again.
func (p *Pacer) leave() error {
	if p.objects == nil {
		return nil
	}
	gone, err := p.missing(nil)
	return errors.Join(err, p.release(gone), p.close())
}

// write brings the maps to what is wanted, then the sockets that exist.
func (p *Pacer) write(wanted map[uint64]Endpoint) error {
	gone, err := p.missing(wanted)
	if err != nil {
		return err
	}
	if err := errors.Join(p.writeCongestions(wanted), p.writeRequests(wanted)); err != nil {
		return err
	}
	for cookie, endpoint := range wanted {
		if err := p.objects.endpoints.Put(cookie, endpoint.stack()); err != nil {
			return fmt.Errorf("governing the sockets of endpoint %d: %w", endpoint.Number, err)
		}
	}
	failed := p.release(gone)
	before := p.endpoints
	p.endpoints = wanted
	for cookie, endpoint := range wanted {
		if old, ok := before[cookie]; !ok || !old.equals(&endpoint) {
			p.applied = time.Now()
			failed = errors.Join(failed, p.sweep(endpoint.Path))
		}
	}
	return failed
}

func (e *Endpoint) equals(other *Endpoint) bool {
	return e.Number == other.Number && e.Revision == other.Revision && e.SharedLimits == other.SharedLimits && e.Binding == other.Binding &&
		maps.Equal(e.Congestions, other.Congestions) && maps.Equal(e.Requests, other.Requests)
}

func (e *Endpoint) stack() pace.PaceStack {
	stack := pace.PaceStack{Endpoint: e.Number, Binding: uint32(e.Binding)}
	for rule := range e.Congestions {
		stack.Congestions |= 1 << rule
	}
	return stack
}

// missing are the namespaces that are governed and no longer wanted, also by an
// earlier agent.
func (p *Pacer) missing(wanted map[uint64]Endpoint) (gone []uint64, err error) {
	governed, err := entries.Keys[uint64](p.objects.endpoints)
	if err != nil {
		return nil, fmt.Errorf("listing the governed network namespaces: %w", err)
	}
	return slices.DeleteFunc(governed, func(cookie uint64) bool { _, ok := wanted[cookie]; return ok }), nil
}

// writeRequests tells the programs what rules ask of peers. What is not asked for any more
// they notice with the next acknowledgement.
func (p *Pacer) writeRequests(wanted map[uint64]Endpoint) error {
	for cookie, endpoint := range wanted {
		if len(endpoint.Requests) == 0 {
			continue
		}
		if err := p.objects.requests.Put(cookie, new(endpoint.requests())); err != nil {
			return fmt.Errorf("noting what endpoint %d asks of its peers: %w", endpoint.Number, err)
		}
	}
	err := entries.Forget(p.objects.requests, func(cookie uint64) bool { return len(wanted[cookie].Requests) == 0 })
	if err != nil {
		return fmt.Errorf("forgetting what rules asked of peers: %w", err)
	}
	return nil
}

func (e *Endpoint) requests() pace.PaceRuleRequests {
	of := pace.PaceRuleRequests{Endpoint: e.Number, Binding: uint32(e.Binding)}
	for rule, request := range e.Requests {
		if request.Rate != 0 {
			of.Rates |= 1 << rule
			of.Rate[rule] = request.Rate
		}
		if request.CongestionControl != 0 {
			of.Congestions |= 1 << rule
			of.Congestion[rule] = request.CongestionControl
		}
		if request.Schedule != 0 {
			of.Schedules |= 1 << rule
			of.Schedule[rule] = request.Schedule
		}
	}
	return of
}

func (p *Pacer) writeCongestions(wanted map[uint64]Endpoint) error {
	names := map[pace.PaceCongestionKey]string{}
	for _, endpoint := range wanted {
		for rule, name := range endpoint.Congestions {
			names[pace.PaceCongestionKey{Endpoint: endpoint.Number, Rule: uint32(rule)}] = name
		}
	}
	for key, name := range names {
		if err := p.objects.congestions.Put(key, congestion(name)); err != nil {
			return fmt.Errorf("choosing congestion control %s: %w", name, err)
		}
	}
	return p.forgetCongestions(names)
}

func congestion(name string) (value pace.PaceCongestion) {
	for i := range len(name) {
		value.Name[i] = int8(name[i])
	}
	return value
}

func (p *Pacer) forgetCongestions(wanted map[pace.PaceCongestionKey]string) error {
	err := entries.Forget(p.objects.congestions, func(key pace.PaceCongestionKey) bool { return wanted[key] == "" })
	if err != nil {
		return fmt.Errorf("forgetting congestion controls: %w", err)
	}
	return nil
}

func (p *Pacer) wake() {
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

// Features says what this node can do; it is empty until an endpoint needs it.
func (p *Pacer) Features() []v1alpha1.KernelFeature {
	p.mu.Lock()
	defer p.mu.Unlock()
	const sockets, existing = "Pacing", "PacingOfExistingSockets"
	switch {
	case p.unsupported != nil:
		return []v1alpha1.KernelFeature{{Name: sockets, Message: p.unsupported.Error()}}
	case p.objects == nil:
		return nil
	case p.objects.unswept != nil:
		message := "changes wait for a round trip, and connections older than the agent are not paced: " + p.objects.unswept.Error()
		return []v1alpha1.KernelFeature{{Name: sockets, Supported: true}, {Name: existing, Message: message}}
	}
	return []v1alpha1.KernelFeature{{Name: sockets, Supported: true}, {Name: existing, Supported: true}}
}

// Close lets go of the programs; they go on.
func (p *Pacer) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.close()
}

func (p *Pacer) close() error {
	if p.objects == nil {
		return nil
	}
	err := p.objects.close()
	p.objects, p.limiter, p.endpoints = nil, nil, map[uint64]Endpoint{}
	return err
}

// Remove puts all sockets back as they were and leaves nothing attached or pinned,
// the map of subflows excepted. It needs no earlier Apply, so it also removes what
// another agent left.
func (p *Pacer) Remove() error { return p.Apply(nil) }

func (p *Pacer) remove() error {
	if p.objects == nil {
		if _, err := os.Stat(filepath.Join(p.options.PinPath, linkPin)); errors.Is(err, os.ErrNotExist) {
			return detach(p.options.PinPath, p.options.SharedPath)
		}
		loaded, err := load(p.options.PinPath, p.options.SharedPath)
		if err != nil {
			return errors.Join(err, detach(p.options.PinPath, p.options.SharedPath))
		}
		p.objects = loaded
	}
	return errors.Join(p.leave(), detach(p.options.PinPath, p.options.SharedPath))
}
