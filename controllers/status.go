// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/policy"
)

// statusReconciler compares what was compiled with what the agents report, and
// writes the status of policies, paths and nodes.
type statusReconciler struct {
	client    client.Client
	compiled  *compilation
	confirmed *shared[confirmation]
	agents    *liveness
	history   planHistory
	judged    judgements
	told      verdicts
	writer    *statusWriter
	runs      *debouncer
}

// observation is what one run of the status reconciler judges by.
type observation struct {
	result  *policy.Result
	plans   map[string]*v1alpha1.MPTCPNodePlan // in the API, by node
	nodes   map[string]*v1alpha1.MPTCPNode     // by node
	silence func(node string) string           // empty while the node's agent reports
	// confirmed is nil before the first run that confirms addresses.
	confirmed *confirmation
	pods      podStates
	// rejudged are the pods whose state is another one than in the run before.
	rejudged map[types.UID]bool
}

// objects are those whose status is written.
type objects struct {
	policies        v1alpha1.MPTCPPolicyList
	clusterPolicies v1alpha1.ClusterMPTCPPolicyList
	guardrails      v1alpha1.MPTCPGuardrailList
	paths           v1alpha1.MPTCPPathList
	nodes           v1alpha1.MPTCPNodeList
	endpoints       v1alpha1.MPTCPEndpointList
}

// Reconcile writes every status that changed. It runs again when the next agent
// falls silent, if it does.
func (r *statusReconciler) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	start := time.Now()
	result := r.compiled.load()
	if result == nil {
		return reconcile.Result{}, nil // The first compile will cause a run.
	}
	next := r.agents.nextExpiry()
	var o objects
	for _, list := range []client.ObjectList{&o.policies, &o.clusterPolicies, &o.guardrails, &o.paths, &o.nodes, &o.endpoints} {
		if err := r.client.List(ctx, list); err != nil {
			return reconcile.Result{}, fmt.Errorf("list %T: %w", list, err)
		}
	}
	observed, err := r.observe(ctx, result, &o)
	if err != nil {
		return reconcile.Result{}, err
	}
	writes := r.writes(ctx, observed, &o)
	errs := concurrently(writes)
	// With what it writes: statuses leave the API server time for plans.
	r.runs.measure(start)
	if err := unlessStopping(ctx, errors.Join(errs...)); err != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{RequeueAfter: next}, nil
}

func (r *statusReconciler) observe(ctx context.Context, result *policy.Result, o *objects) (*observation, error) {
	var plans v1alpha1.MPTCPNodePlanList
	if err := r.client.List(ctx, &plans); err != nil {
		return nil, fmt.Errorf("list plans: %w", err)
	}
	observed := &observation{
		result:  result,
		plans:   make(map[string]*v1alpha1.MPTCPNodePlan, len(plans.Items)),
		nodes:   make(map[string]*v1alpha1.MPTCPNode, len(o.nodes.Items)),
		silence: r.agents.silence, confirmed: r.confirmed.load(),
	}
	for i := range plans.Items {
		observed.plans[plans.Items[i].Name] = &plans.Items[i]
	}
	for i := range o.nodes.Items {
		observed.nodes[o.nodes.Items[i].Name] = &o.nodes.Items[i]
	}
	r.history.observe(observed.plans)
	observed.pods = judgePods(observed, r.history, r.judged)
	return observed, nil
}

