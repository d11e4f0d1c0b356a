// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"braid.dev/braid/api/v1alpha1"
)

// What the identities of agents take. RBAC lets the controller hand out only what it
// may do itself, so some of this it holds for the agents alone; the admission policy
// braid-controller keeps it from using that, and from writing other roles and bindings
// than those of agents.
//
// +kubebuilder:rbac:groups=rbac.authorization.k8s.io,resources=clusterroles;clusterrolebindings,verbs=get;list;watch;create;update;delete
// +kubebuilder:rbac:groups=rbac.authorization.k8s.io,namespace=braid-system,resources=roles;rolebindings,verbs=get;list;watch;create;update;delete
// +kubebuilder:rbac:groups="",namespace=braid-system-agents,resources=serviceaccounts,verbs=get;list;watch;create;delete
// +kubebuilder:rbac:groups="",resources=nodes,verbs=get
// +kubebuilder:rbac:groups=braid.dev,resources=mptcpnodeplans,verbs=get
// +kubebuilder:rbac:groups=braid.dev,resources=mptcpnodeplans/status,verbs=patch
// +kubebuilder:rbac:groups=braid.dev,resources=mptcpnodes,verbs=get;create
// +kubebuilder:rbac:groups="",namespace=braid-system,resources=configmaps,verbs=get

// labelManagedBy marks what the controller makes for agents.
const labelManagedBy = "app.kubernetes.io/managed-by"

// ownRole is the ClusterRole of the controller. It owns the agents' identities, so that
// they go with the installation: nothing else that is installed is of the cluster's
// scope and never kept.
const ownRole = "braid-controller"

// identityReconciler gives the agent of each node a ServiceAccount of its own, which may
// read and write what concerns that node alone: RBAC knows nodes by nothing else.
type identityReconciler struct {
	client    client.Client
	reader    client.Reader // of the API server itself
	namespace string
}

func setupIdentities(mgr ctrl.Manager, o Options) error {
	r := &identityReconciler{client: mgr.GetClient(), reader: mgr.GetAPIReader(), namespace: o.Namespace}
	comesOrGoes := predicate.Funcs{UpdateFunc: func(event.UpdateEvent) bool { return false }}
	b := ctrl.NewControllerManagedBy(mgr).Named("identity").
		For(&corev1.Node{}, builder.WithPredicates(comesOrGoes)).
		Watches(&v1alpha1.MPTCPNodePlan{}, &handler.EnqueueRequestForObject{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WithOptions(controller.Options{MaxConcurrentReconciles: maxConcurrentWrites})
	for _, object := range identity("", "", nil) {
		b.Watches(object, handler.EnqueueRequestsFromMapFunc(identityNode))
	}
	return b.Complete(r)
}

// identityNode is the node whose agent an object of an identity belongs to.
func identityNode(_ context.Context, object client.Object) []reconcile.Request {
	node, ok := strings.CutPrefix(object.GetName(), v1alpha1.AgentAccountPrefix)
	if !ok {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: node}}}
}

// Reconcile makes or mends the identity of a node's agent, or removes it with the node.
func (r *identityReconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	err := r.client.Get(ctx, request.NamespacedName, &corev1.Node{})
	switch {
	case apierrors.IsNotFound(err):
		err = r.remove(ctx, request.Name)
	case err == nil:
		err = r.write(ctx, request.Name)
	}
	if isStale(err) {
		return reconcile.Result{RequeueAfter: DefaultStatusDebounce}, nil
	}
	return reconcile.Result{}, unlessStopping(ctx, err)
}

func (r *identityReconciler) write(ctx context.Context, node string) error {
	var plan v1alpha1.MPTCPNodePlan
	if err := r.client.Get(ctx, client.ObjectKey{Name: node}, &plan); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("get the plan of node %s: %w", node, err)
	}
	for _, want := range identity(node, r.namespace, configMapsOf(&plan.Spec)) {
		if err := r.writeOne(ctx, want); err != nil {
			return fmt.Errorf("write %T %s: %w", want, want.GetName(), err)
		}
	}
	return nil
}

func (r *identityReconciler) writeOne(ctx context.Context, want client.Object) error {
	current := empty(want)
	err := r.client.Get(ctx, client.ObjectKeyFromObject(want), current)
	switch {
	case apierrors.IsNotFound(err):
		return r.create(ctx, want)
	case err != nil || equality.Semantic.DeepEqual(grants(current), grants(want)):
		return err
	}
	want.SetResourceVersion(current.GetResourceVersion())
	want.SetOwnerReferences(current.GetOwnerReferences())
	return r.client.Update(ctx, want, client.FieldOwner(FieldOwner))
}

// create takes over nothing that somebody else has made.
func (r *identityReconciler) create(ctx context.Context, want client.Object) error {
	var owner rbacv1.ClusterRole
	if err := r.reader.Get(ctx, client.ObjectKey{Name: ownRole}, &owner); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("get ClusterRole %s: %w", ownRole, err)
	}
	if owner.UID != "" {
		want.SetOwnerReferences([]metav1.OwnerReference{{
			APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "ClusterRole", Name: owner.Name, UID: owner.UID,
		}})
	}
	err := r.client.Create(ctx, want, client.FieldOwner(FieldOwner))
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	there := empty(want)
	if err := r.reader.Get(ctx, client.ObjectKeyFromObject(want), there); err != nil {
		return err
	}
	if there.GetLabels()[labelManagedBy] != FieldOwner {
		return errors.New("it exists and was not made by the controller: delete it, or give it another name")
	}
	return err // The cache is behind.
}

