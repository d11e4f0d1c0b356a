// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"braid.dev/braid/api/v1alpha1"
)

// Incremental compiles node by node: a pod changes the plan of its own node alone,
// so that of a cluster in which few pods change most need not be compiled again.
// What Result returns is what Compile returns of the same objects, but for the
// decisions, which CompileNode hands out. It is for one goroutine; results that it
// returned stay as they are.
type Incremental struct {
	compiler *compiler
	nodes    map[string]*compiledNode
	selected int // how many of the nodes have endpoints
	// shares are what each node adds to a policy, by the policy's own result, and
	// merged what they come to; a policy that is not there must be merged anew.
	shares map[*PolicyResult]map[string]*PolicyResult
	merged map[*PolicyResult]PolicyResult
}

// compiledNode is what is kept of a node.
type compiledNode struct {
	name   string
	plan   v1alpha1.MPTCPNodePlanSpec // as it is when a pod of the cluster is selected
	shares map[*PolicyResult]*PolicyResult
}

// NewIncremental compiles what an Input has in common for all nodes. Its pods do
// not count: CompileNode is to be called for each node.
func NewIncremental(in Input) *Incremental {
	i := &Incremental{
		compiler: newCompiler(in),
		nodes:    make(map[string]*compiledNode, len(in.Nodes)),
		shares:   map[*PolicyResult]map[string]*PolicyResult{},
		merged:   map[*PolicyResult]PolicyResult{},
	}
	i.compiler.finish()
	return i
}

// CompileNode compiles the plan of one node, given all of its pods, and says what
// was decided for each of them, by namespace and name. A node that the Input does
// not have is left alone.
func (i *Incremental) CompileNode(name string, pods []*corev1.Pod) []Decision {
	if i.compiler.nodes[name] == nil {
		return nil
	}
	n, decisions := i.compiler.compileNode(name, pods)
	if before := i.nodes[name]; before != nil {
		i.remove(before)
	}
	i.add(&compiledNode{name: n.name, plan: n.plan(), shares: n.shares})
	return decisions
}

func (i *Incremental) remove(n *compiledNode) {
	for policy := range n.shares {
		delete(i.shares[policy], n.name)
		delete(i.merged, policy)
	}
	if len(n.plan.Endpoints) > 0 {
		i.selected--
	}
}

func (i *Incremental) add(n *compiledNode) {
	for policy, share := range n.shares {
		if i.shares[policy] == nil {
			i.shares[policy] = map[string]*PolicyResult{}
		}
		i.shares[policy][n.name] = share
		delete(i.merged, policy)
	}
	if len(n.plan.Endpoints) > 0 {
		i.selected++
	}
	i.nodes[n.name] = n
}

// Result brings the nodes that were compiled together.
func (i *Incremental) Result() Result {
	result := Result{
		Active: i.selected > 0,
		Plans:  make(map[string]v1alpha1.MPTCPNodePlanSpec, len(i.nodes)),
		Paths:  i.compiler.pathResults(),
	}
	for name, n := range i.nodes {
		result.Plans[name] = v1alpha1.MPTCPNodePlanSpec{}
		if result.Active {
			result.Plans[name] = n.plan
		}
	}
	result.Policies = make([]PolicyResult, 0, len(i.compiler.policies))
	for _, p := range i.compiler.policies {
		result.Policies = append(result.Policies, i.policyResult(p))
	}
	slices.SortFunc(result.Policies, func(a, b PolicyResult) int { return comparePolicies(a.Policy, b.Policy) })
	return result
}

func (n *node) plan() v1alpha1.MPTCPNodePlanSpec {
	return v1alpha1.MPTCPNodePlanSpec{
		Paths: n.planPaths(), Endpoints: n.endpoints, Chains: n.planChains(), Blocks: n.blocks, Tenants: n.planTenants(),
	}
}

// policyResult is what became of a policy on all nodes.
func (i *Incremental) policyResult(p *compiledPolicy) PolicyResult {
	if merged, is := i.merged[p.result]; is {
		return merged
	}
	merged := *p.result
	shares := i.shares[p.result]
	for _, name := range slices.Sorted(maps.Keys(shares)) {
		merged.add(shares[name])
	}
	merged.sort()
	merged.CutPaths = i.compiler.cutPaths(p, merged.Decides)
	i.merged[p.result] = merged
	return merged
}

// add puts a node's share behind what others added.
func (r *PolicyResult) add(share *PolicyResult) {
	r.Decides = append(r.Decides, share.Decides...)
	r.Overridden = append(r.Overridden, share.Overridden...)
	r.RulesOnly = append(r.RulesOnly, share.RulesOnly...)
	r.RulesLeftOut = append(r.RulesLeftOut, share.RulesLeftOut...)
	r.Guards = append(r.Guards, share.Guards...)
	r.HintedPods += share.HintedPods
	r.RefusedHints = append(r.RefusedHints, share.RefusedHints...)
	r.forbid(share.ForbiddenPaths)
}

// sort orders the lists as if all nodes' pods had been looked at by namespace and
// name.
func (r *PolicyResult) sort() {
	slices.SortFunc(r.Decides, comparePods)
	slices.SortFunc(r.RulesOnly, comparePods)
	slices.SortFunc(r.Guards, comparePods)
	slices.SortFunc(r.Overridden, func(a, b Override) int { return comparePods(a.Pod, b.Pod) })
	slices.SortFunc(r.RulesLeftOut, func(a, b RulesLeftOut) int { return comparePods(a.Pod, b.Pod) })
	// One pod can have several, in their own order.
	slices.SortStableFunc(r.RefusedHints, func(a, b PodHint) int { return comparePods(a.Pod, b.Pod) })
	slices.SortFunc(r.ForbiddenPaths, func(a, b ForbiddenPath) int {
		return cmp.Or(strings.Compare(string(a.Path), string(b.Path)), comparePolicies(a.By, b.By))
	})
}

// finish says of policies and paths what does not depend on pods.
func (c *compiler) finish() {
	for _, r := range c.policies {
		r.result.UnknownPaths = r.unknownPaths(c.paths)
		r.result.GuardrailsOnly = r.guardrailsOnly
		r.result.SharesWithoutCapacity = r.sharesWithoutCapacity(c.paths)
	}
	for _, p := range c.paths {
		slices.Sort(p.result.Nodes)
		slices.Sort(p.result.CutNodes)
	}
}

// cutPaths lists the paths that a policy allows by name and that a node of its
// pods has no room for.
func (c *compiler) cutPaths(r *compiledPolicy, decides []PodRef) []v1alpha1.PathName {
	var cut []v1alpha1.PathName
	for _, pod := range decides {
		for _, p := range c.nodes[pod.Node].cut {
			if slices.Contains(r.spec.Paths.Allowed, p.pathName()) {
				cut = append(cut, p.pathName())
			}
		}
	}
	slices.Sort(cut)
	return slices.Compact(cut)
}

func (c *compiler) pathResults() []PathResult {
	results := make([]PathResult, 0, len(c.paths))
	for _, p := range c.paths {
		results = append(results, p.result)
	}
	return results
}
