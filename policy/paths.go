// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"braid.dev/braid/api/v1alpha1"
)

// path is an MPTCPPath with its selector compiled.
type path struct {
	object *v1alpha1.MPTCPPath
	nodes  labels.Selector
	result PathResult
}

func (p *path) pathName() v1alpha1.PathName { return v1alpha1.PathName(p.object.Name) }

// capacity is the rate of the path in bits a second, 0 when it is not given.
func (p *path) capacity() int64 {
	if p.object.Spec.Capacity == nil {
		return 0
	}
	return max(p.object.Spec.Capacity.Value(), 0)
}

func compilePaths(objects []v1alpha1.MPTCPPath) []*path {
	paths := make([]*path, 0, len(objects))
	for i := range objects {
		p := &path{object: &objects[i], nodes: labels.Everything()}
		p.result = PathResult{Name: p.object.Name, Generation: p.object.Generation}
		p.compileSelector()
		paths = append(paths, p)
	}
	slices.SortFunc(paths, func(a, b *path) int { return strings.Compare(a.object.Name, b.object.Name) })
	return paths
}

func (p *path) compileSelector() {
	if p.object.Spec.NodeSelector == nil {
		return
	}
	selector, err := metav1.LabelSelectorAsSelector(p.object.Spec.NodeSelector)
	if err != nil {
		p.result.Error = fmt.Sprintf("spec.nodeSelector: %v", err)
		selector = labels.Nothing()
	}
	p.nodes = selector
}

func findPath(paths []*path, name v1alpha1.PathName) *path {
	i, found := slices.BinarySearchFunc(paths, string(name), func(p *path, name string) int {
		return strings.Compare(p.object.Name, name)
	})
	if !found {
		return nil
	}
	return paths[i]
}

// node is a Node with the paths that exist on it.
type node struct {
	name      string
	usable    []*path // at most v1alpha1.MaxPaths, sorted by name
	cut       []*path // the rest
	endpoints []v1alpha1.PlanEndpoint
	exempt    []v1alpha1.PlanExemptPod // sorted by namespace and name
	chains    []*chain
	programs  []v1alpha1.PlanProgram // sorted by policy and name

	chainBytes   int
	tenantBytes  map[string]int // of chains with something of a namespace
	tenantsBytes int
	// resolved keeps what each policy comes to on this node, because that is the
	// same for all pods with the same guardrails.
	resolved map[resolutionKey]*resolution
	// tenants are the policies that give ceilings or shares, by namespace.
	tenants map[string][]*compiledPolicy
	// rates are the different rates of pods that chains keep, by namespace.
	rates map[string][]int64
	// refusalBytes is what the refused hints of the endpoints take.
	refusalBytes int
	// shares are what the node's pods add to the results of policies.
	shares map[*PolicyResult]*nodeShare
}

// fresh is a node with the same paths and no pods yet.
func (n *node) fresh() *node {
	return &node{
		name: n.name, usable: n.usable, cut: n.cut,
		resolved: map[resolutionKey]*resolution{}, tenants: map[string][]*compiledPolicy{}, rates: map[string][]int64{},
		tenantBytes: map[string]int{}, shares: map[*PolicyResult]*nodeShare{},
	}
}

// share is the node's part of a policy's result.
func (n *node) share(p *compiledPolicy) *nodeShare {
	share := n.shares[p.result]
	if share == nil {
		share = &nodeShare{}
		n.shares[p.result] = share
	}
	return share
}

func compileNodes(objects []corev1.Node, paths []*path) map[string]*node {
	nodes := make(map[string]*node, len(objects))
	for i := range objects {
		n := &node{name: objects[i].Name}
		n.addPaths(paths, labels.Set(objects[i].Labels))
		nodes[n.name] = n
	}
	for _, p := range paths {
		slices.Sort(p.result.Nodes)
		slices.Sort(p.result.CutNodes)
	}
	return nodes
}

func (n *node) addPaths(paths []*path, nodeLabels labels.Set) {
	for _, p := range paths {
		switch {
		case !p.nodes.Matches(nodeLabels):
		case len(n.usable) < v1alpha1.MaxPaths:
			n.usable = append(n.usable, p)
			p.result.Nodes = append(p.result.Nodes, n.name)
		default:
			n.cut = append(n.cut, p)
			p.result.CutNodes = append(p.result.CutNodes, n.name)
		}
	}
}

func (n *node) planPaths() []v1alpha1.PlanPath {
	paths := make([]v1alpha1.PlanPath, 0, len(n.usable))
	for _, p := range n.usable {
		paths = append(paths, v1alpha1.PlanPath{
			Name:          p.pathName(),
			Interfaces:    slices.Clone(p.object.Spec.Interfaces),
			AddressRanges: slices.Clone(p.object.Spec.AddressRanges),
			Underlay:      p.underlay(),
			Gateway:       p.object.Spec.Gateway,
			Capacity:      p.capacity(),
		})
	}
	return paths
}