// remove begins with the ServiceAccount, whose tokens end with it.
func (r *identityReconciler) remove(ctx context.Context, node string) error {
	for _, object := range slices.Backward(identity(node, r.namespace, nil)) {
		current := empty(object)
		err := r.client.Get(ctx, client.ObjectKeyFromObject(object), current)
		if err == nil {
			err = r.client.Delete(ctx, object, client.Preconditions{UID: new(current.GetUID())})
		}
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("remove %T %s: %w", object, object.GetName(), err)
		}
	}
	return nil
}

// configMapsOf names the ConfigMaps that a plan takes programs from, sorted.
func configMapsOf(plan *v1alpha1.MPTCPNodePlanSpec) (names []string) {
	for i := range plan.Programs {
		if from := plan.Programs[i].ConfigMap; from != nil {
			names = append(names, from.Name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// identity is what makes the identity of a node's agent, in the order in which it is
// written: the ServiceAccount, without which there is no token, comes last.
func identity(node, namespace string, configMaps []string) []client.Object {
	name := v1alpha1.AgentAccountPrefix + node
	meta := metav1.ObjectMeta{Name: name, Labels: map[string]string{labelManagedBy: FieldOwner, "app.kubernetes.io/part-of": "braid"}}
	inNamespace, inAgents := meta, meta
	inNamespace.Namespace, inAgents.Namespace = namespace, namespace+v1alpha1.AgentsNamespaceSuffix
	subjects := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: inAgents.Namespace, Name: name}}
	return []client.Object{
		&rbacv1.ClusterRole{ObjectMeta: meta, Rules: clusterRules(node)},
		&rbacv1.ClusterRoleBinding{ObjectMeta: meta, Subjects: subjects, RoleRef: rbacv1.RoleRef{
			APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name,
		}},
		&rbacv1.Role{ObjectMeta: inNamespace, Rules: namespaceRules(node, configMaps)},
		&rbacv1.RoleBinding{ObjectMeta: inNamespace, Subjects: subjects, RoleRef: rbacv1.RoleRef{
			APIGroup: rbacv1.GroupName, Kind: "Role", Name: name,
		}},
		&corev1.ServiceAccount{ObjectMeta: inAgents, AutomountServiceAccountToken: new(false)},
	}
}

// clusterRules are what the agent of a node may do with objects of the cluster's scope.
// Every agent needs all MPTCPNodes, to reach the other nodes. RBAC does not see the name
// of an object that is created; the admission policy braid-agent-own-node does.
func clusterRules(node string) []rbacv1.PolicyRule {
	ours, own := []string{v1alpha1.GroupVersion.Group}, []string{node}
	read := []string{"get", "list", "watch"}
	return []rbacv1.PolicyRule{
		{APIGroups: ours, Resources: []string{"mptcpnodeplans"}, ResourceNames: own, Verbs: read},
		{APIGroups: ours, Resources: []string{"mptcpnodeplans/status", "mptcpnodes/status"}, ResourceNames: own, Verbs: []string{"patch"}},
		{APIGroups: ours, Resources: []string{"mptcpnodes"}, Verbs: append([]string{"create"}, read...)},
		{APIGroups: []string{""}, Resources: []string{"nodes"}, ResourceNames: own, Verbs: read},
		// Who may get the agent's metrics.
		{APIGroups: []string{"authentication.k8s.io"}, Resources: []string{"tokenreviews"}, Verbs: []string{"create"}},
		{APIGroups: []string{"authorization.k8s.io"}, Resources: []string{"subjectaccessreviews"}, Verbs: []string{"create"}},
	}
}

// namespaceRules are what it may do in Braid's own namespace.
func namespaceRules(node string, configMaps []string) []rbacv1.PolicyRule {
	rules := []rbacv1.PolicyRule{{
		APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"},
		ResourceNames: []string{v1alpha1.AgentLeasePrefix + node}, Verbs: []string{"get", "create", "update"},
	}}
	if len(configMaps) > 0 {
		rules = append(rules, rbacv1.PolicyRule{
			APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: configMaps, Verbs: []string{"get"},
		})
	}
	return rules
}

// empty returns an object of the same kind.
func empty(object client.Object) client.Object {
	return reflect.New(reflect.TypeOf(object).Elem()).Interface().(client.Object) //nolint:forcetypeassert // of the same type
}

// grants is what can change of an object of an identity.
func grants(object client.Object) any {
	switch object := object.(type) {
	case *rbacv1.ClusterRole:
		return object.Rules
	case *rbacv1.Role:
		return object.Rules
	case *rbacv1.ClusterRoleBinding:
		return object.Subjects
	case *rbacv1.RoleBinding:
		return object.Subjects
	}
	return nil
}
