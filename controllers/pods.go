// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/policy"
)

// podState is how far the policies of a pod are carried out: a reason of the
// condition Programmed, and a message for each reason but Programmed.
type podState struct {
	reason  string
	message string
	// rules are those of the pod's chain that the agent says are not carried out.
	rules []v1alpha1.RuleStatus
	// spreading is what the pod's traffic does; nil where its agent does not tell.
	spreading *v1alpha1.SpreadingStatus
	// Of a VM, or a pod that holds one: the interface that its agent found, and what of the policy that decides
	// for it does not hold for it.
	hostInterface, notApplied, decider string
	guestSubflows                      v1alpha1.GuestSubflows
	guestAgent                         *v1alpha1.GuestAgentStatus
}

// of is the state as it is for one of the pod's policies: a rule that fails is
// the failure of the policy that it belongs to, and so are settings that a VM cannot have.
func (s podState) of(owner string) podState {
	if s.reason != v1alpha1.ReasonProgrammed {
		return s
	}
	for _, rule := range s.rules {
		if rule.Policy == owner {
			return podState{reason: v1alpha1.ReasonRuleFailed, message: "rule " + rule.Name + ": " + rule.Message, spreading: s.spreading}
		}
	}
	if s.notApplied != "" && s.decider == owner {
		return podState{reason: v1alpha1.ReasonNotForGuests, message: s.notApplied, spreading: s.spreading}
	}
	return s
}

// podStates holds the state of each pod that a plan should hold, by node.
type podStates map[string]map[types.UID]podState

func (s podStates) of(pod policy.PodRef) (state podState, planned bool) {
	state, planned = s[pod.Node][pod.UID]
	return state, planned
}

// judgements keep the states of each node's pods from one run to the next, with
// what they were judged by.
type judgements map[string]judgement

type judgement struct {
	by     evidence
	states map[types.UID]podState
}

// evidence is everything that decides about a node's pods. What was compiled is
// known by the place of its first endpoint: each compile of a node makes new ones.
type evidence struct {
	compiled *v1alpha1.PlanEndpoint
	silence  string
	uid      types.UID // of the plan
	version  string    // likewise
	record   *planRecord
}

// judgePods compares for each compiled endpoint the plan in the API and its
// agent's report, where one of them changed since the last run.
func judgePods(o *observation, history planHistory, judged judgements) podStates {
	o.rejudged = map[types.UID]bool{}
	maps.DeleteFunc(judged, func(node string, _ judgement) bool { return len(o.result.Plans[node].Endpoints) == 0 })
	states := make(podStates, len(o.result.Plans))
	for node, compiled := range o.result.Plans {
		if len(compiled.Endpoints) == 0 {
			continue
		}
		by := evidence{compiled: &compiled.Endpoints[0], silence: o.silence(node), record: history[node]}
		if plan := o.plans[node]; plan != nil {
			by.uid, by.version = plan.UID, plan.ResourceVersion
		}
		if judged[node].by != by {
			states := judgeNode(o, history, node, &compiled)
			o.noteChanges(judged[node].states, states)
			judged[node] = judgement{by: by, states: states}
		}
		states[node] = judged[node].states
	}
	return states
}

// noteChanges notes the pods of a node whose state is another one than before.
func (o *observation) noteChanges(before, now map[types.UID]podState) {
	for pod, state := range now {
		if was, known := before[pod]; !known || !reflect.DeepEqual(was, state) {
			o.rejudged[pod] = true
		}
	}
	for pod := range before {
		if _, still := now[pod]; !still {
			o.rejudged[pod] = true
		}
	}
}

func judgeNode(o *observation, history planHistory, node string, compiled *v1alpha1.MPTCPNodePlanSpec) map[types.UID]podState {
	view := newNodeView(o, history, node, compiled)
	states := make(map[types.UID]podState, len(compiled.Endpoints))
	for i := range compiled.Endpoints {
		endpoint := &compiled.Endpoints[i]
		state := view.judge(endpoint)
		if reported := view.reported[endpoint.UID]; reported != nil && view.silence == "" {
			state.spreading = reported.Spreading.DeepCopy() // not the list's own
			state.ofGuest(endpoint, reported)
		}
		states[endpoint.UID] = state
	}
	return states
}

// ofGuest notes what is told of a VM alone, or of a pod that holds one.
func (s *podState) ofGuest(compiled *v1alpha1.PlanEndpoint, reported *v1alpha1.EndpointStatus) {
	if !compiled.HasGuest() {
		return
	}
	s.hostInterface, s.guestSubflows, s.guestAgent = reported.HostInterface, reported.GuestSubflows, reported.GuestAgent
	s.notApplied, s.decider = policy.DescribeNotApplied(compiled.NotApplied()), policy.RuleOwner(compiled.Policy)
}

// nodeView is one node's plan and report, indexed by pod.
type nodeView struct {
	node     string
	silence  string
	observed int64 // generation of the plan that the agent applied last
	failure  string
	programs bool // those in the plan are those that were compiled
	tenants  bool // likewise
	planned  map[types.UID]*v1alpha1.PlanEndpoint
	changed  map[types.UID]int64
	reported map[types.UID]*v1alpha1.EndpointStatus
}