// underlay is left out where it is the usual one, so that plans stay as they were.
func (p *path) underlay() v1alpha1.Underlay {
	if p.object.Spec.Underlay == v1alpha1.UnderlayRouted {
		return v1alpha1.UnderlayRouted
	}
	return ""
}

// resolution is what a policy comes to on one node, within guardrails.
type resolution struct {
	pathsReason    string
	choices        []PathChoice
	subflows       v1alpha1.PlanSubflows
	subflowsReason string
	forbidden      []ForbiddenPath
}

// resolutionKey is what a resolution depends on, besides the node.
type resolutionKey struct {
	winner *compiledPolicy
	rails  *guardrails
}

func (r *resolution) describe(d *Decision) {
	d.Paths, d.PathsReason = r.choices, r.pathsReason
	d.Subflows, d.SubflowsReason = r.subflows, r.subflowsReason
}

func (n *node) resolve(r *compiledPolicy, g *guardrails, paths []*path) *resolution {
	key := resolutionKey{r, g}
	if res := n.resolved[key]; res != nil {
		return res
	}
	res := &resolution{forbidden: r.forbiddenPaths(g, paths)}
	n.resolved[key] = res
	switch stay := r.spec.Paths.Spread == v1alpha1.SpreadNone && !g.choosePaths(); {
	case stay && r.unselected:
		res.pathsReason = "no policy places them, and the guardrails allow every path: subflows stay on the route of the cluster's network"
	case stay:
		res.pathsReason = "spec.paths.spread is " + string(v1alpha1.SpreadNone) + ": subflows stay on the route of the cluster's network"
	default:
		res.choices = n.choosePaths(r, g, paths)
	}
	used := 0
	for _, c := range res.choices {
		if c.Used && c.Problem == pathUsed {
			used++
		}
	}
	if res.choices != nil && used == 0 {
		res.pathsReason = "none of the paths can be used on node " + n.name + ": subflows stay on the route of the cluster's network"
	}
	res.subflows, res.subflowsReason = r.subflows(used)
	return res
}

// PathProblem is why a pod does not use a path; 0 when it does.
type PathProblem int

const (
	pathUsed       PathProblem = iota
	pathUnknown                // no MPTCPPath has the name
	pathElsewhere              // the node does not have it
	pathForbidden              // guardrails do not allow it
	pathNotAllowed             // the policy does not
	pathSharing                // it shares a bottleneck with one that is used: it is a backup
)

// choosePaths decides for every path that exists or that the policy names whether
// a pod of this node uses it, and with what weight. Of paths that share a bottleneck
// all but one are for when no other path can be used.
func (n *node) choosePaths(r *compiledPolicy, g *guardrails, paths []*path) []PathChoice {
	names := r.namedPaths()
	for _, p := range paths {
		names = append(names, p.pathName())
	}
	slices.Sort(names)
	usable, allows, note := n.allowedPaths(r, g)
	kept, reserve, sharing := divideSharing(usable)
	weights := r.weights(kept)
	maps.Copy(weights, r.weights(reserve))
	choices := []PathChoice{}
	for _, name := range slices.Compact(names) {
		choice, used := weights[name]
		choice.Reason += note
		if !used {
			choice = n.whyUnused(name, findPath(paths, name), g, allows)
		}
		if better := sharing[name]; better != nil {
			choice.Problem = pathSharing
			choice.Reason = fmt.Sprintf("it shares a bottleneck with %s, and is its backup", better.object.Name)
		}
		choice.Path, choice.Used = name, used
		choices = append(choices, choice)
	}
	return choices
}

// allowedPaths are the node's paths that policy and guardrails allow, what counts
// as allowed by the policy, and what is to be said about it. Guardrails that choose among paths go before a
// policy that allows none of those: else its pods would stay on the route of the
// cluster's network, which may be a path that the guardrails forbid.
func (n *node) allowedPaths(r *compiledPolicy, g *guardrails) (usable []*path, allows func(v1alpha1.PathName) bool, note string) {
	usable = slices.DeleteFunc(slices.Clone(n.usable), func(p *path) bool { return g.forbid(p.pathName()) != nil })
	own := slices.DeleteFunc(slices.Clone(usable), func(p *path) bool { return !r.allows(p.pathName()) })
	switch {
	case len(own) == 0 && g.choosePaths():
		return usable, func(v1alpha1.PathName) bool { return true }, "; the guardrails allow none of spec.paths.allowed here"
	case r.spec.Paths.Spread == v1alpha1.SpreadNone && !r.unselected:
		return own, r.allows, "; the guardrails choose paths, so spec.paths.spread: None does not count"
	}
	return own, r.allows, ""
}

