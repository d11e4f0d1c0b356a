// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/labels"

	"braid.dev/braid/api/v1alpha1"
)

// Change says which nodes an Update leaves to be compiled.
type Change struct {
	// Nodes are those that are new, have other paths, other VMs or guardrails for new pods,
	// VMs that a change concerns, or are gone, sorted; CompileNode
	// need not be called for the last, whose plans Result no longer has.
	Nodes []string
	// policies are by namespace those that did not count for its pods before, or no
	// longer do.
	policies map[string][]*compiledPolicy
	// namespaces are those of which all pods are concerned.
	namespaces map[string]bool
}

// Namespaces lists those with pods of which Concerns may be true, sorted.
func (c *Change) Namespaces() []string {
	names := slices.AppendSeq(slices.Collect(maps.Keys(c.policies)), maps.Keys(c.namespaces))
	slices.Sort(names)
	return slices.Compact(names)
}

// Concerns says whether the node of a pod is to be compiled, because a policy
// selects the pod that is new or another one, or no longer there, or its namespace is.
func (c *Change) Concerns(pod *corev1.Pod) bool { return c.concerns(pod.Namespace, pod.Labels) }

func (c *Change) concerns(namespace string, of map[string]string) bool {
	return c.namespaces[namespace] || slices.ContainsFunc(c.policies[namespace], func(p *compiledPolicy) bool {
		return p.pods.Matches(labels.Set(of))
	})
}

// addGuests adds the nodes of VMs that are concerned.
func (c *Change) addGuests(now *compiler) {
	for name, guests := range now.guests.byNode {
		if now.nodes[name] != nil && slices.ContainsFunc(guests, func(w *workload) bool { return c.concerns(w.ref.Namespace, w.labels) }) {
			c.Nodes = append(c.Nodes, name)
		}
	}
	slices.Sort(c.Nodes)
	c.Nodes = slices.Compact(c.Nodes)
}

// Update puts an Input in the place of the last one, and says for which nodes
// CompileNode is to be called before Result is right again. Pods do not count, as
// with NewIncremental: after a change of pods CompileNode is to be called for their
// nodes all the same.
func (i *Incremental) Update(in Input) Change {
	before, now := i.compiler, newCompiler(in, i.compiler)
	if !now.keepsPolicies(before) {
		*i = *newIncremental(now)
		return Change{Nodes: union(before.nodes, now.nodes)}
	}
	i.compiler = now
	i.forgetPolicies(before)
	change := Change{policies: map[string][]*compiledPolicy{}, namespaces: now.newNamespaces(before)}
	otherGuests := now.otherGuests(before)
	otherNewPods := !slices.Equal(before.newPods, now.newPods)
	for _, name := range union(before.nodes, now.nodes) {
		if otherNewPods || !samePaths(before.nodes[name], now.nodes[name]) {
			change.Nodes = append(change.Nodes, name)
			i.forgetNode(name)
		} else if otherGuests[name] {
			change.Nodes = append(change.Nodes, name)
		}
	}
	for _, namespace := range union(before.byNamespace, now.byNamespace) {
		if others := difference(before.byNamespace[namespace], now.byNamespace[namespace]); len(others) > 0 {
			change.policies[namespace] = others
		}
	}
	change.addGuests(now)
	return change
}

// forgetPolicies drops what was known of policies that are no longer compiled.
func (i *Incremental) forgetPolicies(before *compiler) {
	for _, p := range difference(before.policies, i.compiler.policies) {
		delete(i.shares, p.result)
		delete(i.merged, p.result)
	}
}

func (i *Incremental) forgetNode(name string) {
	if n := i.nodes[name]; n != nil {
		i.remove(n, nil)
	}
}

// keepsPolicies says whether a policy that stays as it is comes to the same as
// before: that depends on the paths, and on the objects of programs.
func (c *compiler) keepsPolicies(before *compiler) bool {
	return before != nil && maps.Equal(c.programObjects, before.programObjects) && (c.programObjects == nil) == (before.programObjects == nil) &&
		slices.EqualFunc(c.paths, before.paths, func(a, b *path) bool {
			return a.object.Name == b.object.Name && equality.Semantic.DeepEqual(&a.object.Spec, &b.object.Spec)
		})
}

// keepPolicies takes those policies that stay as they are from another compiler.
func (c *compiler) keepPolicies(before *compiler) {
	known := make(map[v1alpha1.PolicyReference]*compiledPolicy, len(before.policies))
	for _, p := range before.policies {
		known[p.result.Policy] = p
	}
	for i, p := range c.policies {
		if kept := known[p.result.Policy]; kept != nil && kept.created.Equal(&p.created) && equality.Semantic.DeepEqual(kept.source, p.source) {
			kept.index = p.index
			c.policies[i] = kept
		}
	}
}

// samePaths says whether two nodes exist and have the same paths.
func samePaths(a, b *node) bool {
	same := func(a, b *path) bool { return a.object.Name == b.object.Name }
	return a != nil && b != nil && slices.EqualFunc(a.usable, b.usable, same) && slices.EqualFunc(a.cut, b.cut, same)
}

// difference lists the policies that are in one of two lists alone.
func difference(a, b []*compiledPolicy) []*compiledPolicy {
	if slices.Equal(a, b) {
		return nil
	}
	in := make(map[*compiledPolicy]int, len(a)+len(b))
	for _, p := range slices.Concat(a, b) {
		in[p]++
	}
	maps.DeleteFunc(in, func(_ *compiledPolicy, lists int) bool { return lists > 1 })
	return slices.Collect(maps.Keys(in))
}

// union lists the keys of two maps, sorted.
func union[V any](a, b map[string]V) []string {
	names := slices.AppendSeq(slices.Collect(maps.Keys(a)), maps.Keys(b))
	slices.Sort(names)
	return slices.Compact(names)
}
