// SPDX-License-Identifier: Apache-2.0

// Package policy compiles paths, policies, namespaces, pods and nodes into one
// plan a node, and says why. It is pure: the result depends on the input alone,
// not on its order, and no input object is changed.
//
// A pod takes part while it runs with an address of its own on a node that
// exists. A pod that uses its host's network, has ended, is not yet placed or
// has no address yet is ignored: no policy counts it as selected. A pod that is
// being deleted takes part until it has ended, because its connections last
// until then.
//
// Of the policies that select a pod one wins whole: the one of highest
// priority, then the older, then a ClusterMPTCPPolicy before an MPTCPPolicy,
// then the first by namespace and name. A policy that was never stored has no
// age and counts as the youngest.
//
// A VM that is no pod (MPTCPEndpoint) is selected as pods are, and in what follows a pod is
// one of both. Nothing is configured in it: its endpoint has no setting of sockets. An
// address of it that a pod, a Node or another VM has is left out. A pod that holds a VM, by
// its annotation or KubeVirt's label, is a pod in all but that.
//
// All MPTCPGuardrails that select a pod hold together, whichever policy wins. A pod
// that only guardrails select is an endpoint too, which stays as it is within them. Where
// guardrails guard new pods, plans say what holds for pods that they do not have yet, and
// list those that no such guardrail selects, also before they have an address. Annotations of the
// pod take the place of what the winner prefers, as far as guardrails let them.
//
// A pod's chain begins with the rules of one ClusterMPTCPPolicy: the first in the
// same order that selects the pod and has rules, whether it wins or not. Behind
// them come those of the winner, if this is an MPTCPPolicy. A policy's rules are
// applied all or not at all.
package policy

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"braid.dev/braid/api/v1alpha1"
)

// MaxEndpoints is how many endpoints one node's plan can hold.
const MaxEndpoints = 1024

// Input is everything that decides what nodes must do.
type Input struct {
	Paths           []v1alpha1.MPTCPPath
	Policies        []v1alpha1.MPTCPPolicy
	ClusterPolicies []v1alpha1.ClusterMPTCPPolicy
	Guardrails      []v1alpha1.MPTCPGuardrail
	Namespaces      []corev1.Namespace
	Pods            []corev1.Pod
	Nodes           []corev1.Node
	// Endpoints are VMs that are no pods.
	Endpoints []v1alpha1.MPTCPEndpoint
	// AddressHolders are the pods that have addresses of Endpoints. Compile finds them
	// among Pods.
	AddressHolders map[netip.Addr]PodRef
	// ProgramObjects are the objects in ConfigMaps that programs can be loaded from,
	// each with a text that changes when its content does. Nil means that they are
	// not known: then no program is refused for want of its object.
	ProgramObjects map[ProgramObject]string
}

// Result is what follows from an Input. Its lists are sorted by kind, namespace
// and name. Parts of it share memory: read it, do not change it.
type Result struct {
	// Active is true when a policy selects at least one running pod, or a guardrail
	// guards new ones. While it is false all plans are empty, so that agents attach nothing. Once it is true
	// every plan lists its node's paths, because nodes without selected pods
	// answer the others' connections.
	Active bool `json:"active"`
	// GuardsNewPods is true when a guardrail guards pods that plans do not have yet:
	// then those count, too, that have no address yet.
	GuardsNewPods bool `json:"guardsNewPods,omitempty"`
	// WhollyGuarded are the namespaces of which no pod can be exempt from that.
	WhollyGuarded map[string]bool `json:"-"`
	// Plans holds one plan for each node, by the node's name.
	Plans map[string]v1alpha1.MPTCPNodePlanSpec `json:"plans,omitempty"`
	// Policies says what became of each policy.
	Policies []PolicyResult `json:"policies,omitempty"`
	// Paths says what became of each path.
	Paths []PathResult `json:"paths,omitempty"`
	// Guests says what became of the addresses of each MPTCPEndpoint.
	Guests []GuestResult `json:"guests,omitempty"`
	// Decisions says for each pod and VM what was decided and why.
	Decisions []Decision `json:"decisions,omitempty"`
}

// PodRef names one pod, or one VM, and where it runs.
type PodRef struct {
	// Kind is MPTCPEndpoint for a VM, and empty for a pod.
	Kind      string    `json:"kind,omitempty"`
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid,omitempty"`
	Node      string    `json:"node,omitempty"`
}

// String is namespace/name, with its kind where it is no pod.
func (p PodRef) String() string {
	return strings.TrimPrefix(p.Kind+" ", " ") + p.Namespace + "/" + p.Name
}

