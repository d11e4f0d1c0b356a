// SPDX-License-Identifier: Apache-2.0

package health

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"

	"braid.dev/braid/agent/node"
	"braid.dev/braid/api/v1alpha1"
)

const (
	// lookForActive is how often it is asked which peers flows go to.
	lookForActive = 500 * time.Millisecond
	// stayActive is how long a peer is probed often after its last packet.
	stayActive = 5 * time.Second
)

// MonitorOptions are those of a Monitor.
type MonitorOptions struct {
	// Port of responders on every node; 0 for DefaultPort.
	Port uint16
	// Active are the peers that flows went to since the last call.
	Active func() (map[string]bool, error)
	// Answered is told of each probe that was answered, where it is set; see Options.
	Answered func(peer, path string)
	// Heard tells how long ago a peer answered on a path; see Options.
	Heard func(peer, path string) time.Duration
	// Notify has the node's status published, and what heeds lost paths done again. It must
	// not wait for that.
	Notify func()
	Log    logr.Logger
}

// Monitor is the node.Part that probes the paths to the peers and answers their
// probes. It says in the node's status what is known of the paths.
type Monitor struct {
	options   MonitorOptions
	prober    *Prober
	responder *Responder

	mu      sync.Mutex
	targets []Target
	judged  bool                 // there are preferences that compare paths
	largest int                  // packet that pods send; 0 while it is not known
	usedAt  map[string]time.Time // when flows last went to a peer
	shown   map[string]v1alpha1.NodePath
	shownAt time.Time
}

// NewMonitor probes nothing before Run.
func NewMonitor(options MonitorOptions) (*Monitor, error) {
	options.Log = options.Log.WithName("health")
	settings := Options{Port: options.Port, Answered: options.Answered, Heard: options.Heard, Lost: options.Notify, Log: options.Log}
	prober, err := New(settings)
	if err != nil {
		return nil, err
	}
	responder, err := NewResponder(settings)
	if err != nil {
		return nil, errors.Join(err, prober.Close())
	}
	return &Monitor{options: options, prober: prober, responder: responder, usedAt: map[string]time.Time{}}, nil
}

// Apply has the model's paths to its peers probed, and probes answered on them.
func (m *Monitor) Apply(_ context.Context, model *node.Model) node.Report {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.targets, m.judged = targetsOf(model), model.Preferences != node.Preferences{}
	m.setTargets(time.Now())
	m.responder.SetListeners(listenersOf(model))
	return node.Report{}
}

// View is what is known of the paths now.
func (m *Monitor) View() View { return m.prober.View() }

// Changed tells of changes of the view, as Prober.Changed does.
func (m *Monitor) Changed() <-chan struct{} { return m.prober.Changed() }

// Collector offers what is known and counted.
func (m *Monitor) Collector() *Collector { return NewCollector(m.prober, m.responder) }

// Remove has nothing to do: nothing outlives the agent.
func (m *Monitor) Remove(context.Context) error { return nil }

// Close is to be called after Run.
func (m *Monitor) Close() error { return errors.Join(m.prober.Close(), m.responder.Close()) }

// setTargets tells the prober which peers flows go to.
func (m *Monitor) setTargets(now time.Time) {
	for peer, used := range m.usedAt {
		if now.Sub(used) > stayActive {
			delete(m.usedAt, peer)
		}
	}
	targets := make([]Target, len(m.targets))
	for i, target := range m.targets {
		_, target.Active = m.usedAt[target.Peer]
		target.Judged = m.judged
		target.Size = min(target.Size, m.largest)
		targets[i] = target
	}
	m.prober.SetTargets(targets)
}

// Run works until the context ends.
func (m *Monitor) Run(ctx context.Context) error {
	running, ctx := errgroup.WithContext(ctx)
	running.Go(func() error { return m.prober.Run(ctx) })
	running.Go(func() error { return m.responder.Run(ctx) })
	running.Go(func() error { m.follow(ctx); return nil })
	return running.Wait()
}

// follow keeps up with which peers are active, and with what the status shows.
func (m *Monitor) follow(ctx context.Context) {
	look, show := time.NewTicker(lookForActive), time.NewTicker(showStates)
	defer look.Stop()
	defer show.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-look.C:
			m.lookForActive(now)
		case now := <-show.C:
			if m.show(now) {
				m.options.Notify()
			}
		}
	}
}

// lookForActive has peers probed often that flows go to.
func (m *Monitor) lookForActive(now time.Time) {
	active, err := m.options.Active()
	if err != nil {
		m.options.Log.Error(err, "failed to find the nodes that flows go to: they are probed less often")
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	changed := false
	for peer := range active {
		_, known := m.usedAt[peer]
		changed = changed || !known
		m.usedAt[peer] = now
	}
	for _, used := range m.usedAt {
		changed = changed || now.Sub(used) > stayActive
	}
	if changed {
		m.setTargets(now)
	}
}
