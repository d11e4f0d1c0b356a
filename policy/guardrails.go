// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/resource"

	"braid.dev/braid/api/v1alpha1"
)

// MaxRateRule is the name of the rule that keeps PlanGuard.MaxRate.
const MaxRateRule = "max-rate"

// guardrails are those of every policy that selects a pod and has some, taken
// together. Nil means that there are none.
type guardrails struct {
	policies []*compiledPolicy // in order of precedence
}

// guardrailsOf are the guardrails of these policies, which are in order of
// precedence: the same ones for the same policies.
func (c *compiler) guardrailsOf(policies []*compiledPolicy) *guardrails {
	if len(policies) == 0 {
		return nil
	}
	key := make([]byte, 0, 3*len(policies))
	for _, p := range policies {
		key = append(key, byte(p.index>>16), byte(p.index>>8), byte(p.index))
	}
	if made := c.guardrails[string(key)]; made != nil {
		return made
	}
	made := &guardrails{policies: policies}
	c.guardrails[string(key)] = made
	return made
}

func (g *guardrails) find(holds func(*v1alpha1.Guardrails) bool) *compiledPolicy {
	if g == nil {
		return nil
	}
	for _, p := range g.policies {
		if holds(p.guardrails) {
			return p
		}
	}
	return nil
}

// choosePaths says whether some paths are not allowed.
func (g *guardrails) choosePaths() bool {
	return g.find(func(rails *v1alpha1.Guardrails) bool { return len(rails.Paths) > 0 }) != nil
}

// forbid is the first policy that does not allow a path; nil when all do.
func (g *guardrails) forbid(name v1alpha1.PathName) *compiledPolicy {
	return g.find(func(rails *v1alpha1.Guardrails) bool {
		return len(rails.Paths) > 0 && !slices.Contains(rails.Paths, name)
	})
}

// silence is the first policy that does not let a hint count; nil when all do.
func (g *guardrails) silence(hint v1alpha1.Hint) *compiledPolicy {
	return g.find(func(rails *v1alpha1.Guardrails) bool {
		return rails.Hints != nil && !slices.Contains(*rails.Hints, hint)
	})
}

// trim says whether every policy keeps what is allowed of a hint. Without
// guardrails a hint is refused as a whole.
func (g *guardrails) trim() bool {
	return g != nil && g.find(func(rails *v1alpha1.Guardrails) bool { return rails.OnExceed != v1alpha1.OnExceedClamp }) == nil
}

func (g *guardrails) spoofCheck() bool {
	return g.find(func(rails *v1alpha1.Guardrails) bool { return rails.SpoofCheck != v1alpha1.SpoofCheckOff }) != nil
}

func (g *guardrails) dropUnparsable() bool {
	return g.find(func(rails *v1alpha1.Guardrails) bool { return rails.Unparsable == v1alpha1.UnparsableDrop }) != nil
}

// maxPodRate is the lowest of the rates and the first policy that gives it; 0
// when none gives one.
func (g *guardrails) maxPodRate() (rate int64, by *compiledPolicy) {
	if g == nil {
		return 0, nil
	}
	for _, p := range g.policies {
		if given := bitsPerSecond(p.guardrails.MaxPodRate); given > 0 && (rate == 0 || given < rate) {
			rate, by = given, p
		}
	}
	return rate, by
}

// bitsPerSecond is a quantity as a rate; 0 for none, and never below what can be
// kept.
func bitsPerSecond(q *resource.Quantity) int64 {
	if q == nil {
		return 0
	}
	return max(q.Value(), minRate)
}

// guard is what guardrails and the pod's own hint make of its rate.
func (g *guardrails) guard(hint int64) *v1alpha1.PlanGuard {
	guard := v1alpha1.PlanGuard{SpoofCheck: g.spoofCheck(), DropUnparsable: g.dropUnparsable()}
	guard.MaxRate, _ = g.maxPodRate()
	if hint > 0 && (guard.MaxRate == 0 || hint < guard.MaxRate) {
		guard.MaxRate = hint
	}
	if guard == (v1alpha1.PlanGuard{}) {
		return nil
	}
	return &guard
}

// maxRateRule is the rule that makes the pod's own sockets keep a rate.
func maxRateRule(rate int64) v1alpha1.PlanRule {
	return v1alpha1.PlanRule{Policy: v1alpha1.GuardrailsOwner, Rule: v1alpha1.Rule{
		Name:  MaxRateRule,
		Match: &v1alpha1.Match{Selectors: v1alpha1.Selectors{Direction: v1alpha1.DirectionFromEndpoint}},
		Actions: []v1alpha1.Action{{Type: v1alpha1.ActionRateLimit, RateLimit: &v1alpha1.RateLimit{
			Rate: *resource.NewQuantity(rate, resource.DecimalSI), Per: v1alpha1.RateLimitPerEndpoint, Mechanism: v1alpha1.RateLimitAuto,
		}}},
	}}
}

// addTenant notes whose ceilings and weights hold for an endpoint's namespace.
func (n *node) addTenant(namespace string, g *guardrails) {
	if g == nil {
		return
	}
	for _, p := range g.policies {
		if len(p.guardrails.TenantPaths) > 0 && !slices.Contains(n.tenants[namespace], p) {
			n.tenants[namespace] = append(n.tenants[namespace], p)
		}
	}
}

// planTenants lists the ceilings and weights of namespaces on the node's paths.
func (n *node) planTenants() []v1alpha1.PlanTenant {
	var tenants []v1alpha1.PlanTenant
	for namespace, policies := range n.tenants {
		slices.SortFunc(policies, func(a, b *compiledPolicy) int { return cmp.Compare(a.index, b.index) })
		if paths := n.tenantPaths(policies); len(paths) > 0 {
			tenants = append(tenants, v1alpha1.PlanTenant{Namespace: namespace, Paths: paths})
		}
	}
	slices.SortFunc(tenants, func(a, b v1alpha1.PlanTenant) int { return cmp.Compare(a.Namespace, b.Namespace) })
	return tenants
}

