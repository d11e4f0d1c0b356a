// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"braid.dev/braid/api/v1alpha1"
)

// Kinds of policies, as PolicyReference.Kind gives them.
const (
	KindPolicy        = "MPTCPPolicy"
	KindClusterPolicy = "ClusterMPTCPPolicy"
	KindGuardrail     = "MPTCPGuardrail"
)

// compiledPolicy is a policy or guardrail in the form that the compile works with.
type compiledPolicy struct {
	// source is a copy of the object's spec, and spec a part of it: not the object's
	// own, which would keep all objects of its list in memory.
	source  any
	spec    *v1alpha1.PolicyRules
	created metav1.Time
	// namespaces is nil for an MPTCPPolicy.
	namespaces labels.Selector
	pods       labels.Selector
	// matchedNamespaces changes with the namespaces of the cluster, also where the policy stays.
	matchedNamespaces *int
	programs          []v1alpha1.Program
	incast            *v1alpha1.Incast     // of a ClusterMPTCPPolicy; nil for nothing against it
	rules             []v1alpha1.PlanRule  // to be used when the result has no RuleProblems
	guardrails        *v1alpha1.Guardrails // of an MPTCPGuardrail, which never decides; else nil
	unselected        bool                 // stands for the policy of a pod that only guardrails select
	index             int                  // in order of precedence
	checked           bool                 // the result says what does not depend on pods
	result            *PolicyResult
}

// compilePolicies compiles all policies and guardrails, in order of precedence. One
// with an error selects nothing.
func compilePolicies(in *Input) []*compiledPolicy {
	compiled := make([]*compiledPolicy, 0, len(in.Policies)+len(in.ClusterPolicies)+len(in.Guardrails))
	for i := range in.Policies {
		spec := in.Policies[i].Spec
		r := newPolicy(KindPolicy, &in.Policies[i].ObjectMeta, &spec, &spec.PolicyRules)
		r.pods = r.selector("spec.podSelector", &spec.PodSelector)
		compiled = append(compiled, r)
	}
	for i := range in.ClusterPolicies {
		spec := in.ClusterPolicies[i].Spec
		r := newPolicy(KindClusterPolicy, &in.ClusterPolicies[i].ObjectMeta, &spec, &spec.PolicyRules)
		r.programs = spec.Programs
		r.incastOf(&spec)
		r.namespaces = r.selector("spec.namespaceSelector", &spec.NamespaceSelector)
		r.pods = r.selector("spec.podSelector", &spec.PodSelector)
		compiled = append(compiled, r)
	}
	for i := range in.Guardrails {
		spec := in.Guardrails[i].Spec
		r := newPolicy(KindGuardrail, &in.Guardrails[i].ObjectMeta, &spec, &v1alpha1.PolicyRules{Priority: spec.Priority})
		r.guardrails = &spec.Guardrails
		r.namespaces = r.selector("spec.namespaceSelector", &spec.NamespaceSelector)
		r.pods = r.selector("spec.podSelector", &spec.PodSelector)
		compiled = append(compiled, r)
	}
	slices.SortFunc(compiled, precedence)
	for i, r := range compiled {
		r.index = i
	}
	return compiled
}

func newPolicy(kind string, meta *metav1.ObjectMeta, source any, spec *v1alpha1.PolicyRules) *compiledPolicy {
	return &compiledPolicy{source: source, spec: spec, created: meta.CreationTimestamp, result: &PolicyResult{
		Policy: v1alpha1.PolicyReference{Kind: kind, Namespace: meta.Namespace, Name: meta.Name, Generation: meta.Generation},
		Blocks: blocksOf(spec),
	}}
}

// incastOf notes what the policy does against incast, if anything.
func (r *compiledPolicy) incastOf(spec *v1alpha1.ClusterMPTCPPolicySpec) {
	if spec.Incast == nil || spec.Incast.Mode != v1alpha1.IncastCredits {
		return
	}
	r.incast = spec.Incast
	r.result.Blocks = append(r.result.Blocks, "spec.incast")
}

// blocksOf are the parts of a spec that say something; of a guardrail there are none.
func blocksOf(spec *v1alpha1.PolicyRules) (blocks []string) {
	if spec == nil {
		return nil
	}
	subflows := withoutDefaults(spec.Subflows)
	for _, block := range []struct {
		name  string
		given bool
	}{
		{"spec.paths", !reflect.ValueOf(spec.Paths).IsZero()},
		{"spec.subflows", !reflect.ValueOf(subflows).IsZero()},
		{"spec.sockets", !reflect.ValueOf(spec.Sockets).IsZero()},
		{"spec.transport", spec.Transport != nil},
		{rulesField.String(), len(spec.Rules) > 0},
	} {
		if block.given {
			blocks = append(blocks, block.name)
		}
	}
	return blocks
}

