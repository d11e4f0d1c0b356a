// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/policy"
)

// CacheOptions keep the manager's cache small: pods that run on a node, of pods,
// nodes and namespaces only what the compile reads, Leases and ConfigMaps of one
// namespace ("" means DefaultNamespace), of ConfigMaps a sum of their binary data, and
// of roles, bindings and ServiceAccounts those of agents. Objects from this cache are
// shared and must not be changed.
func CacheOptions(namespace string) cache.Options {
	namespace = cmp.Or(namespace, DefaultNamespace)
	own := map[string]cache.Config{namespace: {}}
	agents := map[string]cache.Config{namespace + v1alpha1.AgentsNamespaceSuffix: {}}
	ofAgents := labels.SelectorFromSet(labels.Set{labelManagedBy: FieldOwner})
	return cache.Options{
		DefaultTransform:             cache.TransformStripManagedFields(),
		DefaultUnsafeDisableDeepCopy: new(true),
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Pod{}:           {Field: runningPods(), Transform: trimPod},
			&corev1.Node{}:          {Transform: trimNode},
			&corev1.Namespace{}:     {Transform: trimNamespace},
			&coordinationv1.Lease{}: {Namespaces: own},
			&corev1.ConfigMap{}:     {Namespaces: own, Transform: sumConfigMap},

			&rbacv1.ClusterRole{}:        {Label: ofAgents},
			&rbacv1.ClusterRoleBinding{}: {Label: ofAgents},
			&rbacv1.Role{}:               {Namespaces: own, Label: ofAgents},
			&rbacv1.RoleBinding{}:        {Namespaces: own, Label: ofAgents},
			&corev1.ServiceAccount{}:     {Namespaces: agents, Label: ofAgents},
		},
	}
}

// runningPods selects pods that have a node and have not ended. A pod that ends
// leaves the cache as if it were deleted.
func runningPods() fields.Selector {
	return fields.AndSelectors(
		fields.OneTermNotEqualSelector("spec.nodeName", ""),
		fields.OneTermNotEqualSelector("status.phase", string(corev1.PodSucceeded)),
		fields.OneTermNotEqualSelector("status.phase", string(corev1.PodFailed)),
	)
}

func trimMeta(m metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: m.Namespace, Name: m.Name, UID: m.UID, Labels: m.Labels, ResourceVersion: m.ResourceVersion}
}

func trimPod(object any) (any, error) {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return object, nil
	}
	meta := trimMeta(pod.ObjectMeta)
	meta.Annotations = annotations(pod)
	return &corev1.Pod{
		ObjectMeta: meta,
		Spec:       corev1.PodSpec{NodeName: pod.Spec.NodeName, HostNetwork: pod.Spec.HostNetwork},
		Status:     corev1.PodStatus{Phase: pod.Status.Phase, PodIPs: pod.Status.PodIPs},
	}, nil
}

// annotations are those of a pod that count; nil when there are none.
func annotations(pod *corev1.Pod) map[string]string {
	found := policy.OwnAnnotations(pod.Annotations)
	if hash, given := pod.Annotations[corev1.MirrorPodAnnotationKey]; given {
		if found == nil {
			found = map[string]string{}
		}
		found[corev1.MirrorPodAnnotationKey] = hash
	}
	return found
}

func trimNode(object any) (any, error) {
	if node, ok := object.(*corev1.Node); ok {
		return &corev1.Node{
			ObjectMeta: trimMeta(node.ObjectMeta), Spec: corev1.NodeSpec{PodCIDRs: node.Spec.PodCIDRs},
			Status: corev1.NodeStatus{Addresses: node.Status.Addresses},
		}, nil
	}
	return object, nil
}

func trimNamespace(object any) (any, error) {
	if ns, ok := object.(*corev1.Namespace); ok {
		return &corev1.Namespace{ObjectMeta: trimMeta(ns.ObjectMeta)}, nil
	}
	return object, nil
}

