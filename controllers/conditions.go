// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/policy"
)

func condition(kind string, status metav1.ConditionStatus, reason, message string, generation int64) metav1.Condition {
	return metav1.Condition{Type: kind, Status: status, Reason: reason, Message: message, ObservedGeneration: generation}
}

// newVerdict is all that is to be told of a policy.
func newVerdict(o *observation, p *policy.PolicyResult) verdict {
	programmed, failures, pending := countPods(o, p)
	status := &v1alpha1.PolicyStatus{
		PodsSelected:   int32(selected(p)),
		PodsProgrammed: programmed,
		FailingNodes:   failures[:min(len(failures), v1alpha1.MaxFailingNodes)],
	}
	generation := p.Policy.Generation
	status.Conditions = []metav1.Condition{accepted(o, p, generation)}
	if p.Rules > 0 {
		status.Conditions = append(status.Conditions, rulesAccepted(p, generation))
	}
	if p.HintedPods > 0 {
		status.Conditions = append(status.Conditions, hintsAccepted(p, generation))
	}
	status.Conditions = append(status.Conditions,
		effective(p, generation),
		programmedCondition(p, programmed, failures, pending, generation))
	if len(p.Decides) == 0 {
		return verdict{of: mergeOf(p), status: status}
	}
	is := spreadingOf(o, p)
	status.Conditions = append(status.Conditions, condition(v1alpha1.ConditionSpreading, is.Status, is.Reason, is.Message, generation))
	return verdict{of: mergeOf(p), status: status, traffic: is.Pods}
}

// spreadingOf is what the traffic of the pods that a policy decides for does.
func spreadingOf(o *observation, p *policy.PolicyResult) policy.Spreading {
	traffic := make([]policy.Traffic, 0, len(p.Decides))
	for _, pod := range p.Decides {
		state, _ := o.pods.of(pod)
		traffic = append(traffic, policy.Traffic{Pod: pod, Is: state.spreading})
	}
	return policy.SpreadingOf(traffic)
}

// selected counts the running pods that a policy selects.
func selected(p *policy.PolicyResult) int {
	if p.Policy.Kind == policy.KindGuardrail {
		return len(p.Guards)
	}
	return len(p.Decides) + len(p.Overridden)
}

// carriers are the pods that carry out a policy: those that it decides for, those
// that only run its rules, and those that a guardrail holds for.
func carriers(p *policy.PolicyResult) []policy.PodRef {
	return slices.Concat(p.Decides, p.RulesOnly, p.Guards)
}

// countPods counts the pods that a policy is programmed for, and lists the nodes
// that fail and what the first pod that is pending waits for.
func countPods(o *observation, p *policy.PolicyResult) (programmed int32, failures []v1alpha1.NodeFailure, pending string) {
	byNode := map[string]*v1alpha1.NodeFailure{}
	owner := policy.RuleOwner(p.Policy)
	for _, pod := range carriers(p) {
		state, planned := o.pods.of(pod)
		switch state = state.of(owner); {
		case !planned:
			state = podState{reason: v1alpha1.ReasonEndpointFailed, message: fmt.Sprintf("node %s has more than %d selected pods", pod.Node, policy.MaxEndpoints)}
			addFailure(byNode, pod, state)
		case state.reason == v1alpha1.ReasonProgrammed:
			programmed++
		case state.reason == v1alpha1.ReasonPending:
			pending = cmp.Or(pending, pod.String()+": "+state.message)
		default:
			addFailure(byNode, pod, state)
		}
	}
	for _, failure := range byNode {
		failures = append(failures, *failure)
	}
	slices.SortFunc(failures, func(a, b v1alpha1.NodeFailure) int { return strings.Compare(a.Node, b.Node) })
	return programmed, failures, pending
}

func addFailure(byNode map[string]*v1alpha1.NodeFailure, pod policy.PodRef, state podState) {
	failure := byNode[pod.Node]
	if failure == nil {
		failure = &v1alpha1.NodeFailure{Node: pod.Node, Reason: state.reason, Message: pod.String() + ": " + state.message}
		byNode[pod.Node] = failure
	}
	failure.Pods++
}

