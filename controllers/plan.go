// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/policy"
)

// shared is the last result of one reconciler, which the status reconciler reads.
type shared[T any] struct {
	result    atomic.Pointer[T]
	published chan event.GenericEvent
}

// compilation is that of the compile.
type compilation = shared[policy.Result]

func newShared[T any]() *shared[T] {
	return &shared[T]{published: make(chan event.GenericEvent, 1)}
}

// load is nil before the first result.
func (s *shared[T]) load() *T { return s.result.Load() }

func (s *shared[T]) publish(result *T) {
	s.result.Store(result)
	select {
	case s.published <- event.GenericEvent{Object: &v1alpha1.MPTCPNodePlan{}}:
	default: // The reader has yet to take the previous one and will find this result.
	}
}

// planReconciler compiles plans and writes those that changed.
type planReconciler struct {
	client    client.Client
	namespace string // Braid's own
	compiled  *compilation
	changes   *changes
	teller    *hintTeller

	incremental *policy.Incremental
	active      bool // as in the result of the last run
	held        *heldPolicies
	due         time.Duration // until held changes count; 0 where there are none
}

// Reconcile compiles what changed since the last run and writes the plans, after the pause
// that follows each run. What it cannot do is looked at again in the next one.
func (r *planReconciler) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	start := time.Now()
	if rest := r.changes.rest(start); rest > 0 {
		return reconcile.Result{RequeueAfter: rest}, nil
	}
	seen := r.changes.take()
	result, err := r.compile(ctx, &seen)
	if err != nil {
		r.changes.addAll()
		return reconcile.Result{}, unlessStopping(ctx, err)
	}
	compileDuration.Observe(time.Since(start).Seconds())
	r.changes.measure(start)
	r.compiled.publish(result)
	// With the first pod that is selected all plans get their paths.
	all := seen.all || result.Active != r.active
	r.active = result.Active
	outcome, err := r.write(ctx, result.Plans, all, seen.nodes)
	if r.due > 0 {
		r.changes.addCommon()
		outcome.RequeueAfter = min(r.due, cmp.Or(outcome.RequeueAfter, r.due))
	}
	return outcome, unlessStopping(ctx, err)
}

// compile compiles what a run has to look at, and adds the nodes to it that it finds
// concerned.
func (r *planReconciler) compile(ctx context.Context, seen *scope) (*policy.Result, error) {
	if seen.all || seen.common {
		in, err := r.input(ctx)
		if err != nil {
			return nil, fmt.Errorf("read the input of the compile: %w", err)
		}
		if err := r.takeInput(ctx, in, seen); err != nil {
			return nil, err
		}
	}
	for node := range seen.nodes {
		if err := r.compileNode(ctx, node); err != nil {
			return nil, err
		}
	}
	return new(r.incremental.Result()), nil
}

// takeInput begins anew with an input, or goes on with it, and adds the nodes that
// are to be compiled then.
func (r *planReconciler) takeInput(ctx context.Context, in policy.Input, seen *scope) error {
	nodes := make(map[string]bool, len(in.Nodes))
	for i := range in.Nodes {
		nodes[in.Nodes[i].Name] = true
	}
	r.teller.forgetAllBut(nodes)
	if !seen.all {
		return r.addConcerned(ctx, r.incremental.Update(in), seen)
	}
	r.incremental, seen.nodes = policy.NewIncremental(in), nodes
	return nil
}

func (r *planReconciler) addConcerned(ctx context.Context, change policy.Change, seen *scope) error {
	for _, node := range change.Nodes {
		seen.nodes[node] = true
	}
	for _, namespace := range change.Namespaces() {
		var pods corev1.PodList
		if err := r.client.List(ctx, &pods, client.InNamespace(namespace)); err != nil {
			return fmt.Errorf("list the pods of namespace %s: %w", namespace, err)
		}
		for i := range pods.Items {
			if change.Concerns(&pods.Items[i]) {
				seen.nodes[pods.Items[i].Spec.NodeName] = true
			}
		}
	}
	return nil
}

func (r *planReconciler) compileNode(ctx context.Context, node string) error {
	var list corev1.PodList
	if err := r.client.List(ctx, &list, client.MatchingFields{nodeNameField: node}); err != nil {
		return fmt.Errorf("list the pods of node %s: %w", node, err)
	}
	pods := make([]*corev1.Pod, 0, len(list.Items))
	for i := range list.Items {
		pods = append(pods, &list.Items[i])
	}
	r.teller.tellUnselected(ctx, node, r.incremental.CompileNode(node, pods))
	return nil
}

