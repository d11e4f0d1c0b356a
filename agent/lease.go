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

// renewLease renews until the context ends. A renewal that fails is tried again
// with the next one: the datapath does not depend on it.
func (a *Agent) renewLease(ctx context.Context) error {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		if err := a.renewLeaseOnce(ctx); err != nil && ctx.Err() == nil {
			a.log.Error(err, "the controller will take this agent for dead unless a later renewal succeeds")
		}
	}, leaseRenewal)
	return nil
}

func (a *Agent) renewLeaseOnce(ctx context.Context) error {
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		Namespace: a.options.Namespace,
		Name:      v1alpha1.AgentLeasePrefix + a.options.NodeName,
	}}
	// Read from the API server itself: a cache of leases would be one more watch
	// for each node.
	err := a.reader.Get(ctx, client.ObjectKeyFromObject(lease), lease)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("reading the agent's lease: %w", err)
	}
	missing := apierrors.IsNotFound(err)
	lease.Spec.HolderIdentity = ptr.To(a.options.NodeName)
	lease.Spec.LeaseDurationSeconds = ptr.To(int32(leaseDuration.Seconds()))
	lease.Spec.RenewTime = ptr.To(metav1.NowMicro())
	if missing {
		err = a.client.Create(ctx, lease)
	} else {
		err = a.client.Update(ctx, lease)
	}
	if err != nil {
		return fmt.Errorf("renewing the agent's lease: %w", err)
	}
	return nil
}