func accepted(o *observation, p *policy.PolicyResult, generation int64) metav1.Condition {
	deny := func(reason, message string) metav1.Condition {
		return condition(v1alpha1.ConditionAccepted, metav1.ConditionFalse, reason, message, generation)
	}
	switch {
	case p.Error != "":
		return deny(v1alpha1.ReasonInvalidSelector, p.Error+": the policy selects nothing until this is corrected")
	case len(p.UnknownPaths) > 0:
		return deny(v1alpha1.ReasonPathNotFound, fmt.Sprintf("no MPTCPPath is named %s; %s. The policy works with its other paths",
			enumerate(p.UnknownPaths), existingPaths(o.result.Paths)))
	case len(p.CutPaths) > 0:
		return deny(v1alpha1.ReasonTooManyPaths, fmt.Sprintf("%s cannot be used on every node of the policy's pods, because more than %d paths select such a node and the first by name are used",
			enumerate(p.CutPaths), v1alpha1.MaxPaths))
	case len(p.ForbiddenPaths) > 0:
		return deny(v1alpha1.ReasonPathNotAllowed, fmt.Sprintf("guardrails do not let pods of this policy use %s. The policy works within the guardrails",
			forbiddenPaths(p.ForbiddenPaths)))
	case len(p.WeightsWithoutCapacity) > 0:
		return deny(v1alpha1.ReasonCapacityMissing, fmt.Sprintf("the weights of %s have no effect, because the MPTCPPath does not give its capacity: set spec.capacity there",
			enumerate(p.WeightsWithoutCapacity)))
	}
	return condition(v1alpha1.ConditionAccepted, metav1.ConditionTrue, v1alpha1.ReasonAccepted, "the policy is compiled, and every path that it names exists", generation)
}

// forbiddenPaths names paths and whose guardrails forbid them.
func forbiddenPaths(paths []policy.ForbiddenPath) string {
	var texts []string
	for _, p := range paths {
		texts = append(texts, fmt.Sprintf("%s (%s)", p.Path, policy.PolicyString(p.By)))
	}
	slices.Sort(texts)
	return enumerate(texts)
}

// maxRefusedHints is how many refused hints a message lists.
const maxRefusedHints = 3

// hintsAccepted says whether annotations of the policy's pods are refused.
func hintsAccepted(p *policy.PolicyResult, generation int64) metav1.Condition {
	if len(p.RefusedHints) == 0 {
		return condition(v1alpha1.ConditionHintsAccepted, metav1.ConditionTrue, v1alpha1.ReasonHintsAccepted,
			fmt.Sprintf("the annotations of %d pods are followed", p.HintedPods), generation)
	}
	pods := map[types.UID]bool{}
	var texts []string
	for i, refused := range p.RefusedHints {
		pods[refused.Pod.UID] = true
		if i < maxRefusedHints {
			texts = append(texts, fmt.Sprintf("%s: %s: %s", refused.Pod, refused.Hint.Annotation, refused.Hint.Message))
		}
	}
	text := strings.Join(texts, ". ")
	if more := len(p.RefusedHints) - len(texts); more > 0 {
		text += fmt.Sprintf(". And %d more", more)
	}
	return condition(v1alpha1.ConditionHintsAccepted, metav1.ConditionFalse, v1alpha1.ReasonHintsRefused,
		fmt.Sprintf("annotations of %d of %d pods are refused, as a whole or in part. %s", len(pods), p.HintedPods, text), generation)
}

// maxRuleProblems is how many problems of rules a message lists.
const maxRuleProblems = 3

// rulesAccepted says whether the policy's rules can work and for whom they run.
func rulesAccepted(p *policy.PolicyResult, generation int64) metav1.Condition {
	deny := func(reason, message string) metav1.Condition {
		return condition(v1alpha1.ConditionRulesAccepted, metav1.ConditionFalse, reason, message, generation)
	}
	switch problems, leftOut := p.RuleProblems, p.RulesLeftOut; {
	case len(problems) > 0:
		return deny(problems[0].Reason, ruleProblems(problems)+". None of the policy's rules is applied until this is corrected")
	case len(leftOut) > 0:
		return deny(v1alpha1.ReasonTooManyRules, fmt.Sprintf("the rules are not applied to %d pods; %s: %s", len(leftOut), leftOut[0].Pod, leftOut[0].Reason))
	}
	return condition(v1alpha1.ConditionRulesAccepted, metav1.ConditionTrue, v1alpha1.ReasonAccepted,
		fmt.Sprintf("the %d rules can work; they are for %d of %d selected pods", p.Rules, len(p.Decides)+len(p.RulesOnly), selected(p)), generation)
}

