// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/api/v1alpha1"
)

// Names of Braid's own objects in its namespace.
const (
	agentName      = "braid-agent"
	controllerName = "braid-controller" // also of the Lease of the leader
)

// Reasons why a component is not fine.
const (
	reasonNotInstalled = "NotInstalled"
	reasonNotScheduled = "NotScheduled"
	reasonRollingOut   = "RollingOut"
	reasonNotReady     = "NotReady"
	reasonNoLeader     = "NoLeader"
)

// components is what runs of Braid itself. Objects tell what was true when the last of
// these wrote them, and no more.
type components struct {
	namespace  string
	agents     *appsv1.DaemonSet  // nil where there is none
	controller *appsv1.Deployment // likewise
	leases     map[string]*coordinationv1.Lease
	now        time.Time
	// noWorkloads is true where these are not to be looked at, noLeases where they may not
	// be read.
	noWorkloads, noLeases bool
}

// readComponents reads the workloads and the Leases.
func (r *clusterReader) readComponents(ctx context.Context) (*components, error) {
	found := &components{namespace: r.namespace, noWorkloads: r.noWorkloads, leases: map[string]*coordinationv1.Lease{}}
	if err := r.readWorkloads(ctx, found); err != nil {
		return nil, err
	}
	var leases coordinationv1.LeaseList
	read, err := r.list(ctx, "Leases of the agents and of the controller", &leases, client.InNamespace(r.namespace))
	if err != nil {
		return nil, err
	}
	found.noLeases = !read
	for i := range leases.Items {
		found.leases[leases.Items[i].Name] = &leases.Items[i]
	}
	found.now = r.clock.now()
	return found, nil
}

func (r *clusterReader) readWorkloads(ctx context.Context, found *components) error {
	if r.noWorkloads {
		return nil
	}
	agents, controller := &appsv1.DaemonSet{}, &appsv1.Deployment{}
	hasAgents, err := r.get(ctx, agentName, agents)
	if err == nil && hasAgents {
		found.agents = agents
	}
	hasController, controllerErr := r.get(ctx, controllerName, controller)
	if controllerErr == nil && hasController {
		found.controller = controller
	}
	if apierrors.IsForbidden(err) || apierrors.IsForbidden(controllerErr) {
		r.leaveOut("the agents' DaemonSet and the controller's Deployment in namespace " + r.namespace)
		found.noWorkloads = true
		return nil
	}
	if err == nil {
		err = controllerErr
	}
	if err != nil {
		return fmt.Errorf("reading Braid's workloads: %w", err)
	}
	return nil
}

// get is false where there is no such object.
func (r *clusterReader) get(ctx context.Context, name string, object client.Object) (bool, error) {
	err := r.client.Get(ctx, client.ObjectKey{Namespace: r.namespace, Name: name}, object)
	return err == nil, client.IgnoreNotFound(err)
}

// addComponents comes first: what objects tell is worth nothing without those who write it.
func (s *Status) addComponents(c *components) {
	if !c.noWorkloads {
		s.addWorkload("controller", c.controllerProblem(), c.controllerCount())
		s.addWorkload("agents", c.agentsProblem(), c.agentsCount())
	}
	if problem := c.leaderProblem(); problem != nil {
		s.Problems = append(s.Problems, *problem)
	}
}

func (s *Status) addWorkload(what string, problem *Problem, count Count) {
	count.What = what
	s.Counts = append(s.Counts, count)
	if problem != nil {
		s.Problems = append(s.Problems, *problem)
	}
}

func (c *components) agentsCount() Count {
	if c.agents == nil {
		return Count{}
	}
	return Count{Fine: int(c.agents.Status.NumberReady), Total: int(c.agents.Status.DesiredNumberScheduled)}
}

func (c *components) controllerCount() Count {
	if c.controller == nil {
		return Count{}
	}
	return Count{Fine: int(c.controller.Status.ReadyReplicas), Total: int(c.replicas())}
}

func (c *components) replicas() int32 {
	if wanted := c.controller.Spec.Replicas; wanted != nil {
		return *wanted
	}
	return 1
}

// rollout is how far a workload is.
type rollout struct {
	seen                     bool // its controller has seen the last change
	wanted, of, ready        int32
	object, whole, noneWants string
}

func (c *components) agentsProblem() *Problem {
	if c.agents == nil {
		return &Problem{"agents", reasonNotInstalled, fmt.Sprintf("namespace %s has no DaemonSet %s: no agent runs, and what objects say is old. Install the chart, or say where it is (--system-namespace)", c.namespace, agentName)}
	}
	status := &c.agents.Status
	return rollout{
		seen: status.ObservedGeneration >= c.agents.Generation, wanted: status.DesiredNumberScheduled, of: status.UpdatedNumberScheduled, ready: status.NumberReady,
		object: "agents", whole: "kubectl describe daemonset " + agentName + " --namespace " + c.namespace,
		noneWants: "no node takes an agent: see agent.nodeSelector and agent.tolerations of the chart",
	}.problem()
}

