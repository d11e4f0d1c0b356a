// SPDX-License-Identifier: Apache-2.0

// Package lease renews the Lease of a node's agent.
package lease

import (
	"context"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/api/v1alpha1"
)

// The agent renews its Lease so that the controller can tell a silent node from
// one that has nothing to say. MPTCPNode would be the wrong place: every agent
// watches it.
const (
	// Duration is how long an agent counts as alive after a renewal.
	Duration = 40 * time.Second
	// Interval is how long after a renewal the next one is due.
	Interval = 10 * time.Second
)

// Holder renews the Lease of a node's agent. It is not for use by several
// goroutines at once.
type Holder struct {
	Client client.Client
	// Reader reads from the API server itself: a cache of Leases would be one more
	// watch for each node.
	Reader client.Reader
	// Namespace is that of the Leases.
	Namespace string
	// Node is the name of the agent's node.
	Node string
	Log  logr.Logger
	// last is the Lease as the API server answered last time, so that it need not be
	// read before each renewal; nil when it has to be.
	last *coordinationv1.Lease
}

// Run renews the Lease until the context ends. A renewal that fails is tried again
// with the next one: the datapath does not depend on it.
func (h *Holder) Run(ctx context.Context) error {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		if err := h.Renew(ctx); err != nil && ctx.Err() == nil {
			h.Log.Error(err, "failed to renew the agent's Lease; the controller takes the agent for dead unless a later renewal succeeds")
		}
	}, Interval)
	return nil
}

// Renew writes the Lease with the time that it is. One that somebody else has
// written or deleted meanwhile is read, and written again.
func (h *Holder) Renew(ctx context.Context) error {
	kept := h.last != nil
	err := h.write(ctx)
	if kept && (apierrors.IsConflict(err) || apierrors.IsNotFound(err)) {
		err = h.write(ctx)
	}
	return err
}

func (h *Holder) write(ctx context.Context) error {
	lease, err := h.current(ctx)
	if err != nil {
		return err
	}
	h.last = nil
	lease.Spec.HolderIdentity = new(h.Node)
	lease.Spec.LeaseDurationSeconds = new(int32(Duration.Seconds()))
	lease.Spec.RenewTime = new(metav1.NowMicro())
	// Without a version this creates the Lease, by a request that has its name: RBAC sees
	// no name in one that is meant to create.
	if err := h.Client.Update(ctx, lease); err != nil {
		return fmt.Errorf("renewing the agent's lease: %w", err)
	}
	h.last = lease
	return nil
}

// current is the Lease as it was last, or as it is; a new one where there is none.
func (h *Holder) current(ctx context.Context) (*coordinationv1.Lease, error) {
	if h.last != nil {
		return h.last, nil
	}
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		Namespace: h.Namespace,
		Name:      v1alpha1.AgentLeasePrefix + h.Node,
	}}
	if err := h.Reader.Get(ctx, client.ObjectKeyFromObject(lease), lease); client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("reading the agent's lease: %w", err)
	}
	return lease, nil
}