func ruleProblems(problems []policy.RuleProblem) string {
	var texts []string
	for _, problem := range problems[:min(len(problems), maxRuleProblems)] {
		texts = append(texts, problem.String())
	}
	text := strings.Join(texts, "; ")
	if more := len(problems) - len(texts); more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	return text
}

func existingPaths(paths []policy.PathResult) string {
	if len(paths) == 0 {
		return "there is no MPTCPPath yet"
	}
	names := make([]string, 0, len(paths))
	for _, p := range paths {
		names = append(names, p.Name)
	}
	return "there are " + enumerate(names)
}

func effective(p *policy.PolicyResult, generation int64) metav1.Condition {
	switch selected := selected(p); {
	case selected == 0:
		return condition(v1alpha1.ConditionEffective, metav1.ConditionTrue, v1alpha1.ReasonNoPodsSelected, p.NothingSelected(), generation)
	case p.Policy.Kind == policy.KindGuardrail:
		return condition(v1alpha1.ConditionEffective, metav1.ConditionTrue, v1alpha1.ReasonEffective,
			fmt.Sprintf("the guardrails hold for every pod that it selects, %d in all", selected), generation)
	case len(p.Overridden) > 0:
		first := p.Overridden[0]
		message := fmt.Sprintf("another policy takes precedence for %d of %d selected pods: %s decides for %s", len(p.Overridden), selected, policy.PolicyString(first.By), first.Pod)
		if without := withoutEffect(p); len(without) > 0 {
			message += "; without effect there: " + enumerate(without)
		}
		if rulesOnly := len(p.RulesOnly); rulesOnly > 0 {
			message += fmt.Sprintf("; the rules run for %d of them all the same", rulesOnly)
		}
		return condition(v1alpha1.ConditionEffective, metav1.ConditionFalse, v1alpha1.ReasonOverridden, message, generation)
	case len(p.RulesShadowed) > 0:
		first := p.RulesShadowed[0]
		return condition(v1alpha1.ConditionEffective, metav1.ConditionFalse, v1alpha1.ReasonRulesShadowed,
			fmt.Sprintf("for %d of %d pods %d rules never run; %s: rule %s of %s drops or resets everything that rule %s matches",
				len(p.RulesShadowed), selected, first.Rules, first.Pod, first.ByRule, policy.PolicyString(first.By), first.Rule), generation)
	}
	return condition(v1alpha1.ConditionEffective, metav1.ConditionTrue, v1alpha1.ReasonEffective, "the policy decides for every pod that it selects", generation)
}

// withoutEffect are the parts of a policy that hold for none of the pods for which others
// decide.
func withoutEffect(p *policy.PolicyResult) []string {
	return slices.DeleteFunc(slices.Clone(p.Blocks), func(block string) bool { return block == "spec.rules" && len(p.RulesOnly) > 0 })
}

func programmedCondition(p *policy.PolicyResult, programmed int32, failures []v1alpha1.NodeFailure, pending string, generation int64) metav1.Condition {
	not := func(reason, message string) metav1.Condition {
		return condition(v1alpha1.ConditionProgrammed, metav1.ConditionFalse, reason, message, generation)
	}
	count := fmt.Sprintf("%d of %d pods are programmed", programmed, len(carriers(p)))
	switch {
	case selected(p) == 0:
		return not(v1alpha1.ReasonNoPodsSelected, p.NothingSelected())
	case len(carriers(p)) == 0:
		return not(v1alpha1.ReasonOverridden, "other policies decide for all selected pods")
	case len(failures) > 0:
		worst := worstFailure(failures)
		return not(worst.Reason, fmt.Sprintf("%s, %d nodes fail; node %s: %s", count, len(failures), worst.Node, worst.Message))
	case pending != "":
		return not(v1alpha1.ReasonPending, count+"; "+pending)
	}
	if len(p.UnknownPaths) > 0 {
		return not(v1alpha1.ReasonPathNotFound, fmt.Sprintf("%s, without paths that do not exist (%s): see the condition %s", count, enumerate(p.UnknownPaths), v1alpha1.ConditionAccepted))
	}
	if rules := rulesAccepted(p, generation); rules.Status != metav1.ConditionTrue {
		return not(rules.Reason, count+", without the policy's rules: see the condition "+v1alpha1.ConditionRulesAccepted)
	}
	return condition(v1alpha1.ConditionProgrammed, metav1.ConditionTrue, v1alpha1.ReasonProgrammed, count, generation)
}