// PolicyResult is what became of one policy.
type PolicyResult struct {
	// Policy names the policy and the generation that was compiled.
	Policy v1alpha1.PolicyReference `json:"policy"`
	// Decides lists the running pods that the policy selects and decides for.
	Decides []PodRef `json:"decides,omitempty"`
	// Overridden lists the running pods that it selects and another decides for.
	Overridden []Override `json:"overridden,omitempty"`
	// UnknownPaths are names in its spec that no MPTCPPath has.
	UnknownPaths []v1alpha1.PathName `json:"unknownPaths,omitempty"`
	// CutPaths are paths that it lists as allowed and that a node of its pods
	// cannot use, because the node already has v1alpha1.MaxPaths paths.
	CutPaths []v1alpha1.PathName `json:"cutPaths,omitempty"`
	// Rules is the number of its rules.
	Rules int `json:"rules,omitempty"`
	// RuleProblems say why its rules cannot work; then none of them is applied.
	RuleProblems []RuleProblem `json:"ruleProblems,omitempty"`
	// RulesOnly lists the running pods for which another policy decides and whose
	// chain begins with this one's rules.
	RulesOnly []PodRef `json:"rulesOnly,omitempty"`
	// RulesLeftOut lists the running pods that have to do without its rules,
	// though these could work.
	RulesLeftOut []RulesLeftOut `json:"rulesLeftOut,omitempty"`
	// RulesShadowed lists the running pods for which some of its rules never run.
	RulesShadowed []RulesShadowed `json:"rulesShadowed,omitempty"`
	// MatchedNamespaces is how many namespaces its namespaceSelector matches; nil for an
	// MPTCPPolicy, which has none.
	MatchedNamespaces *int `json:"-"`
	// AllPods is true where its podSelector matches every pod.
	AllPods bool `json:"-"`
	// Blocks are the parts of its spec that say something, beside selectors.
	Blocks []string `json:"-"`
	// ForbiddenPaths are paths that it names for its pods and that guardrails do
	// not allow some of them.
	ForbiddenPaths []ForbiddenPath `json:"forbiddenPaths,omitempty"`
	// Guards lists the running pods for which its guardrails hold.
	Guards []PodRef `json:"guards,omitempty"`
	// WeightsWithoutCapacity are paths to which it gives a weight that cannot be
	// kept, because the MPTCPPath does not give its capacity.
	WeightsWithoutCapacity []v1alpha1.PathName `json:"weightsWithoutCapacity,omitempty"`
	// HintedPods counts the running pods with annotations that it decides for or
	// guards.
	HintedPods int `json:"hintedPods,omitempty"`
	// RefusedHints are those of their annotations that are not followed, or in part.
	RefusedHints []PodHint `json:"refusedHints,omitempty"`
	// Error says why the policy cannot be compiled; it then selects nothing.
	Error string `json:"error,omitempty"`
}

// PodHint is an annotation of a pod that is refused.
type PodHint struct {
	Pod  PodRef               `json:"pod"`
	Hint v1alpha1.RefusedHint `json:"hint"`
}

// RulesLeftOut is a pod that does without a policy's rules, and why.
type RulesLeftOut struct {
	Pod    PodRef `json:"pod"`
	Reason string `json:"reason"`
}

// RulesShadowed is a pod for which rules of a policy never run, because one of another
// policy before them drops or resets all that they match.
type RulesShadowed struct {
	Pod PodRef `json:"pod"`
	// Rule is the first of them, Rules how many there are.
	Rule  string `json:"rule"`
	Rules int    `json:"rules"`
	// By is the policy, ByRule its rule.
	By     v1alpha1.PolicyReference `json:"by"`
	ByRule string                   `json:"byRule"`
}

// Override is a pod that a policy selects and another policy decides for.
type Override struct {
	Pod PodRef                   `json:"pod"`
	By  v1alpha1.PolicyReference `json:"by"`
}

// PathResult is what became of one path.
type PathResult struct {
	// Name of the path.
	Name string `json:"name"`
	// Generation of the path that was compiled.
	Generation int64 `json:"generation"`
	// Nodes that the path selects and that can use it.
	Nodes []string `json:"nodes,omitempty"`
	// CutNodes are nodes that it selects and that cannot use it, because they
	// already have v1alpha1.MaxPaths paths with names before this one's.
	CutNodes []string `json:"cutNodes,omitempty"`
	// Error says why the path cannot be compiled; it then exists nowhere.
	Error string `json:"error,omitempty"`
}