// writes lists what is to be written for all objects; objects that were not
// compiled yet are left for the next run.
func (r *statusReconciler) writes(ctx context.Context, observed *observation, o *objects) []func() error {
	r.writer.forgetAllBut(o)
	r.told = r.told.next(observed)
	told := r.told
	policyPods.told.Store(&told)
	clusterStates.told.Store(stateOf(observed, told))
	policies := make(map[v1alpha1.PolicyReference]*policy.PolicyResult, len(observed.result.Policies))
	for i := range observed.result.Policies {
		p := &observed.result.Policies[i]
		policies[policyKey(p.Policy.Kind, p.Policy.Namespace, p.Policy.Name)] = p
	}
	var writes []func() error
	for i := range o.policies.Items {
		p := &o.policies.Items[i]
		result := policies[policyKey(policy.KindPolicy, p.Namespace, p.Name)]
		writes = append(writes, r.policyWrite(ctx, result, p, &p.Status))
	}
	for i := range o.clusterPolicies.Items {
		p := &o.clusterPolicies.Items[i]
		result := policies[policyKey(policy.KindClusterPolicy, "", p.Name)]
		writes = append(writes, r.policyWrite(ctx, result, p, &p.Status))
	}
	for i := range o.guardrails.Items {
		p := &o.guardrails.Items[i]
		result := policies[policyKey(policy.KindGuardrail, "", p.Name)]
		writes = append(writes, r.policyWrite(ctx, result, p, &p.Status))
	}
	writes = append(append(writes, r.pathWrites(ctx, observed, o)...), r.nodeWrites(ctx, observed, o)...)
	return append(writes, r.endpointWrites(ctx, observed, o)...)
}

// policyWrite writes the status of a policy of either kind; result is nil when
// it was not compiled yet.
func (r *statusReconciler) policyWrite(ctx context.Context, result *policy.PolicyResult, object client.Object, current *v1alpha1.PolicyStatus) func() error {
	return func() error {
		if result == nil {
			return nil
		}
		return writeStatus(ctx, r.writer, object, current, r.told.status(result), policyConditions)
	}
}

func (r *statusReconciler) pathWrites(ctx context.Context, observed *observation, o *objects) []func() error {
	paths := make(map[string]*policy.PathResult, len(observed.result.Paths))
	for i := range observed.result.Paths {
		paths[observed.result.Paths[i].Name] = &observed.result.Paths[i]
	}
	var writes []func() error
	for i := range o.paths.Items {
		object := &o.paths.Items[i]
		if result := paths[object.Name]; result != nil {
			writes = append(writes, func() error {
				return writeStatus(ctx, r.writer, object, &object.Status, pathStatus(observed, result), pathConditions)
			})
		}
	}
	return writes
}

func (r *statusReconciler) nodeWrites(ctx context.Context, observed *observation, o *objects) []func() error {
	var writes []func() error
	for i := range o.nodes.Items {
		object := &o.nodes.Items[i]
		if _, exists := observed.result.Plans[object.Name]; !exists && observed.silence(object.Name) != "" {
			writes = append(writes, func() error { return r.deleteNode(ctx, object) })
			continue
		}
		// Of this status only two conditions are the controller's.
		writes = append(writes, func() error {
			return writeStatus(ctx, r.writer, object, ownNodeStatus(object), nodeStatus(observed, object), nodeConditions)
		})
	}
	return writes
}

// deleteNode removes what a node that is gone, with its agent, told the others.
func (r *statusReconciler) deleteNode(ctx context.Context, node *v1alpha1.MPTCPNode) error {
	err := r.client.Delete(ctx, node.DeepCopy(), client.Preconditions{UID: &node.UID})
	if err != nil && !isStale(err) {
		return fmt.Errorf("delete the MPTCPNode of the node %s, which is gone: %w", node.Name, err)
	}
	log.FromContext(ctx).Info("Deleted the MPTCPNode of a node that is gone", "node", node.Name)
	return nil
}

func policyKey(kind, namespace, name string) v1alpha1.PolicyReference {
	return v1alpha1.PolicyReference{Kind: kind, Namespace: namespace, Name: name}
}

func policyConditions(s *v1alpha1.PolicyStatus) *[]metav1.Condition  { return &s.Conditions }
func pathConditions(s *v1alpha1.MPTCPPathStatus) *[]metav1.Condition { return &s.Conditions }
func nodeConditions(s *nodeVerdict) *[]metav1.Condition              { return &s.Conditions }
