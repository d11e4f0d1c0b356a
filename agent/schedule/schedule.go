// SPDX-License-Identifier: Apache-2.0

// Package schedule distributes the data of pods' connections over their subflows
// by strategies of its own, as rules or peers ask for it. No stock kernel lets a program
// choose the subflow of a segment; a subflow that is to rest is made a backup instead, by the
// path manager in the pod's network namespace. A connection's subflows never rest all at once.
package schedule

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"braid.dev/braid/internal/mptcpnl"
)

// interval is how often decisions are made, as in eMPTCP.
const interval = 100 * time.Millisecond

// memory is for how many intervals the largest backlog counts: what an application
// writes at once may be gone at the next look.
const memory = 10

// Endpoint is a pod some of whose connections are scheduled. Its policy needs
// manager: Agent, because the kernel's own path manager does not tell apart the
// subflows of one address.
type Endpoint struct {
	// Number is the endpoint's in the keys of subflows.
	Number uint32
	// Path can be opened to enter the pod's network namespace.
	Path string
	// Rules whose subflows are scheduled: a bit for each.
	Rules uint64
}

// Matching tells which rules of an endpoint match all packets that it sends on a
// subflow: a bit for each.
type Matching func(endpoint uint32, local, remote netip.AddrPort) uint64

// Scheduler carries the strategy out. Apply and Close may be called beside Run.
type Scheduler struct {
	matching Matching
	log      logr.Logger
	changed  chan struct{}

	mu        sync.Mutex
	endpoints map[string]*stack // by path
}

// Open prepares a Scheduler; it does nothing before Apply and Run.
func Open(matching Matching, log logr.Logger) *Scheduler {
	return &Scheduler{matching: matching, log: log, changed: make(chan struct{}, 1), endpoints: map[string]*stack{}}
}

// Apply schedules the connections of these endpoints. The subflows of all others
// that rest are used again.
func (s *Scheduler) Apply(endpoints []Endpoint) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	wanted := map[string]bool{}
	var failed error
	for _, endpoint := range endpoints {
		wanted[endpoint.Path] = true
		failed = errors.Join(failed, s.add(endpoint))
	}
	for path, stack := range s.endpoints {
		if !wanted[path] {
			stack.Rules = 0
		}
		if !stack.isWanted() {
			failed = errors.Join(failed, stack.release(), stack.close())
			delete(s.endpoints, path)
		}
	}
	s.wake()
	return failed
}

func (s *Scheduler) wake() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

func (s *Scheduler) add(endpoint Endpoint) error {
	if known, ok := s.endpoints[endpoint.Path]; ok {
		known.Endpoint = endpoint
		return nil
	}
	opened, err := openStack(endpoint)
	if errors.Is(err, os.ErrNotExist) { // the pod ended
		return nil
	}
	if err != nil {
		return err
	}
	s.endpoints[endpoint.Path] = opened
	return nil
}

// Run makes decisions until the context ends. It sleeps while there is no endpoint.
func (s *Scheduler) Run(ctx context.Context) error {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		ticks := ticker.C
		if s.idle() {
			ticks = nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.changed:
		case <-ticks:
		}
		s.decide()
	}
}

func (s *Scheduler) idle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.endpoints) == 0
}

func (s *Scheduler) decide() {
	for _, path := range s.paths() {
		s.decideFor(path)
	}
}

func (s *Scheduler) paths() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.endpoints))
}

// decideFor looks at one endpoint, and lets others change what is asked for in between.
func (s *Scheduler) decideFor(path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	stack := s.endpoints[path]
	if stack == nil {
		return
	}
	err := stack.decide(s.matching)
	if err != nil && !stack.failing { // once, until it works again
		s.log.Error(err, "failed to schedule connections", "endpoint", stack.Number)
	}
	stack.failing = err != nil
}

// Close leaves resting subflows as they are: the next agent takes them over.
func (s *Scheduler) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var failed error
	for path, stack := range s.endpoints {
		failed = errors.Join(failed, stack.close())
		delete(s.endpoints, path)
	}
	return failed
}

// openStack enters the pod's network namespace.
func openStack(endpoint Endpoint) (*stack, error) {
	file, err := os.Open(endpoint.Path)
	if err != nil {
		return nil, fmt.Errorf("opening the network namespace of endpoint %d: %w", endpoint.Number, err)
	}
	defer file.Close()
	diagnostics, err := mptcpnl.DialDiagnostics(int(file.Fd()))
	if err != nil {
		return nil, err
	}
	client, err := mptcpnl.Dial(int(file.Fd()))
	if err != nil {
		return nil, errors.Join(err, diagnostics.Close())
	}
	return &stack{Endpoint: endpoint, diagnostics: diagnostics, client: client, backlogs: map[uint32][]uint64{}, streams: map[uint32]*stream{}}, nil
}