// divideSharing keeps of paths that share a bottleneck the one with the most capacity, then
// the first by name, and says of the others, the reserve, which that is. Weights of the two
// are never compared.
func divideSharing(paths []*path) (kept, reserve []*path, sharing map[v1alpha1.PathName]*path) {
	sharing = map[v1alpha1.PathName]*path{}
	best := slices.Clone(paths)
	slices.SortStableFunc(best, func(a, b *path) int { return cmp.Compare(b.capacity(), a.capacity()) })
	for _, p := range best {
		if i := slices.IndexFunc(kept, p.sharesBottleneck); i >= 0 {
			sharing[p.pathName()], reserve = kept[i], append(reserve, p)
		} else {
			kept = append(kept, p)
		}
	}
	return kept, reserve, sharing
}

// sharesBottleneck says whether two paths are of one bottleneck group.
func (p *path) sharesBottleneck(other *path) bool {
	group := p.object.Spec.BottleneckGroup
	return group != "" && group == other.object.Spec.BottleneckGroup
}

func unused(problem PathProblem, reason string) PathChoice {
	return PathChoice{Problem: problem, Reason: reason}
}

func (n *node) whyUnused(name v1alpha1.PathName, p *path, g *guardrails, allows func(v1alpha1.PathName) bool) PathChoice {
	forbidden := g.forbid(name)
	switch {
	case p == nil:
		return unused(pathUnknown, "no MPTCPPath has this name")
	case forbidden != nil:
		return unused(pathForbidden, guardrailsString(forbidden)+" do not allow it")
	case !allows(name):
		return unused(pathNotAllowed, "spec.paths.allowed does not list it")
	case p.result.Error != "":
		return unused(pathElsewhere, "the MPTCPPath has an error: "+p.result.Error)
	case slices.Contains(n.cut, p):
		return unused(pathElsewhere, fmt.Sprintf("node %s has more than %d paths, and this one is beyond the first %d by name", n.name, v1alpha1.MaxPaths, v1alpha1.MaxPaths))
	}
	return unused(pathElsewhere, "its nodeSelector does not match node "+n.name)
}

// ForbiddenPath is a path that a policy names and guardrails do not allow.
type ForbiddenPath struct {
	Path v1alpha1.PathName        `json:"path"`
	By   v1alpha1.PolicyReference `json:"by"`
}

// forbiddenPaths lists the paths that a policy names and guardrails do not allow.
func (r *compiledPolicy) forbiddenPaths(g *guardrails, paths []*path) []ForbiddenPath {
	var forbidden []ForbiddenPath
	for _, name := range r.namedPaths() {
		if by := g.forbid(name); by != nil && findPath(paths, name) != nil {
			forbidden = append(forbidden, ForbiddenPath{Path: name, By: by.result.Policy})
		}
	}
	return forbidden
}

// weights gives each usable path its weight: as the policy says, else by the
// paths' capacities, else all the same.
func (r *compiledPolicy) weights(usable []*path) map[v1alpha1.PathName]PathChoice {
	weights := make(map[v1alpha1.PathName]PathChoice, len(usable))
	capacities := make([]int64, len(usable))
	for i, p := range usable {
		capacities[i] = p.capacity()
	}
	shares, smallest := capacityShares(capacities)
	for i, p := range usable {
		weights[p.pathName()] = r.weight(p, shares[i], smallest)
	}
	return weights
}

// weight is a path's weight and where it comes from. share is its weight by
// capacity; smallest is the smallest capacity given, 0 if none is.
func (r *compiledPolicy) weight(p *path, share int32, smallest int64) PathChoice {
	if len(r.spec.Paths.Weights) > 0 {
		if w := r.explicitWeight(p.pathName()); w > 0 {
			return PathChoice{Weight: w, Reason: "from spec.paths.weights"}
		}
		return PathChoice{Weight: 1, Reason: "spec.paths.weights does not name it"}
	}
	switch {
	case smallest == 0:
		return PathChoice{Weight: share, Reason: "neither weights nor capacities are given, so all paths count the same"}
	case p.capacity() == 0:
		return PathChoice{Weight: share, Reason: "it has no capacity and counts like the smallest one given"}
	}
	return PathChoice{Weight: share, Reason: "by its capacity, " + p.object.Spec.Capacity.String()}
}

// maxWeight is the highest weight that the API allows.
const maxWeight = 100

