// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"braid.dev/braid/api/v1alpha1"
)

// heldLease is one that the API server saw renewed so long ago. Its holder's clock is an
// hour wrong.
func heldLease(holder string, ago time.Duration) *coordinationv1.Lease {
	seen := metav1.NewTime(twelve.Add(-ago))
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{ManagedFields: []metav1.ManagedFieldsEntry{{Time: &seen}}}}
	lease.Spec.HolderIdentity, lease.Spec.LeaseDurationSeconds = &holder, new(int32(40))
	lease.Spec.RenewTime = new(metav1.NewMicroTime(seen.Add(-time.Hour)))
	return lease
}

// running are components in order, with an agent on node1.
func running() *components {
	c := &components{
		namespace: "net", now: twelve, agents: &appsv1.DaemonSet{}, controller: &appsv1.Deployment{},
		leases: map[string]*coordinationv1.Lease{controllerName: heldLease("one", 5*time.Second), "braid-agent-node1": heldLease("node1", 39*time.Second)},
	}
	c.agents.Generation, c.controller.Generation = 3, 4
	c.agents.Status = appsv1.DaemonSetStatus{ObservedGeneration: 3, DesiredNumberScheduled: 5, UpdatedNumberScheduled: 5, NumberReady: 5}
	c.controller.Spec.Replicas = new(int32(2))
	c.controller.Status = appsv1.DeploymentStatus{ObservedGeneration: 4, UpdatedReplicas: 2, ReadyReplicas: 2}
	return c
}

func TestComponentsAreFineOnlyWhileTheyRun(t *testing.T) {
	for name, test := range map[string]struct {
		change func(c *components)
		want   string // reasons by object
	}{
		"all run":                                   {func(*components) {}, ""},
		"there is no DaemonSet":                     {func(c *components) { c.agents = nil }, "agents: NotInstalled "},
		"there is no Deployment":                    {func(c *components) { c.controller = nil }, "controller: NotInstalled "},
		"no node takes an agent":                    {func(c *components) { c.agents.Status.DesiredNumberScheduled = 0 }, "agents: NotScheduled "},
		"an agent is not ready":                     {func(c *components) { c.agents.Status.NumberReady = 4 }, "agents: NotReady "},
		"an agent is of the old version":            {func(c *components) { c.agents.Status.UpdatedNumberScheduled = 1 }, "agents: RollingOut "},
		"the DaemonSet's change was not seen":       {func(c *components) { c.agents.Generation++ }, "agents: RollingOut "},
		"the Deployment's change was not seen":      {func(c *components) { c.controller.Generation++ }, "controller: RollingOut "},
		"no replica is wanted":                      {func(c *components) { c.controller.Spec.Replicas = new(int32(0)) }, "controller: NotScheduled "},
		"a replica is not ready":                    {func(c *components) { c.controller.Status.ReadyReplicas = 1 }, "controller: NotReady "},
		"nobody has led yet":                        {func(c *components) { delete(c.leases, controllerName) }, "controller: NoLeader "},
		"the leader went, and nobody followed":      {func(c *components) { c.leases[controllerName] = heldLease("", time.Second) }, "controller: NoLeader "},
		"the leader died":                           {func(c *components) { c.leases[controllerName] = heldLease("one", time.Minute) }, "controller: NoLeader "},
		"they are no pods, and the leader died":     {func(c *components) { *c = components{noWorkloads: true} }, "controller: NoLeader "},
		"they are no pods, and nothing may be read": {func(c *components) { *c = components{noWorkloads: true, noLeases: true} }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			c, status := running(), Status{}
			test.change(c)
			status.addComponents(c)
			reasons := ""
			for _, problem := range status.Problems {
				reasons += problem.Object + ": " + problem.Reason + " "
				require.NotEmpty(t, problem.Message)
			}
			require.Equal(t, test.want, reasons)
		})
	}
}

func TestAnAgentReportsWhileItsLeaseHolds(t *testing.T) {
	member := &v1alpha1.MPTCPNode{ObjectMeta: metav1.ObjectMeta{Name: "node1"}}
	c := running()
	require.Empty(t, c.silence(member), "the holder's own clock does not count")
	c.now = c.now.Add(2 * time.Second)
	require.Contains(t, c.silence(member), "renewed its Lease last at 2026-11-22T11:59:21Z, 41s ago")
	delete(c.leases, "braid-agent-node1")
	require.Contains(t, c.silence(member), "has no Lease")
	c.noLeases = true
	require.Empty(t, c.silence(member), "it is not known")
	member.Status.Conditions = conditions("Ready=" + v1alpha1.ReasonAgentNotReporting)
	require.Equal(t, "because of AgentNotReporting", c.silence(member), "the controller knows")
}

func TestWhatTheControllerHasNotSeenIsPending(t *testing.T) {
	judged := conditions("Accepted")
	require.Nil(t, unlessTrue("policy shop/web", 0, judged, "Accepted"))
	require.Equal(t, v1alpha1.ReasonPending, unlessTrue("policy shop/web", 2, judged, "Accepted").Reason)
}