// compiler holds the indexes that node after node is compiled with.
type compiler struct {
	paths       []*path // sorted by name
	nodes       map[string]*node
	policies    []*compiledPolicy // in order of precedence
	byNamespace map[string][]*compiledPolicy
	chains      map[owners]*chain
	guardrails  map[string]*guardrails
	namespaces  map[string]bool   // that are known
	newPods     []*compiledPolicy // guardrails that guard new pods
	guests      guests

	programObjects map[ProgramObject]string
}

// Compile decides for every pod which policy applies and makes the plan of
// every node.
func Compile(in Input) Result {
	in.AddressHolders = Holders(in.Pods)
	i := NewIncremental(in)
	pods := podsByNode(in.Pods)
	decisions := make([]Decision, 0, len(in.Pods))
	for name := range i.compiler.nodes {
		decisions = append(decisions, i.CompileNode(name, pods[name])...)
		delete(pods, name)
	}
	for _, elsewhere := range pods {
		for _, pod := range elsewhere {
			decisions = append(decisions, Decision{Pod: podRef(pod), Ignored: workloadOf(pod).whyIgnored(nil)})
		}
	}
	for node, elsewhere := range i.compiler.guests.byNode {
		for _, guest := range elsewhere {
			if i.compiler.nodes[node] == nil {
				decisions = append(decisions, Decision{Pod: guest.ref, Ignored: guest.whyIgnored(nil)})
			}
		}
	}
	slices.SortFunc(decisions, func(a, b Decision) int { return comparePods(a.Pod, b.Pod) })
	result := i.Result()
	result.Decisions = decisions
	return result
}

func podsByNode(pods []corev1.Pod) map[string][]*corev1.Pod {
	byNode := map[string][]*corev1.Pod{}
	for i := range pods {
		byNode[pods[i].Spec.NodeName] = append(byNode[pods[i].Spec.NodeName], &pods[i])
	}
	return byNode
}

// newCompiler makes the indexes of an Input. What another compiler, which may be nil,
// made of policies that stay as they are is kept.
func newCompiler(in Input, before *compiler) *compiler {
	c := &compiler{paths: compilePaths(in.Paths), programObjects: in.ProgramObjects}
	c.forget()
	c.nodes = compileNodes(in.Nodes, c.paths)
	c.guests = compileGuests(&in, c.nodes)
	c.policies = compilePolicies(&in)
	if c.keepsPolicies(before) {
		c.keepPolicies(before)
	}
	for _, p := range c.policies {
		if !p.checked {
			c.check(p)
		}
	}
	c.byNamespace = policiesByNamespace(c.policies, in.Namespaces)
	c.newPods, c.namespaces = newPodGuardrails(c.policies), make(map[string]bool, len(in.Namespaces))
	for i := range in.Namespaces {
		c.namespaces[in.Namespaces[i].Name] = true
	}
	return c
}

// maxRemembered is how many chains and sets of guardrails are kept from one node
// for the next: pods choose them by labels and annotations, without an end.
const maxRemembered = 4096

func (c *compiler) forget() { c.chains, c.guardrails = map[owners]*chain{}, map[string]*guardrails{} }

// compileNode decides for every pod of a node, and for its VMs.
func (c *compiler) compileNode(name string, pods []*corev1.Pod) (*node, []Decision) {
	if len(c.chains)+len(c.guardrails) > maxRemembered {
		c.forget()
	}
	n := c.nodes[name].fresh()
	decisions := make([]Decision, 0, len(pods))
	for _, w := range sortedWorkloads(pods, c.guests.byNode[name]) {
		decisions = append(decisions, c.decide(n, w))
		c.exempt(n, w)
	}
	return n, decisions
}

// decide finds the policy for a pod and adds the pod to its node's endpoints.
func (c *compiler) decide(n *node, w *workload) Decision {
	d := Decision{Pod: w.ref}
	if d.Ignored = w.whyIgnored(n); d.Ignored != "" {
		return d
	}
	matching, g := c.matching(w)
	if len(matching) == 0 && g == nil {
		withoutPolicy(w, &d)
		return d
	}
	winner := n.winner(&d, matching, g)
	n.describe(&d, g)
	res := n.resolve(winner, g, c.paths)
	res.describe(&d)
	d.Outside = outsideOf(winner, &d)
	n.share(winner).forbid(res.forbidden)
	hints := readHints(w, winner, g, &d)
	n.countHints(w, &d, matching, g)
	if len(n.endpoints) == MaxEndpoints {
		d.LeftOut = fmt.Sprintf("policies select more than %d pods of node %s, and this one is beyond the first %d by namespace and name", MaxEndpoints, n.name, MaxEndpoints)
		return d
	}
	c.useChain(n, &d, matching)
	n.addTenant(w.ref.Namespace, g)
	n.endpoints = append(n.endpoints, n.endpoint(w, winner, g, &d, hints))
	return d
}

