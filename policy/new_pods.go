// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"braid.dev/braid/api/v1alpha1"
)

// MaxExemptPods is how many pods one node's plan can exempt from what holds for new
// ones. Those beyond it are guarded.
const MaxExemptPods = 1024

// newPodGuardrails are those that guard pods which a plan does not have yet, in order of
// precedence.
func newPodGuardrails(policies []*compiledPolicy) []*compiledPolicy {
	return slices.DeleteFunc(slices.Clone(policies), func(p *compiledPolicy) bool { return !p.guardsNewPods() })
}

func (r *compiledPolicy) guardsNewPods() bool {
	return r.guardrails != nil && r.guardrails.NewPods == v1alpha1.NewPodsGuard && r.result.Error == ""
}

// exempt lists a pod of the node as one that nobody guards, unless it is an endpoint, or
// one of the guardrails that guard new pods selects it. It need not have an address, so
// that it is known before its interface is there. What selects the pods of a namespace
// that is not known yet is not known either.
func (c *compiler) exempt(n *node, w *workload) {
	if len(c.newPods) == 0 || len(n.exempt) == MaxExemptPods || !c.namespaces[w.ref.Namespace] || !w.hasInterface || n.endsWith(w) {
		return
	}
	for _, p := range c.byNamespace[w.ref.Namespace] {
		if p.guardsNewPods() && p.pods.Matches(labels.Set(w.labels)) {
			return
		}
	}
	n.exempt = append(n.exempt, v1alpha1.PlanExemptPod{UID: w.ref.UID, CgroupUID: w.cgroupUID, Addresses: w.addresses})
}

// hasInterface: the pod has an interface of its own, or may get one.
func hasInterface(pod *corev1.Pod) bool {
	return !pod.Spec.HostNetwork && pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed
}

// endsWith: the pod is the last endpoint of the node.
func (n *node) endsWith(w *workload) bool {
	return len(n.endpoints) > 0 && n.endpoints[len(n.endpoints)-1].UID == w.ref.UID
}

// planNewPods is the strictest of what these guardrails ask: nobody knows yet for which
// of them a new pod is. Nil means that they ask nothing on this node.
func (n *node) planNewPods(guarding []*compiledPolicy) *v1alpha1.PlanNewPods {
	g := guardrails{policies: guarding}
	plan := v1alpha1.PlanNewPods{SpoofCheck: g.spoofCheck()}
	plan.MaxRate, _ = g.maxPodRate()
	for _, path := range n.tenantPaths(guarding) {
		if path.MaxRate > 0 && (plan.MaxRate == 0 || path.MaxRate < plan.MaxRate) {
			plan.MaxRate = path.MaxRate
		}
	}
	if plan.MaxRate == 0 && !plan.SpoofCheck {
		return nil
	}
	plan.Exempt = n.exempt
	return &plan
}

// newNamespaces are those whose pods may be exempt now, or no longer.
func (c *compiler) newNamespaces(before *compiler) map[string]bool {
	other := map[string]bool{}
	if len(c.newPods) == 0 {
		return other
	}
	for _, name := range union(before.namespaces, c.namespaces) {
		if before.namespaces[name] != c.namespaces[name] {
			other[name] = true
		}
	}
	return other
}

// whollyGuarded are the namespaces of which guardrails for new pods select every pod.
func (c *compiler) whollyGuarded() map[string]bool {
	guarded := map[string]bool{}
	for namespace, policies := range c.byNamespace {
		guarded[namespace] = slices.ContainsFunc(policies, func(p *compiledPolicy) bool { return p.guardsNewPods() && p.pods.Empty() })
	}
	return guarded
}
