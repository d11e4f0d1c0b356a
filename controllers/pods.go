// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"maps"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"braid.dev/braid/api/v1alpha1"
)

// podState is how far the policy of a pod is carried out: a reason of the
// condition Programmed, and a message for each reason but Programmed.
type podState struct {
	reason  string
	message string
}

// podStates holds the state of each pod that a plan should hold.
type podStates map[types.UID]podState

// judgePods compares for each compiled endpoint the plan in the API and its
// agent's report.
func judgePods(o *observation, history planHistory) podStates {
	states := podStates{}
	for node, compiled := range o.result.Plans {
		if len(compiled.Endpoints) == 0 {
			continue
		}
		view := newNodeView(o, history, node)
		for i := range compiled.Endpoints {
			states[compiled.Endpoints[i].UID] = view.judge(&compiled.Endpoints[i])
		}
	}
	return states
}

// nodeView is one node's plan and report, indexed by pod.
type nodeView struct {
	node     string
	silence  string
	observed int64 // generation of the plan that the agent applied last
	failure  string
	planned  map[types.UID]*v1alpha1.PlanEndpoint
	changed  map[types.UID]int64
	reported map[types.UID]*v1alpha1.EndpointStatus
}

func newNodeView(o *observation, history planHistory, node string) *nodeView {
	view := &nodeView{node: node, silence: o.silence(node)}
	plan := o.plans[node]
	if plan == nil {
		return view
	}
	view.observed, view.failure = plan.Status.ObservedGeneration, datapathFailure(plan)
	view.changed = history[node].changed
	view.planned = make(map[types.UID]*v1alpha1.PlanEndpoint, len(plan.Spec.Endpoints))
	for i := range plan.Spec.Endpoints {
		view.planned[plan.Spec.Endpoints[i].UID] = &plan.Spec.Endpoints[i]
	}
	view.reported = make(map[types.UID]*v1alpha1.EndpointStatus, len(plan.Status.Endpoints))
	for i := range plan.Status.Endpoints {
		view.reported[plan.Status.Endpoints[i].UID] = &plan.Status.Endpoints[i]
	}
	return view
}

// judge says how far an endpoint is. What an agent reported before it fell
// silent, or of an older plan, counts for nothing.
func (v *nodeView) judge(compiled *v1alpha1.PlanEndpoint) podState {
	planned, reported := v.planned[compiled.UID], v.reported[compiled.UID]
	switch {
	case v.silence != "":
		return podState{v1alpha1.ReasonAgentNotReporting, v.silence}
	case planned == nil || !equality.Semantic.DeepEqual(planned, compiled):
		return podState{v1alpha1.ReasonPending, "the plan of node " + v.node + " is being written"}
	case reported == nil || v.observed < v.changed[compiled.UID]:
		return podState{v1alpha1.ReasonPending, "the agent of node " + v.node + " has not applied the plan yet"}
	case reported.State == v1alpha1.EndpointFailed && v.failure != "":
		return podState{v1alpha1.ReasonDatapathFailed, v.failure}
	case reported.State == v1alpha1.EndpointFailed:
		return podState{v1alpha1.ReasonEndpointFailed, reported.Message}
	case reported.State != v1alpha1.EndpointProgrammed:
		return podState{v1alpha1.ReasonPending, reported.Message}
	case reported.PolicyGeneration != compiled.Policy.Generation:
		return podState{v1alpha1.ReasonPending, "the agent of node " + v.node + " still carries out an older generation of the policy"}
	}
	return podState{reason: v1alpha1.ReasonProgrammed}
}

// datapathFailure is the agent's message when its datapath as a whole failed.
func datapathFailure(plan *v1alpha1.MPTCPNodePlan) string {
	c := meta.FindStatusCondition(plan.Status.Conditions, v1alpha1.ConditionProgrammed)
	if c == nil || c.Status == metav1.ConditionTrue || c.Reason != v1alpha1.ReasonDatapathFailed {
		return ""
	}
	return c.Message
}

// planHistory remembers for each node's plan in which generation each endpoint
// changed last. A report of that generation or a later one tells of the endpoint
// as it is now, even when other endpoints have changed since. A plan that is
// seen for the first time counts as changed just then.
type planHistory map[string]*planRecord

type planRecord struct {
	uid        types.UID
	generation int64
	spec       *v1alpha1.MPTCPNodePlanSpec
	changed    map[types.UID]int64 // by pod
}

func (h planHistory) observe(plans map[string]*v1alpha1.MPTCPNodePlan) {
	maps.DeleteFunc(h, func(node string, _ *planRecord) bool { return plans[node] == nil })
	for node, plan := range plans {
		before := h[node]
		if before == nil || before.uid != plan.UID || before.generation != plan.Generation {
			h[node] = newPlanRecord(plan, before)
		}
	}
}

func newPlanRecord(plan *v1alpha1.MPTCPNodePlan, before *planRecord) *planRecord {
	record := &planRecord{
		uid: plan.UID, generation: plan.Generation, spec: &plan.Spec,
		changed: make(map[types.UID]int64, len(plan.Spec.Endpoints)),
	}
	for i := range plan.Spec.Endpoints {
		record.changed[plan.Spec.Endpoints[i].UID] = plan.Generation
	}
	if before == nil || before.uid != plan.UID || !equality.Semantic.DeepEqual(before.spec.Paths, plan.Spec.Paths) {
		return record
	}
	same := make(map[types.UID]*v1alpha1.PlanEndpoint, len(before.spec.Endpoints))
	for i := range before.spec.Endpoints {
		same[before.spec.Endpoints[i].UID] = &before.spec.Endpoints[i]
	}
	for i := range plan.Spec.Endpoints {
		e := &plan.Spec.Endpoints[i]
		if equality.Semantic.DeepEqual(same[e.UID], e) {
			record.changed[e.UID] = before.changed[e.UID]
		}
	}
	return record
}