// withoutDefaults leaves out what the API server fills in.
func withoutDefaults(s v1alpha1.SubflowRules) v1alpha1.SubflowRules {
	if s.Manager == v1alpha1.SubflowManagerKernel {
		s.Manager = ""
	}
	if s.Mode == v1alpha1.SubflowModePerPath {
		s.Mode = ""
	}
	if s.Reopen == v1alpha1.ReopenAlways {
		s.Reopen = ""
	}
	return s
}

// selector compiles a label selector. An invalid one selects nothing and is the
// policy's error.
func (r *compiledPolicy) selector(field string, selector *metav1.LabelSelector) labels.Selector {
	compiled, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		r.result.Error = fmt.Sprintf("%s: %v", field, err)
		return labels.Nothing()
	}
	return compiled
}

// policiesByNamespace lists for each namespace the policies that can select its pods,
// in order of precedence. Those of the cluster reach only namespaces that are
// known, because their labels decide.
func policiesByNamespace(policies []*compiledPolicy, namespaces []corev1.Namespace) map[string][]*compiledPolicy {
	index := make(map[string][]*compiledPolicy, len(namespaces))
	for _, r := range policies {
		if r.namespaces == nil {
			index[r.result.Policy.Namespace] = append(index[r.result.Policy.Namespace], r)
			continue
		}
		matched := 0
		for i := range namespaces {
			if ns := &namespaces[i]; r.namespaces.Matches(labels.Set(ns.Labels)) {
				index[ns.Name] = append(index[ns.Name], r)
				matched++
			}
		}
		r.matchedNamespaces = &matched
	}
	return index
}

// precedence orders policies so that the one that wins comes first.
func precedence(a, b *compiledPolicy) int {
	return cmp.Or(
		cmp.Compare(b.spec.Priority, a.spec.Priority),
		compareAge(a.created, b.created),
		comparePolicies(a.result.Policy, b.result.Policy),
	)
}

// compareAge puts the older first, and what was never stored last.
func compareAge(a, b metav1.Time) int {
	switch {
	case a.IsZero() == b.IsZero():
		return a.Time.Compare(b.Time)
	case a.IsZero():
		return 1
	}
	return -1
}

// comparePolicies orders by kind, with ClusterMPTCPPolicy first, then by
// namespace and name.
func comparePolicies(a, b v1alpha1.PolicyReference) int {
	return cmp.Or(
		strings.Compare(a.Kind, b.Kind),
		strings.Compare(a.Namespace, b.Namespace),
		strings.Compare(a.Name, b.Name),
	)
}

// unknownPaths lists the names in a policy that none of the paths has.
func (r *compiledPolicy) unknownPaths(paths []*path) []v1alpha1.PathName {
	var unknown []v1alpha1.PathName
	for _, name := range slices.Concat(r.namedPaths(), r.guardedPaths()) {
		if findPath(paths, name) == nil {
			unknown = append(unknown, name)
		}
	}
	slices.Sort(unknown)
	return slices.Compact(unknown)
}

// namedPaths lists the paths that a policy names for its pods, sorted.
func (r *compiledPolicy) namedPaths() []v1alpha1.PathName {
	names := slices.Concat(r.spec.Paths.Allowed, r.spec.Paths.Preferred, r.spec.Paths.Backup)
	for _, w := range r.spec.Paths.Weights {
		names = append(names, w.Path)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// allows says whether a policy lets pods use a path.
func (r *compiledPolicy) allows(name v1alpha1.PathName) bool {
	return len(r.spec.Paths.Allowed) == 0 || slices.Contains(r.spec.Paths.Allowed, name)
}

// explicitWeight is the weight that a policy gives a path, 0 if none.
func (r *compiledPolicy) explicitWeight(name v1alpha1.PathName) int32 {
	for _, w := range r.spec.Paths.Weights {
		if w.Path == name {
			return w.Weight
		}
	}
	return 0
}

// manager is who opens further subflows; objects that did not pass the API
// server lack its default.
func (r *compiledPolicy) manager() v1alpha1.SubflowManager {
	return cmp.Or(r.spec.Subflows.Manager, v1alpha1.SubflowManagerKernel)
}