// worstFailure is the first by severity: of a silent agent least is known, and
// a datapath that failed as a whole explains more than one endpoint.
func worstFailure(failures []v1alpha1.NodeFailure) v1alpha1.NodeFailure {
	for _, reason := range []string{v1alpha1.ReasonAgentNotReporting, v1alpha1.ReasonDatapathFailed} {
		for _, f := range failures {
			if f.Reason == reason {
				return f
			}
		}
	}
	return failures[0]
}

// pathStatus says on how many nodes a path exists and is up. The NIC of a silent
// agent's node is not known to be up.
func pathStatus(o *observation, p *policy.PathResult) *v1alpha1.MPTCPPathStatus {
	problems := pathProblems{}
	status := &v1alpha1.MPTCPPathStatus{}
	for _, node := range p.Nodes {
		nic, silence := nodePath(o.nodes[node], p.Name), o.silence(node)
		if nic != nil && nic.Interface != "" {
			status.Nodes++
			if nic.State == v1alpha1.LinkUp && silence == "" {
				status.NodesUp++
			}
		}
		problems.add(node, nic, silence)
		problems.addUnreachable(node, nic, o.unreachable(node, nic))
	}
	status.Conditions = []metav1.Condition{pathReady(o, p, problems)}
	return status
}

// pathProblems lists the nodes that lack a path's NIC, by reason.
type pathProblems map[string][]string

func (problems pathProblems) add(node string, nic *v1alpha1.NodePath, silence string) {
	reason := ""
	switch {
	case silence != "":
		reason = v1alpha1.ReasonAgentNotReporting
	case nic == nil:
		reason = v1alpha1.ReasonPending
	case nic.Interface == "":
		reason = v1alpha1.ReasonInterfaceNotFound
	case nic.State != v1alpha1.LinkUp:
		reason = v1alpha1.ReasonInterfaceDown
	case !nic.Usable():
		reason, node = v1alpha1.ReasonInterfaceNotUsable, node+" ("+nic.Message+")"
	default:
		return
	}
	problems[reason] = append(problems[reason], node)
}

// addUnreachable notes whom a node does not reach on a path whose NIC is up.
func (problems pathProblems) addUnreachable(node string, nic *v1alpha1.NodePath, peers []string) {
	if len(peers) > 0 {
		problems[v1alpha1.ReasonPeersUnreachable] = append(problems[v1alpha1.ReasonPeersUnreachable], node+" to "+enumerate(nic.Unreached(peers)))
	}
}

// unreachable are the nodes whose agents report and whose answers to a node's probes come
// on other paths alone. One that answers on none has no agent to answer, or a firewall: that
// says nothing of this path.
func (o *observation) unreachable(node string, nic *v1alpha1.NodePath) (peers []string) {
	if nic == nil || !nic.Usable() || len(nic.Unreachable) == 0 || o.silence(node) != "" {
		return nil
	}
	for _, peer := range nic.Unreachable {
		if o.silence(peer) == "" && answersElsewhere(o.nodes[node], nic, peer) {
			peers = append(peers, peer)
		}
	}
	return peers
}

func answersElsewhere(node *v1alpha1.MPTCPNode, than *v1alpha1.NodePath, peer string) bool {
	return slices.ContainsFunc(node.Status.Paths, func(path v1alpha1.NodePath) bool {
		return path.Name != than.Name && answersOn(&path, peer)
	})
}

// answersOn is false where it is not known: agents list the first few by name that do not
// answer, and leave out the others.
func answersOn(path *v1alpha1.NodePath, peer string) bool {
	listed := len(path.Unreachable)
	whole := int(path.PeersProbed-path.PeersAlive) <= listed
	return path.PeersAlive > 0 && !slices.Contains(path.Unreachable, peer) && (whole || listed > 0 && peer < path.Unreachable[listed-1])
}

