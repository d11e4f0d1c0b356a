// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/policy"
)

// confirmation is what was decided of the nodes' addresses, by node.
type confirmation = map[string]*policy.NodeAddresses

// addressReconciler confirms which of the addresses that agents report are their
// nodes', in the spec of the MPTCPNodes.
type addressReconciler struct {
	client    client.Client
	confirmed *shared[confirmation]
	runs      *debouncer
	// podRanges are those of which the admin says that all addresses are pods'.
	podRanges []netip.Prefix
	owners    atomic.Pointer[policy.PodOwners]
}

func setupAddresses(mgr ctrl.Manager, o Options, confirmed *shared[confirmation]) error {
	r := &addressReconciler{client: mgr.GetClient(), confirmed: confirmed, runs: newDebouncer(o.AddressDebounce, 0), podRanges: o.PodRanges}
	return ctrl.NewControllerManagedBy(mgr).Named("addresses").
		Watches(&v1alpha1.MPTCPNode{}, r.runs.handler(), builder.WithPredicates(predicate.Funcs{UpdateFunc: claimsChanged})).
		Watches(&corev1.Node{}, r.runs.handler(), builder.WithPredicates(predicate.Funcs{UpdateFunc: nodeAddressesChanged})).
		Watches(&corev1.Pod{}, r.runs.handler(), builder.WithPredicates(strays(mgr.GetClient(), &r.owners))).
		Watches(&v1alpha1.MPTCPPath{}, r.runs.handler(), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Complete(r)
}

// claimsChanged passes events of MPTCPNodes that can change whose an address is.
func claimsChanged(e event.UpdateEvent) bool {
	before, ok := e.ObjectOld.(*v1alpha1.MPTCPNode)
	after, is := e.ObjectNew.(*v1alpha1.MPTCPNode)
	return !ok || !is || before.UID != after.UID || !equality.Semantic.DeepEqual(before.Spec, after.Spec) ||
		!slices.Equal(before.Status.Addresses, after.Status.Addresses) ||
		!slices.EqualFunc(before.Status.Paths, after.Status.Paths, func(a, b v1alpha1.NodePath) bool {
			return a.Name == b.Name && slices.Equal(a.Addresses, b.Addresses)
		})
}

func nodeAddressesChanged(e event.UpdateEvent) bool {
	before, ok := e.ObjectOld.(*corev1.Node)
	after, is := e.ObjectNew.(*corev1.Node)
	return !ok || !is || !slices.Equal(before.Status.Addresses, after.Status.Addresses) ||
		!slices.Equal(before.Spec.PodCIDRs, after.Spec.PodCIDRs) || !maps.Equal(before.Labels, after.Labels)
}

// strays passes events of pods that have an address outside of their Node's podCIDRs, or one that
// other nodes take for another one's pod. Where no path is Routed it passes none: all pods of a
// cluster may be such.
func strays(c client.Reader, owners *atomic.Pointer[policy.PodOwners]) predicate.Predicate {
	ctx := context.Background()
	isStray := func(object client.Object) bool {
		pod, is := object.(*corev1.Pod)
		var paths v1alpha1.MPTCPPathList
		if !is || len(pod.Status.PodIPs) == 0 || c.List(ctx, &paths, client.UnsafeDisableDeepCopy) != nil || !policy.AnyRouted(paths.Items) {
			return false
		}
		var node corev1.Node
		if c.Get(ctx, client.ObjectKey{Name: pod.Spec.NodeName}, &node) != nil {
			return false
		}
		told := owners.Load()
		return policy.IsOutsideItsNode(pod, &node) || told != nil && told.Misses(pod)
	}
	return predicate.Funcs{
		CreateFunc: func(e event.CreateEvent) bool { return isStray(e.Object) },
		DeleteFunc: func(e event.DeleteEvent) bool { return isStray(e.Object) },
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, ok := e.ObjectOld.(*corev1.Pod)
			after, is := e.ObjectNew.(*corev1.Pod)
			return ok && is && !slices.Equal(before.Status.PodIPs, after.Status.PodIPs) && (isStray(before) || isStray(after))
		},
	}
}