// winner finds the policy that decides for a pod. Pods that only guardrails select
// stay as they are within them.
func (n *node) winner(d *Decision, matching []*compiledPolicy, g *guardrails) *compiledPolicy {
	if len(matching) == 0 {
		d.Winner = &g.policies[0].result.Policy
		d.WinnerReason = "no policy selects the pod"
		return g.policies[0].unselectedPolicy()
	}
	winner, losers := matching[0], matching[1:]
	share := n.share(winner)
	share.decides = append(share.decides, d.Pod)
	d.Winner = &winner.result.Policy
	d.WinnerReason = whyWon(winner, losers)
	for _, loser := range losers {
		lost := n.share(loser)
		lost.overridden = append(lost.overridden, Override{Pod: d.Pod, By: winner.result.Policy})
		d.Losers = append(d.Losers, Loser{Policy: loser.result.Policy, Reason: whyLost(winner, loser)})
	}
	return winner
}

// matching lists the policies that select a pod and may decide for it, in order
// of precedence, and the guardrails that hold for it.
func (c *compiler) matching(w *workload) (found []*compiledPolicy, g *guardrails) {
	var guarding []*compiledPolicy
	for _, r := range c.byNamespace[w.ref.Namespace] {
		if !r.pods.Matches(labels.Set(w.labels)) {
			continue
		}
		if r.guardrails != nil {
			guarding = append(guarding, r)
		} else {
			found = append(found, r)
		}
	}
	return found, c.guardrailsOf(guarding)
}

// countHints notes with the policies that decide for a pod or guard it what
// became of its annotations.
func (n *node) countHints(w *workload, d *Decision, matching []*compiledPolicy, g *guardrails) {
	if !hasHints(w) {
		return
	}
	var concerned []*compiledPolicy
	if g != nil {
		concerned = slices.Clone(g.policies)
	}
	if len(matching) > 0 && !slices.Contains(concerned, matching[0]) {
		concerned = append(concerned, matching[0])
	}
	for _, p := range concerned {
		share := n.share(p)
		share.hintedPods++
		for _, hint := range d.RefusedHints {
			share.refusedHints = append(share.refusedHints, PodHint{Pod: d.Pod, Hint: hint})
		}
	}
}

// maxRefusalBytes is how much of a plan refused hints can take: an object of
// Kubernetes has its limit, and annotations are the tenants'.
const maxRefusalBytes = 64 << 10

func (n *node) endpoint(w *workload, winner *compiledPolicy, g *guardrails, d *Decision, h *podHints) v1alpha1.PlanEndpoint {
	e := v1alpha1.PlanEndpoint{
		UID:            w.ref.UID,
		CgroupUID:      w.cgroupUID,
		Namespace:      w.ref.Namespace,
		Name:           w.ref.Name,
		Addresses:      w.addresses,
		Policy:         winner.result.Policy,
		Paths:          d.pathWeights(),
		Outside:        d.Outside,
		Subflows:       d.Subflows,
		UpgradeSockets: winner.spec.Sockets.Upgrade,
		Transport:      transportOf(winner, g, d),
		Incast:         incastOf(winner, d),
		Chain:          d.Chain,
		Preferred:      d.Preferred,
		Backup:         d.Backup,
		Preference:     d.Preference,
		Hinted:         h.followed,
		Guard:          d.Guard,
	}
	for _, refused := range d.RefusedHints {
		if n.refusalBytes += len(refused.Message); n.refusalBytes <= maxRefusalBytes {
			e.RefusedHints = append(e.RefusedHints, refused)
		}
	}
	if winner.spec.Sockets.Mode == v1alpha1.SocketModeProxy {
		e.Proxy, d.Proxied = proxyOf(e.Subflows), true
	}
	if w.forGuest(&e, winner, g); e.HasGuest() {
		d.ofGuest(&e, w)
	}
	return e
}

func comparePods(a, b PodRef) int {
	return cmp.Or(
		strings.Compare(a.Namespace, b.Namespace),
		strings.Compare(a.Name, b.Name),
		strings.Compare(string(a.UID), string(b.UID)),
	)
}