// pathProblemWords explains the reasons in order of severity.
var pathProblemWords = []struct{ reason, words string }{
	{v1alpha1.ReasonInterfaceNotFound, "no NIC matches the path on %s: check spec.interfaces, spec.addressRanges and spec.nodeSelector"},
	{v1alpha1.ReasonInterfaceDown, "the NIC is down on %s: set it up, or see to its cable and the switch's port"},
	{v1alpha1.ReasonInterfaceNotUsable, "the NIC is up, and cannot be used on %s"},
	{v1alpha1.ReasonAgentNotReporting, "no agent reports on %s"},
	{v1alpha1.ReasonPeersUnreachable, "the NICs are up, and probes over the path are not answered: %s. Look at cables, switches, VLANs and firewalls between them; kubectl braid paths"},
	{v1alpha1.ReasonPending, "the agent has not looked for the NIC yet on %s"},
}

func pathReady(o *observation, p *policy.PathResult, problems pathProblems) metav1.Condition {
	ready := func(status metav1.ConditionStatus, reason, message string) metav1.Condition {
		return condition(v1alpha1.ConditionReady, status, reason, message, p.Generation)
	}
	switch {
	case p.Error != "":
		return ready(metav1.ConditionFalse, v1alpha1.ReasonInvalidSelector, p.Error+": the path exists nowhere until this is corrected")
	case len(p.Nodes)+len(p.CutNodes) == 0:
		return ready(metav1.ConditionFalse, v1alpha1.ReasonNoNodes, "no node is selected: check spec.nodeSelector")
	case len(p.CutNodes) > 0:
		return ready(metav1.ConditionFalse, v1alpha1.ReasonTooManyPaths,
			fmt.Sprintf("not used on %s: more than %d paths select it, and the first by name are used", enumerate(p.CutNodes), v1alpha1.MaxPaths))
	case !o.result.Active:
		return ready(metav1.ConditionUnknown, v1alpha1.ReasonNoPodsSelected, "no policy selects a running pod yet, so no node looks for its NIC")
	}
	for _, problem := range pathProblemWords {
		if nodes := problems[problem.reason]; len(nodes) > 0 {
			return ready(metav1.ConditionFalse, problem.reason, fmt.Sprintf(problem.words, enumerate(nodes)))
		}
	}
	return ready(metav1.ConditionTrue, v1alpha1.ReasonReady, "every selected node has a working NIC, and probes are answered")
}

func nodePath(node *v1alpha1.MPTCPNode, path string) *v1alpha1.NodePath {
	if node == nil {
		return nil
	}
	for i := range node.Status.Paths {
		if string(node.Status.Paths[i].Name) == path {
			return &node.Status.Paths[i]
		}
	}
	return nil
}

// nodeVerdict is the controller's part of a node's status. It has no other field: those
// that MPTCPNodeStatus shows also when they are 0 would take the agent's place.
type nodeVerdict struct {
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// nodeStatus judges a node: the condition Ready, which needs a judge that is there when
// the agent is not, and AddressesConfirmed.
func nodeStatus(o *observation, node *v1alpha1.MPTCPNode) *nodeVerdict {
	ready := condition(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady, "the agent reports and its datapath is in order", node.Generation)
	if plan := o.plans[node.Name]; plan != nil && datapathFailure(plan) != "" {
		ready.Status, ready.Reason, ready.Message = metav1.ConditionFalse, v1alpha1.ReasonDatapathFailed, datapathFailure(plan)
	}
	if silence := o.silence(node.Name); silence != "" {
		ready.Status, ready.Reason, ready.Message = metav1.ConditionFalse, v1alpha1.ReasonAgentNotReporting, silence
	}
	status := &nodeVerdict{Conditions: []metav1.Condition{ready}}
	if confirmed := addressesConfirmed(o, node); confirmed != nil {
		status.Conditions = append(status.Conditions, *confirmed)
	}
	return status
}

// ownNodeStatus is the part of a node's status that the controller owns.
func ownNodeStatus(node *v1alpha1.MPTCPNode) *nodeVerdict {
	own := &nodeVerdict{}
	for _, c := range node.Status.Conditions {
		if c.Type == v1alpha1.ConditionReady || c.Type == v1alpha1.ConditionAddressesConfirmed {
			own.Conditions = append(own.Conditions, c)
		}
	}
	return own
}

// maxEnumerated is how many names a message lists.
const maxEnumerated = 10

// enumerate lists names, and how many more there are beyond the first few.
func enumerate[S ~string](names []S) string {
	var b strings.Builder
	for i, name := range names[:min(len(names), maxEnumerated)] {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(string(name))
	}
	if more := len(names) - maxEnumerated; more > 0 {
		fmt.Fprintf(&b, " and %d more", more)
	}
	return b.String()
}