func (c *components) controllerProblem() *Problem {
	if c.controller == nil {
		return &Problem{"controller", reasonNotInstalled, fmt.Sprintf("namespace %s has no Deployment %s: changes of policies and new pods wait, and what objects say is old. Install the chart, or say where it is (--system-namespace)", c.namespace, controllerName)}
	}
	status := &c.controller.Status
	return rollout{
		seen: status.ObservedGeneration >= c.controller.Generation, wanted: c.replicas(), of: status.UpdatedReplicas, ready: status.ReadyReplicas,
		object: "controller", whole: "kubectl describe deployment " + controllerName + " --namespace " + c.namespace,
		noneWants: "its Deployment wants no replica: see controller.replicas of the chart",
	}.problem()
}

func (r rollout) problem() *Problem {
	switch {
	case !r.seen:
		return &Problem{r.object, reasonRollingOut, "Kubernetes has not seen the last change of it yet"}
	case r.wanted == 0:
		return &Problem{r.object, reasonNotScheduled, r.noneWants}
	case r.of < r.wanted:
		return &Problem{r.object, reasonRollingOut, fmt.Sprintf("%d of %d are of the wanted version: %s", r.of, r.wanted, r.whole)}
	case r.ready < r.wanted:
		return &Problem{r.object, reasonNotReady, fmt.Sprintf("%d of %d are ready: %s", r.ready, r.wanted, r.whole)}
	}
	return nil
}

// leaderProblem: a controller that runs does its work only while it holds the Lease.
func (c *components) leaderProblem() *Problem {
	if c.noLeases {
		return nil
	}
	lease := c.leases[controllerName]
	const effect = "changes of policies and new pods wait, and what objects say of policies and paths is old"
	switch {
	case lease == nil:
		return &Problem{"controller", reasonNoLeader, "no controller has ever taken its Lease: " + effect}
	case lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity == "":
		return &Problem{"controller", reasonNoLeader, "the last controller gave its Lease back " + c.ago(lease) + ", and no other has taken it: " + effect}
	case c.age(lease) > leaseDuration(lease):
		return &Problem{"controller", reasonNoLeader, "its Lease was renewed last " + c.ago(lease) + ": " + effect}
	}
	return nil
}

// silence says since when a node's agent does not report; empty while it does. Where Leases
// may not be read, what the controller said last has to do.
func (c *components) silence(member *v1alpha1.MPTCPNode) string {
	if c.noLeases {
		ready := meta.FindStatusCondition(member.Status.Conditions, v1alpha1.ConditionReady)
		if ready != nil && ready.Reason == v1alpha1.ReasonAgentNotReporting {
			return ready.Message
		}
		return ""
	}
	lease := c.leases[v1alpha1.AgentLeasePrefix+member.Name]
	switch {
	case lease == nil:
		return "its agent has no Lease: check that one runs there"
	case c.age(lease) > leaseDuration(lease):
		return "its agent renewed its Lease last " + c.ago(lease) + ": check that the node is up, and that the agent runs and reaches the API server"
	}
	return ""
}

// defaultLease is for a Lease that does not say how long it holds.
const defaultLease = 40 * time.Second

func leaseDuration(lease *coordinationv1.Lease) time.Duration {
	if seconds := lease.Spec.LeaseDurationSeconds; seconds != nil && *seconds > 0 {
		return time.Duration(*seconds) * time.Second
	}
	return defaultLease
}

// age is how long ago a Lease was renewed. The API server notes when somebody changed a
// field: that is its own clock, which the holder's need not agree with.
func (c *components) age(lease *coordinationv1.Lease) time.Duration { return c.now.Sub(renewed(lease)) }

func renewed(lease *coordinationv1.Lease) time.Time {
	var latest time.Time
	for _, entry := range lease.ManagedFields {
		if entry.Time != nil && entry.Time.After(latest) {
			latest = entry.Time.Time
		}
	}
	if latest.IsZero() && lease.Spec.RenewTime != nil {
		return lease.Spec.RenewTime.Time
	}
	return latest
}

// ago is when a Lease was renewed.
func (c *components) ago(lease *coordinationv1.Lease) string {
	return fmt.Sprintf("at %s, %s ago", renewed(lease).UTC().Format(time.RFC3339), c.age(lease).Round(time.Second))
}
