// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"maps"
	"slices"

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
	shares map[*PolicyResult]map[string]*nodeShare
	merged map[*PolicyResult]PolicyResult
}

// compiledNode is what is kept of a node.
type compiledNode struct {
	name   string
	plan   v1alpha1.MPTCPNodePlanSpec // as it is when the result is active
	shares map[*PolicyResult]*nodeShare
}

// NewIncremental compiles what an Input has in common for all nodes. Its pods do
// not count: CompileNode is to be called for each node.
func NewIncremental(in Input) *Incremental {
	return newIncremental(newCompiler(in, nil))
}

func newIncremental(c *compiler) *Incremental {
	return &Incremental{
		compiler: c,
		nodes:    make(map[string]*compiledNode, len(c.nodes)),
		shares:   map[*PolicyResult]map[string]*nodeShare{},
		merged:   map[*PolicyResult]PolicyResult{},
	}
}

// CompileNode compiles the plan of one node, given all of its pods, and says what
// was decided for each of them, by namespace and name. A node that the Input does
// not have is left alone.
func (i *Incremental) CompileNode(name string, pods []*corev1.Pod) []Decision {
	if i.compiler.nodes[name] == nil {
		return nil
	}
	n, decisions := i.compiler.compileNode(name, pods)
	now := &compiledNode{name: n.name, plan: n.plan(i.compiler.newPods), shares: n.shares}
	if before := i.nodes[name]; before != nil {
		now.keepShares(before)
		i.remove(before, now.shares)
	}
	i.add(now)
	return decisions
}

// keepShares takes those of a node's last shares that stay as they are: what they
// add to need not be merged anew.
func (n *compiledNode) keepShares(before *compiledNode) {
	for policy, share := range n.shares {
		if kept := before.shares[policy]; share.same(kept) {
			n.shares[policy] = kept
		}
	}
}

// remove takes away what a node added, but for shares that are to be kept.
func (i *Incremental) remove(n *compiledNode, kept map[*PolicyResult]*nodeShare) {
	for policy, share := range n.shares {
		if kept[policy] != share {
			delete(i.shares[policy], n.name)
			delete(i.merged, policy)
		}
	}
	if len(n.plan.Endpoints) > 0 {
		i.selected--
	}
	delete(i.nodes, n.name)
}

func (i *Incremental) add(n *compiledNode) {
	for policy, share := range n.shares {
		if i.shares[policy] == nil {
			i.shares[policy] = map[string]*nodeShare{}
		}
		if i.shares[policy][n.name] != share {
			i.shares[policy][n.name] = share
			delete(i.merged, policy)
		}
	}
	if len(n.plan.Endpoints) > 0 {
		i.selected++
	}
	i.nodes[n.name] = n
}

// Result brings the nodes that were compiled together.
func (i *Incremental) Result() Result {
	result := Result{
		GuardsNewPods: len(i.compiler.newPods) > 0,
		WhollyGuarded: i.compiler.whollyGuarded(),
		Plans:         make(map[string]v1alpha1.MPTCPNodePlanSpec, len(i.nodes)),
		Paths:         i.compiler.pathResults(),
		Guests:        i.compiler.guests.results,
	}
	result.Active = i.selected > 0 || result.GuardsNewPods
	for name, n := range i.nodes {
		result.Plans[name] = v1alpha1.MPTCPNodePlanSpec{}
		if result.Active {
			result.Plans[name] = n.plan
		}
	}
	result.Policies = make([]PolicyResult, 0, len(i.compiler.policies))
	for _, p := range i.compiler.policies {
		one := i.policyResult(p)
		one.MatchedNamespaces, one.AllPods = p.matchedNamespaces, p.pods.Empty()
		result.Policies = append(result.Policies, one)
	}
	slices.SortFunc(result.Policies, func(a, b PolicyResult) int { return comparePolicies(a.Policy, b.Policy) })
	return result
}

func (n *node) plan(newPods []*compiledPolicy) v1alpha1.MPTCPNodePlanSpec {
	return v1alpha1.MPTCPNodePlanSpec{
		Paths: n.planPaths(), Endpoints: n.endpoints, Chains: n.planChains(), Programs: n.programs, Tenants: n.planTenants(),
		NewPods: n.planNewPods(newPods),
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

// check says of a policy what does not depend on pods.
func (c *compiler) check(p *compiledPolicy) {
	c.checkRules(p)
	p.result.UnknownPaths = p.unknownPaths(c.paths)
	p.result.WeightsWithoutCapacity = p.weightsWithoutCapacity(c.paths)
	p.checked = true
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
