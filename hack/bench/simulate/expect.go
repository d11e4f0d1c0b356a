// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"

	"braid.dev/braid/api/v1alpha1"
)

// NewScheme knows Kubernetes' own objects and ours.
func NewScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
	return scheme
}

// Expectation waits for the plans of some nodes to be as wanted.
type Expectation struct {
	agents  *Agents
	wanted  func(*v1alpha1.MPTCPNodePlan) bool
	missing map[string]bool
	last    time.Time
	met     chan struct{}
}

// Expect begins to wait until the agent of each of the nodes has seen a plan that
// is as wanted; nil stands for no plan.
func (a *Agents) Expect(nodes []string, wanted func(*v1alpha1.MPTCPNodePlan) bool) *Expectation {
	e := &Expectation{agents: a, wanted: wanted, missing: make(map[string]bool, len(nodes)), last: time.Now(), met: make(chan struct{})}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, node := range nodes {
		if !wanted(a.plans[node]) {
			e.missing[node] = true
		}
	}
	a.expected[e] = true
	e.check()
	return e
}

// note takes down what an agent sees.
func (a *Agents) note(node string, plan *v1alpha1.MPTCPNodePlan) {
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	if plan == nil {
		delete(a.plans, node)
	} else {
		a.plans[node] = plan
	}
	for e := range a.expected {
		if e.missing[node] && e.wanted(plan) {
			delete(e.missing, node)
			e.last = now
			e.check()
		}
	}
}

func (e *Expectation) check() {
	if len(e.missing) == 0 && e.agents.expected[e] {
		delete(e.agents.expected, e)
		close(e.met)
	}
}

// Wait returns when the last plan was seen that was waited for. It fails when the
// context ends before.
func (e *Expectation) Wait(ctx context.Context) (time.Time, error) {
	select {
	case <-e.met:
		return e.last, nil
	case <-ctx.Done():
	}
	e.agents.mu.Lock()
	defer e.agents.mu.Unlock()
	delete(e.agents.expected, e)
	return time.Time{}, fmt.Errorf("%d plans are not as wanted: %w", len(e.missing), ctx.Err())
}

// Plans are those that the agents have seen last, by node. They are shared: do not
// change them.
func (a *Agents) Plans() map[string]*v1alpha1.MPTCPNodePlan {
	a.mu.Lock()
	defer a.mu.Unlock()
	plans := make(map[string]*v1alpha1.MPTCPNodePlan, len(a.plans))
	for node, plan := range a.plans {
		plans[node] = plan
	}
	return plans
}