// unlessStopping drops the errors of requests that were cut off because the
// controller ends: the next one does that work anew.
func unlessStopping(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// input is everything but the pods.
func (r *planReconciler) input(ctx context.Context) (policy.Input, error) {
	var (
		paths           v1alpha1.MPTCPPathList
		policies        v1alpha1.MPTCPPolicyList
		clusterPolicies v1alpha1.ClusterMPTCPPolicyList
		guardrails      v1alpha1.MPTCPGuardrailList
		namespaces      corev1.NamespaceList
		nodes           corev1.NodeList
		configMaps      corev1.ConfigMapList
		endpoints       v1alpha1.MPTCPEndpointList
	)
	for _, list := range []client.ObjectList{&paths, &policies, &clusterPolicies, &guardrails, &namespaces, &nodes, &endpoints} {
		if err := r.client.List(ctx, list); err != nil {
			return policy.Input{}, fmt.Errorf("list %T: %w", list, err)
		}
	}
	if err := r.client.List(ctx, &configMaps, client.InNamespace(r.namespace)); err != nil {
		return policy.Input{}, fmt.Errorf("list %T: %w", &configMaps, err)
	}
	holders, err := r.holders(ctx, endpoints.Items)
	if err != nil {
		return policy.Input{}, err
	}
	var counting []v1alpha1.MPTCPPolicy
	counting, r.due = r.held.take(time.Now(), policies.Items)
	return policy.Input{
		Paths:           paths.Items,
		Policies:        counting,
		ClusterPolicies: clusterPolicies.Items,
		Guardrails:      guardrails.Items,
		Namespaces:      namespaces.Items,
		Nodes:           nodes.Items,
		Endpoints:       endpoints.Items,
		AddressHolders:  holders,
		ProgramObjects:  programObjects(configMaps.Items),
	}, nil
}

// programObjects lists the objects that programs can be loaded from, with the sums
// that the cache keeps of them.
func programObjects(configMaps []corev1.ConfigMap) map[policy.ProgramObject]string {
	objects := map[policy.ProgramObject]string{}
	for i := range configMaps {
		for key, sum := range configMaps[i].BinaryData {
			objects[policy.ProgramObject{ConfigMap: configMaps[i].Name, Key: key}] = string(sum)
		}
	}
	return objects
}

// write makes the plans of these nodes in the API, or all, equal to those given. A
// plan that cannot be written does not keep the others from being written. Where
// the cache was behind the API, the run is repeated shortly.
func (r *planReconciler) write(ctx context.Context, plans map[string]v1alpha1.MPTCPNodePlanSpec, all bool, nodes map[string]bool) (reconcile.Result, error) {
	existing, err := r.existing(ctx, all, nodes)
	if err != nil {
		r.changes.addAll()
		return reconcile.Result{}, err
	}
	if all {
		nodes = maps.Clone(nodes)
		for node := range plans {
			nodes[node] = true
		}
		for node := range existing {
			nodes[node] = true
		}
	}
	var writes []func() error
	for node := range nodes {
		want, wanted := plans[node]
		if write := r.difference(ctx, node, existing[node], want, wanted); write != nil {
			writes = append(writes, func() error {
				err := write()
				if err != nil {
					r.changes.add(node)
				}
				return err
			})
		}
	}
	return r.outcome(concurrently(writes))
}

// existing are the plans in the API, by node: those of these nodes, or all.
func (r *planReconciler) existing(ctx context.Context, all bool, nodes map[string]bool) (map[string]*v1alpha1.MPTCPNodePlan, error) {
	plans := make(map[string]*v1alpha1.MPTCPNodePlan, len(nodes))
	if all {
		var list v1alpha1.MPTCPNodePlanList
		if err := r.client.List(ctx, &list); err != nil {
			return nil, fmt.Errorf("list plans: %w", err)
		}
		for i := range list.Items {
			plans[list.Items[i].Name] = &list.Items[i]
		}
		return plans, nil
	}
	for node := range nodes {
		plan := &v1alpha1.MPTCPNodePlan{}
		err := r.client.Get(ctx, client.ObjectKey{Name: node}, plan)
		if client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("get the plan of node %s: %w", node, err)
		}
		if err == nil {
			plans[node] = plan
		}
	}
	return plans, nil
}

// difference is the write that makes a node's plan what it should be; nil when it
// is that already. plan is nil where there is none.
func (r *planReconciler) difference(ctx context.Context, node string, plan *v1alpha1.MPTCPNodePlan, want v1alpha1.MPTCPNodePlanSpec, wanted bool) func() error {
	switch {
	case plan == nil && wanted:
		return func() error { return r.create(ctx, node, want) }
	case plan != nil && !wanted:
		return func() error { return r.delete(ctx, plan) }
	case plan != nil && !asCompiled(plan, want):
		return func() error { return r.update(ctx, plan, want) }
	}
	return nil
}

