// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/agent/saved"
	"braid.dev/braid/api/v1alpha1"
)

// serverPatience is how long an agent waits for the API server after its start before
// it manages pods by what the last agent saved: that can be older than what is in the
// kernel, and a pod's limits must not come and go at each start. That a NIC fails is
// seen at once.
const serverPatience = time.Second

// errNothingKnown means that the API server has not answered yet, and that nothing was
// saved.
var errNothingKnown = errors.New("the API server has not answered yet")

// source tells what the API server says and, until it has answered, what it said to
// the last agent.
type source struct {
	cache    cache.Cache
	nodeName string
	last     *saved.File // nil where nothing was saved
	keep     func(saved.State)
	log      logr.Logger

	started  time.Time
	patient  atomic.Bool               // what was saved is not for pods yet
	answered atomic.Pointer[time.Time] // when the API server did; nil before
}

func newSource(options Options, cache cache.Cache, keep func(saved.State)) *source {
	s := &source{cache: cache, nodeName: options.NodeName, keep: keep, log: options.Log, started: time.Now()}
	s.patient.Store(true)
	if options.SavedPath == "" {
		return s
	}
	var err error
	if s.last, err = saved.Read(options.SavedPath, options.NodeName); err != nil {
		s.log.Info("nothing to start from without the API server", "reason", err.Error())
	}
	return s
}

// wait waits for the API server's first answer, and wakes the agent's loop when it has
// come, and when it did not come soon.
func (s *source) wait(ctx context.Context, wake func()) error {
	timer := time.AfterFunc(serverPatience, func() {
		s.patient.Store(false)
		if s.last != nil && s.answered.Load() == nil {
			s.log.Info("the API server has not answered, managing pods by the plan that was saved", "saved", s.last.Time)
		}
		wake()
	})
	defer timer.Stop()
	if s.cache.WaitForCacheSync(ctx) {
		s.answered.Store(new(time.Now()))
		wake()
	}
	return nil
}

// read returns what is known, and whether that is what was saved. What the API server
// says is saved for the next agent.
func (s *source) read(ctx context.Context) (_ saved.State, fromSaved bool, err error) {
	switch {
	case s.answered.Load() != nil:
		state, err := s.readServer(ctx)
		if err == nil {
			s.keep(state)
		}
		return state, false, err
	case s.last == nil:
		return saved.State{}, false, errNothingKnown
	}
	return s.last.State, true, nil
}

func (s *source) readServer(ctx context.Context) (state saved.State, err error) {
	key := client.ObjectKey{Name: s.nodeName}
	state.Plan = &v1alpha1.MPTCPNodePlan{}
	if err := s.cache.Get(ctx, key, state.Plan); apierrors.IsNotFound(err) {
		state.Plan = nil
	} else if err != nil {
		return state, fmt.Errorf("failed to read the node's plan: %w", err)
	}
	if err := s.cache.Get(ctx, key, &state.Node); client.IgnoreNotFound(err) != nil {
		return state, fmt.Errorf("failed to read the Node: %w", err)
	}
	var nodes v1alpha1.MPTCPNodeList
	if err := s.cache.List(ctx, &nodes); err != nil {
		return state, fmt.Errorf("failed to read the other nodes: %w", err)
	}
	state.Nodes = nodes.Items
	return state, nil
}

// condition says of an agent that started without the API server from what and when;
// nil for others.
func (s *source) condition() *metav1.Condition {
	answered := s.answered.Load()
	if s.last == nil || answered == nil || answered.Sub(s.started) < serverPatience {
		return nil
	}
	return &metav1.Condition{
		Type: v1alpha1.ConditionStartedFromSavedPlan, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonAPIServerNotReached,
		LastTransitionTime: metav1.NewTime(*answered),
		Message: fmt.Sprintf("the agent started at %s from the plan saved at %s; the API server was reached at %s",
			inUTC(s.started), inUTC(s.last.Time), inUTC(*answered)),
	}
}

func inUTC(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// ready is nil once the API server has answered.
func (s *source) ready() error {
	switch {
	case s.answered.Load() != nil:
		return nil
	case s.last == nil:
		return errNothingKnown
	}
	return fmt.Errorf("%w; the plan saved at %s is carried out", errNothingKnown, inUTC(s.last.Time))
}