// Reconcile writes the spec of every MPTCPNode whose confirmed addresses are other
// ones. An object that changed meanwhile is judged anew: what it was judged by may
// have been old.
func (r *addressReconciler) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	start := time.Now()
	var (
		members v1alpha1.MPTCPNodeList
		nodes   corev1.NodeList
		paths   v1alpha1.MPTCPPathList
	)
	for _, list := range []client.ObjectList{&members, &nodes, &paths} {
		if err := r.client.List(ctx, list); err != nil {
			return reconcile.Result{}, fmt.Errorf("list %T: %w", list, err)
		}
	}
	claims := policy.Claims{Members: members.Items, Nodes: nodes.Items, Paths: paths.Items, PodRanges: r.podRanges}
	if policy.AnyRouted(paths.Items) {
		var pods corev1.PodList
		if err := r.client.List(ctx, &pods, client.UnsafeDisableDeepCopy); err != nil {
			return reconcile.Result{}, fmt.Errorf("list %T: %w", &pods, err)
		}
		claims.Pods = pods.Items
	}
	decided := policy.ConfirmAddresses(claims)
	r.owners.Store(policy.OwnersOf(decided))
	r.confirmed.publish(&decided)
	var writes []func() error
	for i := range members.Items {
		member := &members.Items[i]
		spec := specOf(decided[member.Name])
		if !equality.Semantic.DeepEqual(member.Spec, spec) {
			writes = append(writes, func() error { return r.confirm(ctx, member, spec) })
		}
	}
	r.runs.measure(start)
	return r.outcome(ctx, concurrently(writes))
}

func specOf(decided *policy.NodeAddresses) *v1alpha1.MPTCPNodeSpec {
	return &v1alpha1.MPTCPNodeSpec{Confirmed: decided.Confirmed, PodRanges: decided.PodRanges, PodsLeftOut: decided.PodsLeftOut}
}

func (r *addressReconciler) confirm(ctx context.Context, member *v1alpha1.MPTCPNode, spec *v1alpha1.MPTCPNodeSpec) error {
	changed := member.DeepCopy()
	changed.Spec = spec
	if err := r.client.Update(ctx, changed, client.FieldOwner(FieldOwner)); err != nil {
		return fmt.Errorf("confirm the addresses of node %s: %w", member.Name, err)
	}
	return nil
}

func (r *addressReconciler) outcome(ctx context.Context, errs []error) (result reconcile.Result, _ error) {
	errs = slices.DeleteFunc(errs, func(err error) bool {
		if isStale(err) {
			result.RequeueAfter = r.runs.delay
			return true
		}
		return false
	})
	return result, unlessStopping(ctx, errors.Join(errs...))
}

// addressesConfirmed is the condition of a node: the one that it has until addresses
// were judged.
func addressesConfirmed(o *observation, node *v1alpha1.MPTCPNode) *metav1.Condition {
	if o.confirmed == nil || (*o.confirmed)[node.Name] == nil {
		return meta.FindStatusCondition(node.Status.Conditions, v1alpha1.ConditionAddressesConfirmed)
	}
	status, reason, message := judgeAddresses((*o.confirmed)[node.Name])
	return new(condition(v1alpha1.ConditionAddressesConfirmed, status, reason, message, node.Generation))
}

// judgeAddresses says what is most worth knowing of a node's addresses.
func judgeAddresses(of *policy.NodeAddresses) (status metav1.ConditionStatus, reason, message string) {
	refused := slices.DeleteFunc(slices.Clone(of.Refused), func(r policy.RefusedAddress) bool { return r.Reason == v1alpha1.ReasonUnproven })
	unproven := map[v1alpha1.PathName]bool{}
	for _, c := range of.Confirmed {
		if c.Proof == v1alpha1.AddressProofFirstClaim && c.Path != "" {
			unproven[c.Path] = true
		}
	}
	switch {
	case len(refused) > 0:
		return metav1.ConditionFalse, refused[0].Reason, "other nodes do not use: " + listRefused(refused)
	case len(of.Contested) > 0:
		return metav1.ConditionTrue, v1alpha1.ReasonDuplicate, listRefused(of.Contested)
	case len(unproven) > 0:
		return metav1.ConditionTrue, v1alpha1.ReasonUnproven,
			"nothing proves addresses on " + enumerate(slices.Sorted(maps.Keys(unproven))) + ", which this node reported first: give the path addressRanges of both families"
	case len(of.Refused) > 0:
		return metav1.ConditionTrue, v1alpha1.ReasonUnproven, "other nodes do not use: " + listRefused(of.Refused)
	}
	return metav1.ConditionTrue, v1alpha1.ReasonConfirmed, fmt.Sprintf("%d addresses are the node's", len(of.Confirmed))
}

// listRefused names the first few.
func listRefused(refused []policy.RefusedAddress) string {
	const shown = 3
	var texts []string
	for _, r := range refused[:min(len(refused), shown)] {
		texts = append(texts, r.Text+" "+r.Detail)
	}
	text := strings.Join(texts, "; ")
	if more := len(refused) - shown; more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	return text
}
