// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"

	"k8s.io/apimachinery/pkg/util/wait"

	"braid.dev/braid/agent/lease"
)

// renewLease renews until the context ends. A renewal that fails is tried again
// with the next one: the datapath does not depend on it.
func (a *Agent) renewLease(ctx context.Context) error {
	holder := lease.Holder{Client: a.client, Reader: a.reader, Namespace: a.options.Namespace, Node: a.options.NodeName}
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		if err := holder.Renew(ctx); err != nil && ctx.Err() == nil {
			a.log.Error(err, "the controller will take this agent for dead unless a later renewal succeeds")
		}
	}, lease.Interval)
	return nil
}
