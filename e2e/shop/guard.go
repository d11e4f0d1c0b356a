// SPDX-License-Identifier: Apache-2.0

package shop

import (
	"context"
	"fmt"
	"testing"
	"time"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/e2e/testlab"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

// GuardTenant gives the tenant's pods a policy and their guardrails.
func (c *Cluster) GuardTenant(t *testing.T) {
	t.Helper()
	policy := testlab.NewPolicy("tenant", "client", "server")
	policy.Spec.Subflows.Manager = v1alpha1.SubflowManagerAgent
	c.Create(t, policy)
	c.Apply(t, testlab.TenantGuardrails)
	c.WaitProgrammed(t, policy, 2)
	c.WaitFor(t, "the guardrails are in force", 30*time.Second, c.TenantGuarded)
}

// TenantGuarded fails while the tenant's pods are not kept within guardrails.
func (c *Cluster) TenantGuarded(ctx context.Context) error {
	var plans v1alpha1.MPTCPNodePlanList
	if err := c.Client.List(ctx, &plans); err != nil {
		return err
	}
	guarded := 0
	for _, plan := range plans.Items {
		if !testlab.IsTrue(plan.Status.Conditions, v1alpha1.ConditionProgrammed, plan.Generation) {
			return fmt.Errorf("the plan of %s is not programmed", plan.Name)
		}
		for _, endpoint := range plan.Spec.Endpoints {
			if endpoint.Namespace == "tenant" && endpoint.Guard != nil {
				guarded++
			}
		}
	}
	if guarded != 2 {
		return fmt.Errorf("%d pods are guarded", guarded)
	}
	return nil
}

// BurstOver is when what may pass at once at the beginning has passed.
const BurstOver = 500 * time.Millisecond

// ExpectTransferWithin has the tenant send by a connection.
func (c *Cluster) ExpectTransferWithin(t *testing.T, what string) {
	t.Helper()
	r := c.Run(t, testlab.NewTransfer("tenant-client", "tenant-server", 4, traffic.Up, 3*time.Second))
	testlab.ExpectCeilings(t, what, r.Shares(testlab.Warmup, r.Duration))
}

// ExpectFloodWithin has a pod of the tenant flood.
func (c *Cluster) ExpectFloodWithin(t *testing.T, pod *network.Pod, f testlab.Flood) {
	t.Helper()
	const lasts = 1500 * time.Millisecond
	wire, begin := c.Record(pod.Node), time.Now()
	f.Mbit = 4 * testlab.LinkMbit // a little more than all NICs carry, so that it is not the processor that is full
	f.Run(t, pod, lasts)
	wire.Stop()
	testlab.ExpectCeilings(t, "UDP", wire.Rates(begin.Add(BurstOver), begin.Add(lasts)))
}