// capacityShares turns capacities into weights of 1 to maxWeight in the same
// proportion, as small as they can be. A capacity of 0 counts like the smallest
// other one, which is returned too.
func capacityShares(capacities []int64) (shares []int32, smallest int64) {
	var divisor, largest int64
	for _, c := range capacities {
		if c > 0 && (smallest == 0 || c < smallest) {
			smallest = c
		}
		divisor, largest = gcd(divisor, c), max(largest, c)
	}
	shares = make([]int32, len(capacities))
	for i, c := range capacities {
		if c == 0 {
			c = smallest
		}
		shares[i] = share(c, divisor, largest)
	}
	return shares, smallest
}

func share(capacity, divisor, largest int64) int32 {
	if largest == 0 {
		return 1
	}
	if largest/divisor <= maxWeight {
		return int32(capacity / divisor)
	}
	return max(1, int32(math.Round(maxWeight*float64(capacity)/float64(largest))))
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// subflows says how many subflows a connection has, given how many paths its
// pod uses, and why.
func (r *compiledPolicy) subflows(usedPaths int) (v1alpha1.PlanSubflows, string) {
	rules := &r.spec.Subflows
	plan := v1alpha1.PlanSubflows{Manager: r.manager(), Count: int32(max(1, usedPaths))}
	switch plan.Manager {
	case v1alpha1.SubflowManagerNone:
		plan.Count = 1
		if r.unselected {
			return plan, "no policy decides: the pod's own settings do"
		}
		return plan, "spec.subflows.manager is None: the pod's own settings decide"
	case v1alpha1.SubflowManagerKernel:
		plan.FirstAnnouncedPort = v1alpha1.DefaultFirstAnnouncedPort
		if port := rules.FirstAnnouncedPort; port != nil {
			plan.FirstAnnouncedPort = *port
		}
	case v1alpha1.SubflowManagerAgent:
		if rules.Mode != v1alpha1.SubflowModePerPath {
			plan.Mode = rules.Mode
		}
	}
	if rules.Reopen == v1alpha1.ReopenNever {
		plan.Reopen = rules.Reopen
	}
	reason := count(&plan, rules, usedPaths)
	if plan.Count > 1 {
		openAfter(&plan, rules.OpenAfter)
	}
	return plan, reason
}

// count fills in how many subflows a connection has, and says why.
func count(plan *v1alpha1.PlanSubflows, rules *v1alpha1.SubflowRules, usedPaths int) string {
	switch {
	case rules.Count != nil:
		plan.Count = *rules.Count
		return "spec.subflows.count"
	case plan.Mode == v1alpha1.SubflowModeFullMesh:
		plan.Count = maxSubflows
		return "spec.subflows.mode is FullMesh: one for each pair of addresses on each path, and no more than this"
	case usedPaths == 0:
		return "subflows are not spread over paths, so further ones gain nothing"
	}
	return "one for each path that the pod uses"
}

// maxSubflows is how many subflows of a connection there can be.
const maxSubflows = 8

// openAfter fills in when a connection gets its further subflows. Agents of earlier
// versions refuse to wait with the kernel's path manager, so that has fields of its own.
func openAfter(plan *v1alpha1.PlanSubflows, after *v1alpha1.OpenAfter) {
	bytes, millis := waits(after)
	if plan.Manager == v1alpha1.SubflowManagerKernel {
		plan.AnnounceAfterBytes, plan.AnnounceAfterMillis = bytes, millis
	} else {
		plan.OpenAfterBytes, plan.OpenAfterMillis = bytes, millis
	}
}

// proxyOf is how the node's proxy opens subflows: as the policy says of those that the pod
// itself would have, but that its manager is the proxy's own.
func proxyOf(of v1alpha1.PlanSubflows) *v1alpha1.PlanProxy {
	return &v1alpha1.PlanProxy{Subflows: v1alpha1.PlanSubflows{
		Manager: v1alpha1.SubflowManagerAgent, Count: of.Count, Reopen: of.Reopen,
		OpenAfterBytes: of.OpenAfterBytes + of.AnnounceAfterBytes, OpenAfterMillis: of.OpenAfterMillis + of.AnnounceAfterMillis,
	}}
}

// waits is for what connections wait, 0 for what does not count; a time of 0s is at once.
func waits(after *v1alpha1.OpenAfter) (bytes, millis int64) {
	if after == nil {
		return v1alpha1.DefaultOpenAfterBytes, v1alpha1.DefaultOpenAfterTime.Milliseconds()
	}
	if age := after.Time; age != nil {
		if age.Duration == 0 {
			return 0, 0
		}
		millis = max(age.Milliseconds(), 1)
	}
	if after.Bytes != nil {
		bytes = max(after.Bytes.Value(), 1)
	}
	return bytes, millis
}