// sumConfigMap puts a short sum in the place of each value of the binary data, so
// that objects of programs do not fill the memory, and drops the rest.
func sumConfigMap(object any) (any, error) {
	m, ok := object.(*corev1.ConfigMap)
	if !ok {
		return object, nil
	}
	sums := make(map[string][]byte, len(m.BinaryData))
	for key, content := range m.BinaryData {
		sum := sha256.Sum256(content)
		sums[key] = []byte(hex.EncodeToString(sum[:8]))
	}
	return &corev1.ConfigMap{ObjectMeta: trimMeta(m.ObjectMeta), BinaryData: sums}, nil
}

// programsChanged passes events of ConfigMaps that can change a program's object.
type programsChanged struct{ predicate.Funcs }

func (programsChanged) Create(e event.CreateEvent) bool { return len(binaryData(e.Object)) > 0 }

func (programsChanged) Delete(e event.DeleteEvent) bool { return len(binaryData(e.Object)) > 0 }

func (programsChanged) Update(e event.UpdateEvent) bool {
	return !maps.EqualFunc(binaryData(e.ObjectOld), binaryData(e.ObjectNew), bytes.Equal)
}

func binaryData(object client.Object) map[string][]byte {
	if m, ok := object.(*corev1.ConfigMap); ok {
		return m.BinaryData
	}
	return nil
}

// podChanged passes events of pods that can change a plan: of those that have an
// interface and an address of their own, and of those that will where new pods are
// guarded.
type podChanged struct {
	predicate.Funcs
	compiled *compilation
}

func (p podChanged) Create(e event.CreateEvent) bool { return p.takesPart(e.Object) }

func (p podChanged) Delete(e event.DeleteEvent) bool { return p.takesPart(e.Object) }

func (p podChanged) Update(e event.UpdateEvent) bool {
	before, ok := e.ObjectOld.(*corev1.Pod)
	if !ok {
		return true
	}
	after, ok := e.ObjectNew.(*corev1.Pod)
	if !ok {
		return true
	}
	return before.UID != after.UID || p.takesPart(before) != p.takesPart(after) || p.takesPart(after) &&
		(before.Spec.NodeName != after.Spec.NodeName || !maps.Equal(before.Labels, after.Labels) || !maps.Equal(annotations(before), annotations(after)) ||
			!slices.Equal(before.Status.PodIPs, after.Status.PodIPs))
}

func (p podChanged) takesPart(object client.Object) bool {
	pod, ok := object.(*corev1.Pod)
	return !ok || !pod.Spec.HostNetwork && (len(pod.Status.PodIPs) > 0 || p.addressesLater(pod.Namespace))
}

// addressesLater: pods of the namespace count before they have an address.
func (p podChanged) addressesLater(namespace string) bool {
	result := p.compiled.load()
	return result == nil || result.GuardsNewPods && !result.WhollyGuarded[namespace]
}

// planDrifted passes events of plans that are not what was compiled last, so
// that the controller's own writes do not cause a run. A deletion passes always.
type planDrifted struct {
	predicate.Funcs
	compiled *compilation
}

func (p planDrifted) Create(e event.CreateEvent) bool { return p.drifted(e.Object) }

func (p planDrifted) Update(e event.UpdateEvent) bool {
	same := e.ObjectOld.GetGeneration() == e.ObjectNew.GetGeneration() &&
		e.ObjectOld.GetAnnotations()[v1alpha1.AnnotationNames] == e.ObjectNew.GetAnnotations()[v1alpha1.AnnotationNames]
	return !same && p.drifted(e.ObjectNew)
}

func (p planDrifted) drifted(object client.Object) bool {
	plan, ok := object.(*v1alpha1.MPTCPNodePlan)
	result := p.compiled.load()
	if !ok || result == nil {
		return true
	}
	want, ok := result.Plans[plan.Name]
	return !ok || !asCompiled(plan, want)
}
