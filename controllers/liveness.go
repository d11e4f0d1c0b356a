// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	"braid.dev/braid/api/v1alpha1"
)

// liveness knows from Leases which agents report. A node's clock may be wrong,
// so what counts is when a renewal was seen here, not the time written in it;
// only for a Lease that was never seen before is an older time believed.
type liveness struct {
	defaultDuration time.Duration
	now             func() time.Time

	mu     sync.Mutex
	agents map[string]sighting // by node
}

// sighting is the last renewal of an agent's Lease.
type sighting struct {
	renewed time.Time // by the agent's clock
	expires time.Time // by our own
}

func newLiveness(defaultDuration time.Duration, now func() time.Time) *liveness {
	return &liveness{defaultDuration: defaultDuration, now: now, agents: map[string]sighting{}}
}

// observe notes a state of a node's Lease. It returns true when that is news:
// the agent reports and did not before, or it may fall silent sooner than was
// known.
func (l *liveness) observe(node string, lease *coordinationv1.Lease) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now, renewed := l.now(), renewal(lease)
	known, seen := l.agents[node]
	if seen && known.renewed.Equal(renewed) {
		return false
	}
	start := now
	if !seen && renewed.Before(now) {
		start = renewed
	}
	expires := start.Add(l.duration(lease))
	l.agents[node] = sighting{renewed: renewed, expires: expires}
	return expires.After(now) && (!known.expires.After(now) || expires.Before(known.expires))
}

func renewal(lease *coordinationv1.Lease) time.Time {
	if lease.Spec.RenewTime != nil {
		return lease.Spec.RenewTime.Time
	}
	return lease.CreationTimestamp.Time
}

func (l *liveness) duration(lease *coordinationv1.Lease) time.Duration {
	if s := lease.Spec.LeaseDurationSeconds; s != nil && *s > 0 {
		return time.Duration(*s) * time.Second
	}
	return l.defaultDuration
}

func (l *liveness) forget(node string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.agents, node)
}

// silence says in words since when a node's agent does not report; it is empty
// while the agent reports.
func (l *liveness) silence(node string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	agent, seen := l.agents[node]
	switch {
	case !seen:
		return "the agent of node " + node + " does not report: check that an agent runs there"
	case agent.expires.After(l.now()):
		return ""
	}
	return "the agent of node " + node + " has not reported since " + agent.renewed.UTC().Format(time.RFC3339) +
		": check that it runs and reaches the API server"
}

// nextExpiry is the time until the first agent falls silent that reports now,
// unless it renews its Lease; 0 when none reports.
func (l *liveness) nextExpiry() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	var next time.Duration
	now := l.now()
	for _, agent := range l.agents {
		if left := agent.expires.Sub(now); left > 0 && (next == 0 || left < next) {
			next = left
		}
	}
	return next
}

// leaseHandler follows the agents' Leases. An ordinary renewal causes no run;
// silence is found by the clock.
func (r *statusReconciler) leaseHandler() handler.EventHandler {
	observe := func(object client.Object, q queue) {
		lease, ok := object.(*coordinationv1.Lease)
		if node, is := agentNode(object); ok && is && r.agents.observe(node, lease) {
			r.runs.enqueue(q)
		}
	}
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, q queue) { observe(e.Object, q) },
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q queue) { observe(e.ObjectNew, q) },
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q queue) {
			if node, is := agentNode(e.Object); is {
				r.agents.forget(node)
				r.runs.enqueue(q)
			}
		},
	}
}

// agentNode is the node whose agent holds a Lease; false for other Leases.
func agentNode(lease client.Object) (string, bool) {
	return strings.CutPrefix(lease.GetName(), v1alpha1.AgentLeasePrefix)
}
