// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/api/v1alpha1"
)

// The agent renews its Lease so that the controller can tell a silent node from
// one that has nothing to say. MPTCPNode would be the wrong place: every agent
// watches it.
const (
	leaseDuration = 40 * time.Second
	leaseRenewal  = 10 * time.Second
)

// leaseholder renews the Lease of a node's agent.
type leaseholder struct {
	client client.Client
	// reader reads from the API server itself: a cache of Leases would be one more
	// watch for each node.
	reader          client.Reader
	namespace, node string
	// last is the Lease as the API server answered last time, so that it need not be
	// read before each renewal; nil when it has to be.
	last *coordinationv1.Lease
}

// renewLease renews until the context ends. A renewal that fails is tried again
// with the next one: the datapath does not depend on it.
func (a *Agent) renewLease(ctx context.Context) error {
	holder := leaseholder{client: a.client, reader: a.reader, namespace: a.options.Namespace, node: a.options.NodeName}
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		if err := holder.renew(ctx); err != nil && ctx.Err() == nil {
			a.log.Error(err, "the controller will take this agent for dead unless a later renewal succeeds")
		}
	}, leaseRenewal)
	return nil
}

// renew writes the Lease with the time that it is. One that somebody else has
// written or deleted meanwhile is read, and written again.
func (l *leaseholder) renew(ctx context.Context) error {
	kept := l.last != nil
	err := l.write(ctx)
	if kept && (apierrors.IsConflict(err) || apierrors.IsNotFound(err)) {
		err = l.write(ctx)
	}
	return err
}

func (l *leaseholder) write(ctx context.Context) error {
	lease, err := l.current(ctx)
	if err != nil {
		return err
	}
	l.last = nil
	lease.Spec.HolderIdentity = ptr.To(l.node)
	lease.Spec.LeaseDurationSeconds = ptr.To(int32(leaseDuration.Seconds()))
	lease.Spec.RenewTime = ptr.To(metav1.NowMicro())
	if lease.ResourceVersion == "" {
		err = l.client.Create(ctx, lease)
	} else {
		err = l.client.Update(ctx, lease)
	}
	if err != nil {
		return fmt.Errorf("renewing the agent's lease: %w", err)
	}
	l.last = lease
	return nil
}

// current is the Lease as it was last, or as it is; a new one where there is none.
func (l *leaseholder) current(ctx context.Context) (*coordinationv1.Lease, error) {
	if l.last != nil {
		return l.last, nil
	}
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		Namespace: l.namespace,
		Name:      v1alpha1.AgentLeasePrefix + l.node,
	}}
	if err := l.reader.Get(ctx, client.ObjectKeyFromObject(lease), lease); client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("reading the agent's lease: %w", err)
	}
	return lease, nil
}