// tenantPaths are for each path the lowest ceiling and the first weight.
func (n *node) tenantPaths(policies []*compiledPolicy) []v1alpha1.PlanTenantPath {
	var paths []v1alpha1.PlanTenantPath
	for _, usable := range n.usable {
		limit := v1alpha1.PlanTenantPath{Path: usable.pathName()}
		for _, p := range policies {
			for _, given := range p.guardrails.TenantPaths {
				if given.Path == limit.Path {
					limit = stricter(limit, given)
				}
			}
		}
		if limit.MaxRate > 0 || limit.Weight > 0 {
			paths = append(paths, limit)
		}
	}
	return paths
}

func stricter(limit v1alpha1.PlanTenantPath, given v1alpha1.TenantPath) v1alpha1.PlanTenantPath {
	if rate := bitsPerSecond(given.MaxRate); rate > 0 && (limit.MaxRate == 0 || rate < limit.MaxRate) {
		limit.MaxRate = rate
	}
	if limit.Weight == 0 && given.Weight != nil {
		limit.Weight = *given.Weight
	}
	return limit
}

// guardedPaths lists the paths that a policy's guardrails name.
func (r *compiledPolicy) guardedPaths() []v1alpha1.PathName {
	if r.guardrails == nil {
		return nil
	}
	names := slices.Clone(r.guardrails.Paths)
	for _, tenant := range r.guardrails.TenantPaths {
		names = append(names, tenant.Path)
	}
	return names
}

// weightsWithoutCapacity lists the paths with a weight that cannot be kept,
// because nobody knows when the path is full.
func (r *compiledPolicy) weightsWithoutCapacity(paths []*path) []v1alpha1.PathName {
	var names []v1alpha1.PathName
	if r.guardrails == nil {
		return nil
	}
	for _, tenant := range r.guardrails.TenantPaths {
		if p := findPath(paths, tenant.Path); tenant.Weight != nil && p != nil && p.capacity() == 0 {
			names = append(names, tenant.Path)
		}
	}
	slices.Sort(names)
	return names
}

// guardrailsString names the guardrails of a policy in messages.
func guardrailsString(p *compiledPolicy) string {
	return "the guardrails of " + PolicyString(p.result.Policy)
}

// GuardrailsChoice says what the guardrails of one policy ask of a pod.
type GuardrailsChoice struct {
	Policy v1alpha1.PolicyReference `json:"policy"`
	// Effect says what they allow and limit.
	Effect string `json:"effect"`
}

// describe tells the decision whose guardrails hold.
func (n *node) describe(d *Decision, g *guardrails) {
	if g == nil {
		return
	}
	for _, p := range g.policies {
		share := n.share(p)
		share.guards = append(share.guards, d.Pod)
		d.Guardrails = append(d.Guardrails, GuardrailsChoice{Policy: p.result.Policy, Effect: effectOf(p.guardrails)})
	}
}

// effectOf says in words what guardrails come to.
func effectOf(rails *v1alpha1.Guardrails) string {
	var parts []string
	if len(rails.Paths) > 0 {
		parts = append(parts, "paths: "+enumerate(sorted(rails.Paths)))
	}
	if rails.Hints != nil {
		parts = append(parts, "annotations: "+cmp.Or(enumerate(annotationsOf(*rails.Hints)), "none"))
	}
	if rails.MaxPodRate != nil {
		parts = append(parts, "at most "+rails.MaxPodRate.String()+" for the pod")
	}
	for _, tenant := range rails.TenantPaths {
		parts = append(parts, tenantEffect(tenant))
	}
	if rails.SpoofCheck != v1alpha1.SpoofCheckOff {
		parts = append(parts, "packets from addresses that are not its own are dropped")
	}
	if rails.Unparsable == v1alpha1.UnparsableDrop {
		parts = append(parts, "packets whose TCP header rules cannot see are dropped")
	}
	if rails.Transport != nil {
		parts = append(parts, effectOfTransport(rails.Transport))
	}
	if rails.NewPods == v1alpha1.NewPodsGuard {
		parts = append(parts, "new pods of the node are guarded before it is known who they are")
	}
	switch rails.GuestAgent {
	case v1alpha1.GuestAgentAllow:
		parts = append(parts, "MPTCPPolicies may use the agents of guests")
	case v1alpha1.GuestAgentDeny:
		parts = append(parts, "no policy may use the agents of guests")
	}
	return cmp.Or(join(parts, "; "), "everything is allowed")
}

func tenantEffect(t v1alpha1.TenantPath) string {
	var parts []string
	if t.MaxRate != nil {
		parts = append(parts, "at most "+t.MaxRate.String())
	}
	if t.Weight != nil {
		parts = append(parts, fmt.Sprintf("weight %d", *t.Weight))
	}
	return fmt.Sprintf("path %s: %s for the namespace", t.Path, join(parts, " and "))
}

// unselectedPolicy stands for the policy of pods that no policy selects and these
// guardrails hold for: it leaves them as they are.
func (r *compiledPolicy) unselectedPolicy() *compiledPolicy {
	spec := &v1alpha1.PolicyRules{}
	spec.Paths.Spread, spec.Subflows.Manager = v1alpha1.SpreadNone, v1alpha1.SubflowManagerNone
	return &compiledPolicy{unselected: true, spec: spec, created: r.created, result: r.result}
}