func newNodeView(o *observation, history planHistory, node string, compiled *v1alpha1.MPTCPNodePlanSpec) *nodeView {
	view := &nodeView{node: node, silence: o.silence(node)}
	plan := o.plans[node]
	if plan == nil {
		return view
	}
	view.observed, view.failure = plan.Status.ObservedGeneration, datapathFailure(plan)
	view.changed, view.programs = history[node].changed, equality.Semantic.DeepEqual(plan.Spec.Programs, compiled.Programs)
	view.tenants = equality.Semantic.DeepEqual(plan.Spec.Tenants, compiled.Tenants)
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
		return podState{reason: v1alpha1.ReasonAgentNotReporting, message: v.silence}
	case planned == nil || !equality.Semantic.DeepEqual(planned, compiled) || compiled.Chain != "" && !v.programs || !v.tenants:
		return podState{reason: v1alpha1.ReasonPending, message: "the plan of node " + v.node + " is being written"}
	case reported == nil || v.observed < v.changed[compiled.UID]:
		return podState{reason: v1alpha1.ReasonPending, message: "the agent of node " + v.node + " has not applied the plan yet"}
	case reported.State == v1alpha1.EndpointFailed && v.failure != "":
		return podState{reason: v1alpha1.ReasonDatapathFailed, message: v.failure}
	case reported.State == v1alpha1.EndpointFailed:
		return podState{reason: v1alpha1.ReasonEndpointFailed, message: failureMessage(reported)}
	case reported.State != v1alpha1.EndpointProgrammed:
		return podState{reason: v1alpha1.ReasonPending, message: reported.Message}
	case reported.PolicyGeneration != compiled.Policy.Generation:
		return podState{reason: v1alpha1.ReasonPending, message: "the agent of node " + v.node + " still carries out an older generation of the policy"}
	case reported.Chain != compiled.Chain:
		return podState{reason: v1alpha1.ReasonPending, message: "the agent of node " + v.node + " has not put the pod's chain of rules in place yet"}
	}
	return podState{reason: v1alpha1.ReasonProgrammed, rules: failedRules(reported)}
}

// failureMessage is what an agent says of an endpoint that failed, and of those
// of its rules that it has something to say about: one of them may be the cause.
func failureMessage(reported *v1alpha1.EndpointStatus) string {
	parts := []string{reported.Message}
	for _, rule := range reported.Rules {
		if rule.Message != "" && !strings.Contains(reported.Message, rule.Message) {
			parts = append(parts, fmt.Sprintf("rule %s of %s: %s", rule.Name, rule.Policy, rule.Message))
		}
	}
	return strings.Join(slices.DeleteFunc(parts, func(part string) bool { return part == "" }), "; ")
}

func failedRules(reported *v1alpha1.EndpointStatus) []v1alpha1.RuleStatus {
	var failed []v1alpha1.RuleStatus
	for _, rule := range reported.Rules {
		if rule.Failed {
			failed = append(failed, rule)
		}
	}
	return failed
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
	spec := plan.Spec // not the list's own, which would keep all plans of the list in memory
	record := &planRecord{
		uid: plan.UID, generation: plan.Generation, spec: &spec,
		changed: make(map[types.UID]int64, len(plan.Spec.Endpoints)),
	}
	for i := range plan.Spec.Endpoints {
		record.changed[plan.Spec.Endpoints[i].UID] = plan.Generation
	}
	if before == nil || before.uid != plan.UID || !equality.Semantic.DeepEqual(before.spec.Paths, plan.Spec.Paths) {
		return record
	}
	programsChanged := !equality.Semantic.DeepEqual(before.spec.Programs, plan.Spec.Programs)
	same := make(map[types.UID]*v1alpha1.PlanEndpoint, len(before.spec.Endpoints))
	for i := range before.spec.Endpoints {
		same[before.spec.Endpoints[i].UID] = &before.spec.Endpoints[i]
	}
	for i := range plan.Spec.Endpoints {
		e := &plan.Spec.Endpoints[i]
		if equality.Semantic.DeepEqual(same[e.UID], e) && (e.Chain == "" || !programsChanged) && sameTenant(before.spec, &plan.Spec, e.Namespace) {
			record.changed[e.UID] = before.changed[e.UID]
		}
	}
	return record
}

// sameTenant says whether a namespace has the same ceilings and weights in two plans.
func sameTenant(a, b *v1alpha1.MPTCPNodePlanSpec, namespace string) bool {
	return equality.Semantic.DeepEqual(tenantOf(a, namespace), tenantOf(b, namespace))
}

func tenantOf(spec *v1alpha1.MPTCPNodePlanSpec, namespace string) *v1alpha1.PlanTenant {
	i, found := slices.BinarySearchFunc(spec.Tenants, namespace, func(t v1alpha1.PlanTenant, name string) int { return strings.Compare(t.Namespace, name) })
	if !found {
		return nil
	}
	return &spec.Tenants[i]
}