// outcome turns the errors of writes into the reconciler's result.
func (r *planReconciler) outcome(errs []error) (reconcile.Result, error) {
	var failures []error
	var result reconcile.Result
	for _, err := range errs {
		if isStale(err) {
			result.RequeueAfter = r.changes.delay
		} else {
			failures = append(failures, err)
		}
	}
	if err := errors.Join(failures...); err != nil {
		return reconcile.Result{}, err
	}
	return result, nil
}

// isStale tells that a write failed because the cache was behind the API.
func isStale(err error) bool {
	return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err)
}

func (r *planReconciler) create(ctx context.Context, node string, spec v1alpha1.MPTCPNodePlanSpec) error {
	names := map[string]string{v1alpha1.AnnotationNames: v1alpha1.PlanNames(spec.Endpoints, firstGeneration)}
	plan := &v1alpha1.MPTCPNodePlan{ObjectMeta: metav1.ObjectMeta{Name: node, Annotations: names}, Spec: spec}
	err := r.client.Create(ctx, plan, client.FieldOwner(FieldOwner))
	if err == nil {
		r.teller.tell(ctx, nil, plan)
	}
	return r.written(ctx, "create", plan, err)
}

// update replaces the spec whatever else changed meanwhile: only the leader writes specs, and
// looks again at one that is another than it compiled, while an agent's status changes all
// the time.
func (r *planReconciler) update(ctx context.Context, plan *v1alpha1.MPTCPNodePlan, spec v1alpha1.MPTCPNodePlanSpec) error {
	patch, err := json.Marshal(planPatch(plan, spec))
	if err != nil {
		return fmt.Errorf("encode the plan of node %s: %w", plan.Name, err)
	}
	changed := &v1alpha1.MPTCPNodePlan{ObjectMeta: metav1.ObjectMeta{Name: plan.Name}}
	err = r.client.Patch(ctx, changed, client.RawPatch(types.JSONPatchType, patch), client.FieldOwner(FieldOwner))
	if err == nil {
		r.teller.tell(ctx, plan.Spec.Endpoints, changed)
	}
	return r.written(ctx, "update", changed, err)
}

// operation is one of a JSON patch.
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// planPatch makes a plan what was compiled. Where the plan is another by now than the one from
// the cache, the names are of another generation: nobody believes them, and they are written anew.
func planPatch(plan *v1alpha1.MPTCPNodePlan, spec v1alpha1.MPTCPNodePlanSpec) (patch []operation) {
	generation := plan.Generation
	if !sameSpec(spec, plan.Spec) {
		patch = append(patch, operation{"replace", "/spec", spec})
		generation++
	}
	names := v1alpha1.PlanNames(spec.Endpoints, generation)
	if plan.Annotations == nil {
		return append(patch, operation{"add", "/metadata/annotations", map[string]string{v1alpha1.AnnotationNames: names}})
	}
	return append(patch, operation{"add", "/metadata/annotations/" + strings.ReplaceAll(v1alpha1.AnnotationNames, "/", "~1"), names})
}

func (r *planReconciler) delete(ctx context.Context, plan *v1alpha1.MPTCPNodePlan) error {
	err := r.client.Delete(ctx, plan.DeepCopy(), client.Preconditions{UID: &plan.UID})
	return r.written(ctx, "delete", plan, err)
}

func (r *planReconciler) written(ctx context.Context, operation string, plan *v1alpha1.MPTCPNodePlan, err error) error {
	if err != nil {
		return fmt.Errorf("%s the plan of node %s: %w", operation, plan.Name, err)
	}
	planWrites.WithLabelValues(operation).Inc()
	log.FromContext(ctx).V(1).Info("Wrote plan", "node", plan.Name, "operation", operation,
		"endpoints", len(plan.Spec.Endpoints), "generation", plan.Generation)
	return nil
}

// firstGeneration is that of an object that was just made.
const firstGeneration = 1

// asCompiled tells whether a plan is what was compiled, and names its endpoints.
func asCompiled(plan *v1alpha1.MPTCPNodePlan, want v1alpha1.MPTCPNodePlanSpec) bool {
	return sameSpec(want, plan.Spec) && plan.Annotations[v1alpha1.AnnotationNames] == v1alpha1.PlanNames(want.Endpoints, plan.Generation)
}

func sameSpec(a, b v1alpha1.MPTCPNodePlanSpec) bool { return equality.Semantic.DeepEqual(a, b) }

// maxConcurrentWrites bounds the requests that are under way at once.
const maxConcurrentWrites = 8

// concurrently runs all functions, a few at a time, and returns their errors.
func concurrently(functions []func() error) []error {
	var (
		wait  sync.WaitGroup
		mu    sync.Mutex
		errs  []error
		slots = make(chan struct{}, maxConcurrentWrites)
	)
	for _, f := range functions {
		slots <- struct{}{}
		wait.Go(func() {
			defer func() { <-slots }()
			if err := f(); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
			}
		})
	}
	wait.Wait()
	return errs
}
