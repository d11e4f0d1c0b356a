// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/agentapi"
	"braid.dev/braid/policy"
)

// Explanation is what was decided for a pod, why, and what became of it.
type Explanation struct {
	Decision policy.Decision `json:"decision"`
	// Rules are the pod's chain as it is compiled, in the order in which they run.
	Rules []v1alpha1.PlanRule `json:"rules,omitempty"`
	// Programs are those that the rules refer to.
	Programs []v1alpha1.PlanProgram `json:"programs,omitempty"`
	// Result is what the node's agent says; nil before it has said anything.
	Result *v1alpha1.EndpointStatus `json:"result,omitempty"`
	// Older says why Result is of a plan before this decision; empty where it is not.
	Older string `json:"older,omitempty"`
	// Silent says since when the agent does not report; Result is old then.
	Silent string `json:"silent,omitempty"`
	// Node is what is wrong with the pod's node as a whole.
	Node []string `json:"node,omitempty"`
	// NotSelecting says why policies that might select the pod do not, where none does.
	NotSelecting []string `json:"notSelecting,omitempty"`
	// LeftOut is what whoever asks may not read.
	LeftOut []string `json:"leftOut,omitempty"`
	// Traffic is what the pod's connections do; nil where its node's agent was not asked.
	Traffic *agentapi.Spreading `json:"traffic,omitempty"`
	// Remedy is what to do where the traffic is not spread.
	Remedy string `json:"remedy,omitempty"`
}

func (p *plugin) explainCommand() *cobra.Command {
	command := &cobra.Command{
		Use:     "explain POD|KIND/NAME",
		Short:   "Say which policies and hints apply to a pod or to those of a Deployment, which lost and why, and what became of it",
		Example: "  kubectl braid explain web-0 --namespace shop\n  kubectl braid explain deployment/web --namespace shop\n  kubectl braid explain mep/vm1 --namespace shop",
		Args:    cobra.ExactArgs(1),

		ValidArgsFunction: p.podNames,
		RunE: func(command *cobra.Command, arguments []string) error {
			all, err := p.explain(command.Context(), arguments[0])
			if err != nil {
				return err
			}
			groups := alike(all)
			for _, group := range groups {
				if err := p.addTraffic(command.Context(), group[0]); err != nil {
					fmt.Fprintln(command.ErrOrStderr(), "What the pod's connections do is not known:", err)
				}
			}
			if _, isGuest := guestNamed(arguments[0]); isOwner(arguments[0]) && !isGuest {
				return p.print(all, func() string { return groupsText(groups) })
			}
			return p.print(all[0], all[0].text)
		},
	}
	addSystem(command, &p.systemNamespace)
	return p.addFormat(command)
}

// addTraffic adds what the pod's connections do. Everything else is told without.
func (p *plugin) addTraffic(ctx context.Context, e *Explanation) error {
	if e.Result == nil || e.Silent != "" {
		return nil
	}
	s, err := p.system(p.systemNamespace)
	if err != nil {
		return err
	}
	of := e.Decision.Pod
	e.Traffic, err = s.trafficOf(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: of.Namespace, Name: of.Name}, Spec: corev1.PodSpec{NodeName: of.Node},
	})
	if e.Traffic != nil {
		e.Remedy = remedies[e.Traffic.Reason]
	}
	return err
}

// explain compiles the policies as the controller does, so that it also tells of
// what the controller has not seen yet.
func (p *plugin) explain(ctx context.Context, name string) (all []*Explanation, err error) {
	c, err := p.connect(ctx)
	if err != nil {
		return nil, err
	}
	namespace, _, err := p.namespace()
	if err != nil {
		return nil, err
	}
	guest, isGuest := guestNamed(name)
	var pods []corev1.Pod
	var nodes []string
	if isGuest {
		nodes, err = nodeOfGuest(ctx, c, namespace, guest)
	} else if pods, err = podsNamed(ctx, c, namespace, name); err == nil {
		nodes = plansOf(pods)
	}
	if err != nil {
		return nil, err
	}
	found, err := p.read(ctx, c, nodes)
	if err != nil {
		return nil, err
	}
	namespaces, err := readNamespaces(ctx, c, namespace)
	if err != nil {
		return nil, err
	}
	if isGuest {
		return found.explainGuest(namespace, guest, namespaces)
	}
	for i := range pods {
		all = append(all, found.explain(&pods[i], namespaces))
	}
	return all, nil
}

// fewNodes is up to how many plans are read one by one.
const fewNodes = 20

// nodeOfGuest is that of a VM; none where it has none, or it may not be read.
func nodeOfGuest(ctx context.Context, c client.Reader, namespace, name string) ([]string, error) {
	var guest v1alpha1.MPTCPEndpoint
	err := c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &guest)
	switch {
	case apierrors.IsForbidden(err), apierrors.IsNotFound(err):
		return noPlans, nil // told later
	case err != nil:
		return nil, fmt.Errorf("reading MPTCPEndpoint %s/%s: %w", namespace, name, err)
	case guest.Spec.NodeName == "":
		return noPlans, nil
	}
	return []string{guest.Spec.NodeName}, nil
}

// plansOf are the nodes whose plans tell of pods; nil for all, where that is less work.
func plansOf(pods []corev1.Pod) []string {
	nodes := []string{}
	for i := range pods {
		if node := pods[i].Spec.NodeName; node != "" && !slices.Contains(nodes, node) {
			nodes = append(nodes, node)
		}
	}
	if len(nodes) > fewNodes {
		return nil
	}
	return nodes
}

// guestNamed is the name of a VM, given as mep/NAME.
func guestNamed(text string) (string, bool) {
	word, name, _ := strings.Cut(text, "/")
	return name, name != "" && slices.Contains([]string{"mep", "mptcpendpoint", "mptcpendpoints", "vm"}, strings.ToLower(word))
}

// explainGuest does for a VM what explain does for a pod.
func (c *cluster) explainGuest(namespace, name string, namespaces []corev1.Namespace) ([]*Explanation, error) {
	for i := range c.endpoints.Items {
		e := &c.endpoints.Items[i]
		if e.Namespace == namespace && e.Name == name {
			of := policy.PodRef{Kind: policy.KindEndpoint, Namespace: namespace, Name: name, UID: e.UID, Node: e.Spec.NodeName}
			return []*Explanation{c.explainOne(of, policy.Input{Namespaces: namespaces, Endpoints: c.endpoints.Items})}, nil
		}
	}
	return nil, fmt.Errorf("there is no MPTCPEndpoint %s/%s, or you may not read it", namespace, name)
}

// readNamespaces reads all, or else the one that a tenant has.
func readNamespaces(ctx context.Context, c client.Reader, own string) ([]corev1.Namespace, error) {
	var all corev1.NamespaceList
	err := c.List(ctx, &all)
	if !apierrors.IsForbidden(err) {
		return all.Items, wrap(err, "reading the namespaces")
	}
	var one corev1.Namespace
	if err := c.Get(ctx, client.ObjectKey{Name: own}, &one); err != nil && !apierrors.IsForbidden(err) {
		return nil, fmt.Errorf("reading namespace %s: %w", own, err)
	}
	one.Name = own
	return []corev1.Namespace{one}, nil
}

func wrap(err error, doing string) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// explain says what is decided for a pod, and what its node makes of it.
func (c *cluster) explain(pod *corev1.Pod, namespaces []corev1.Namespace) *Explanation {
	of := policy.PodRef{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, Node: pod.Spec.NodeName}
	e := c.explainOne(of, policy.Input{Namespaces: namespaces, Pods: []corev1.Pod{*pod}})
	decided := e.Decision.Winner != nil && e.Decision.Winner.Kind != policy.KindGuardrail
	if !decided && e.Decision.Ignored == "" {
		e.NotSelecting = c.notSelecting(pod)
	}
	return e
}

// notSelecting compares the selectors of the policies that might select a pod with its labels.
func (c *cluster) notSelecting(pod *corev1.Pod) (texts []string) {
	labels := metav1.FormatLabelSelector(&metav1.LabelSelector{MatchLabels: pod.Labels})
	for i := range c.policies.Items {
		if p := &c.policies.Items[i]; p.Namespace == pod.Namespace {
			texts = append(texts, fmt.Sprintf("MPTCPPolicy %s/%s selects %s, and the pod's labels are %s",
				p.Namespace, p.Name, metav1.FormatLabelSelector(&p.Spec.PodSelector), labels))
		}
	}
	for i := range c.clusterPolicies.Items {
		p := &c.clusterPolicies.Items[i]
		texts = append(texts, fmt.Sprintf("ClusterMPTCPPolicy %s selects %s in namespaces with %s, and the pod's labels are %s",
			p.Name, metav1.FormatLabelSelector(&p.Spec.PodSelector), metav1.FormatLabelSelector(&p.Spec.NamespaceSelector), labels))
	}
	if more := len(texts) - maxEnumerated; more > 0 {
		texts = append(texts[:maxEnumerated], fmt.Sprintf("and %d more", more))
	}
	return texts
}

// explainOne does so for a pod or a VM of an input.
func (c *cluster) explainOne(of policy.PodRef, in policy.Input) *Explanation {
	c.assumeNode(of.Node)
	in.Paths, in.Policies, in.ClusterPolicies, in.Guardrails, in.Nodes = c.paths.Items, c.policies.Items, c.clusterPolicies.Items, c.guardrails.Items, c.nodes.Items
	compiled := policy.Compile(in)
	e := &Explanation{Result: c.result(of), Silent: c.silence(of.Node), Node: c.nodeNotes(of.Node), LeftOut: c.leftOut}
	for i := range compiled.Decisions {
		if compiled.Decisions[i].Pod.UID == of.UID {
			e.Decision = compiled.Decisions[i]
		}
	}
	if is := e.spreading(); is != nil {
		e.Remedy = remedies[is.Reason]
	}
	plan := compiled.Plans[of.Node]
	for _, chain := range plan.Chains {
		if chain.Name == e.Decision.Chain {
			e.Rules, e.Programs = chain.Rules, programsOf(chain.Rules, plan.Programs)
		}
	}
	for i := range plan.Endpoints {
		if plan.Endpoints[i].UID == of.UID {
			e.Older = c.older(of, &plan.Endpoints[i])
		}
	}
	if member := c.member(of.Node); member != nil && e.Silent == "" {
		e.lookAtNICs(member)
	}
	return e
}

// assumeNode stands for a Node that may not be read: which paths its labels give it is not
// known then, so it has all.
func (c *cluster) assumeNode(name string) {
	if !c.unread(unreadNodes) || name == "" {
		return
	}
	c.nodes.Items = []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: name}}}
	for i := range c.paths.Items {
		c.paths.Items[i].Spec.NodeSelector = nil
	}
}

// lookAtNICs says which of the paths the node cannot use now.
func (e *Explanation) lookAtNICs(member *v1alpha1.MPTCPNode) {
	for i := range e.Decision.Paths {
		choice := &e.Decision.Paths[i]
		if choice.Used {
			path := pathOf(member, choice.Path)
			choice.NotNow = notNow(member, path)
			choice.Impaired = impaired(member, path)
		}
	}
}

func notNow(member *v1alpha1.MPTCPNode, path *v1alpha1.NodePath) string {
	switch {
	case path == nil:
		return "the agent of " + member.Name + " has not looked for its NIC yet"
	case path.Interface == "":
		return strings.TrimSuffix(member.Name+" has no NIC of it: "+path.Message, ": ")
	case !path.Usable() && strings.HasPrefix(path.Message, path.Interface+" "):
		return path.Message
	case path.State != v1alpha1.LinkUp:
		return strings.TrimSuffix(path.Interface+" is down: "+path.Message, ": ")
	case path.PeersProbed > 0 && path.PeersAlive == 0:
		return fmt.Sprintf("no other node answers probes over it, of %d", path.PeersProbed)
	}
	return ""
}

// impaired says to whom probes on a path are not answered that others answer, or how many are
// lost; empty where all is well.
func impaired(member *v1alpha1.MPTCPNode, path *v1alpha1.NodePath) string {
	if path == nil || path.PeersAlive == 0 {
		return ""
	}
	unreachable := slices.DeleteFunc(slices.Clone(path.Unreachable), func(peer string) bool { return answersNowhere(member, peer) })
	switch {
	case len(unreachable) > 0:
		return unreached(unreachable, path.LargePacketsLost)
	case path.LossPercent > mostLossPercent:
		return fmt.Sprintf("it loses %d %% of its probes: %s", path.LossPercent, lossRemedy)
	case len(path.DistantTo) > 0:
		return fmt.Sprintf("to %s answers take much longer than by others, as it is longer or full: connections begin by others, and go by these while they move little", enumerate(path.DistantTo))
	}
	return ""
}

// unreached says to which nodes a path leads nowhere, and to which for large packets alone.
func unreached(peers, largeAlone []string) string {
	var none, large []string
	for _, peer := range peers {
		if slices.Contains(largeAlone, peer) {
			large = append(large, peer)
		} else {
			none = append(none, peer)
		}
	}
	var says []string
	if len(none) > 0 {
		says = append(says, fmt.Sprintf("not to %s now: probes over it are not answered from there. Look at cables, switches, VLANs and firewalls between them", enumerate(none)))
	}
	if len(large) > 0 {
		says = append(says, fmt.Sprintf("not to %s now: only large packets are lost on the way. Look at the MTU of switches and routers", enumerate(large)))
	}
	return strings.Join(says, "; ")
}

// answersNowhere: a node that answers on no path has no agent to answer, or a firewall.
func answersNowhere(member *v1alpha1.MPTCPNode, peer string) bool {
	return !slices.ContainsFunc(member.Status.Paths, func(path v1alpha1.NodePath) bool {
		return path.PeersProbed > 0 && !slices.Contains(path.Unreachable, peer)
	})
}

// older says why what the agent tells of a pod is not about this decision; empty where it is.
func (c *cluster) older(pod policy.PodRef, decided *v1alpha1.PlanEndpoint) string {
	plan := c.plan(pod.Node)
	if plan == nil {
		return ""
	}
	for i := range plan.Spec.Endpoints {
		planned := &plan.Spec.Endpoints[i]
		switch {
		case planned.UID != pod.UID:
		case !sameDecision(planned, decided):
			return "the controller has not put this decision into the node's plan yet"
		case plan.Status.ObservedGeneration < plan.Generation:
			return "the agent has not applied the node's last plan yet"
		}
	}
	return ""
}

// sameDecision leaves out what depends on other pods of the node.
func sameDecision(a, b *v1alpha1.PlanEndpoint) bool {
	of := func(e *v1alpha1.PlanEndpoint) v1alpha1.PlanEndpoint {
		return v1alpha1.PlanEndpoint{
			Policy: e.Policy, Paths: e.Paths, Subflows: e.Subflows, UpgradeSockets: e.UpgradeSockets, Proxy: e.Proxy, Transport: e.Transport, Incast: e.Incast, Preferred: e.Preferred, Backup: e.Backup,
			Preference: e.Preference, Hinted: e.Hinted, RefusedHints: e.RefusedHints, Guard: e.Guard,
		}
	}
	return equality.Semantic.DeepEqual(of(a), of(b))
}

func (c *cluster) plan(node string) *v1alpha1.MPTCPNodePlan {
	for i := range c.plans.Items {
		if c.plans.Items[i].Name == node {
			return &c.plans.Items[i]
		}
	}
	return nil
}

// result is what the agent of the pod's node says.
func (c *cluster) result(pod policy.PodRef) *v1alpha1.EndpointStatus {
	plan := c.plan(pod.Node)
	if plan == nil {
		return nil
	}
	for i := range plan.Status.Endpoints {
		if plan.Status.Endpoints[i].UID == pod.UID {
			return &plan.Status.Endpoints[i]
		}
	}
	return nil
}

func (e *Explanation) text() string {
	var b strings.Builder
	e.writeTraffic(&b)
	b.WriteString(e.decisionText())
	for i, rule := range e.Rules {
		if i == 0 {
			b.WriteString("  chain:\n")
		}
		fmt.Fprintf(&b, "    %d. %s (%s): %s\n", i+1, rule.Name, rule.Policy, actions(rule.Actions))
	}
	for i := range e.Programs {
		if i == 0 {
			b.WriteString("  programs:\n")
		}
		fmt.Fprintf(&b, "    %s\n", programText(&e.Programs[i]))
	}
	for _, text := range e.NotSelecting {
		fmt.Fprintf(&b, "    %s\n", text)
	}
	e.writeResult(&b)
	b.WriteString(notesText(e.Decision.Pod.Node, e.Node))
	b.WriteString(leftOutText(e.LeftOut))
	return b.String()
}

// decisionText tells of a decision what does not depend on paths where these were not read.
func (e *Explanation) decisionText() string {
	d := e.Decision
	if slices.Contains(e.LeftOut, unreadPaths) && d.Winner != nil {
		d = policy.Decision{Pod: d.Pod, Winner: d.Winner, WinnerReason: d.WinnerReason, Losers: d.Losers,
			LeftOut: "paths, annotations and subflows, which depend on MPTCPPaths"}
	}
	return d.String()
}

// spreading is what the pod's status says; nil where it does not.
func (e *Explanation) spreading() *v1alpha1.SpreadingStatus {
	if e.Result == nil || e.Silent != "" {
		return nil
	}
	return e.Result.Spreading
}

// writeTraffic leads: it is what all the rest is for.
func (e *Explanation) writeTraffic(b *strings.Builder) {
	is := e.spreading()
	switch {
	case e.Traffic != nil:
		b.WriteString(e.Traffic.Text(""))
	case is != nil:
		fmt.Fprintf(b, "traffic: %s\n", agentapi.Told(is))
	}
	if e.Remedy != "" {
		fmt.Fprintf(b, "what to do: %s\n", e.Remedy)
	}
}

// programsOf are those of a plan that belong to the policies of these rules.
func programsOf(rules []v1alpha1.PlanRule, all []v1alpha1.PlanProgram) (programs []v1alpha1.PlanProgram) {
	for i := range all {
		owner := policy.RuleOwner(v1alpha1.PolicyReference{Kind: policy.KindClusterPolicy, Name: all[i].Policy})
		if slices.ContainsFunc(rules, func(rule v1alpha1.PlanRule) bool { return rule.Policy == owner }) {
			programs = append(programs, all[i])
		}
	}
	return programs
}

// programText says what a program is for, and what it has in common with others.
func programText(program *v1alpha1.PlanProgram) string {
	text := fmt.Sprintf("%s (%s)", program.Name, program.Type)
	for _, shared := range program.SharedState {
		if shared.Policy == "" || shared.Policy == program.Policy {
			text += ", shares " + shared.Name
		} else {
			text += fmt.Sprintf(", reads %s of ClusterMPTCPPolicy/%s", shared.Name, shared.Policy)
		}
	}
	return text
}

func actions(list []v1alpha1.Action) string {
	names := make([]string, 0, len(list))
	for _, action := range list {
		name := string(action.Type)
		if action.At == v1alpha1.ActionAtPeer {
			name += " at the peer"
		}
		names = append(names, name)
	}
	return strings.Join(names, ", ")
}

func (e *Explanation) writeResult(b *strings.Builder) {
	if e.Decision.Winner == nil {
		return
	}
	switch {
	case e.Silent != "":
		fmt.Fprintf(b, "  on the node: not known, nor whether its NICs work: %s\n", e.Silent)
		return
	case e.Result == nil && slices.Contains(e.LeftOut, unreadPlans):
		return
	case e.Result == nil:
		b.WriteString("  on the node: its agent has not reported this pod yet\n")
		return
	}
	fmt.Fprintf(b, "  on the node: %s", e.Result.State)
	if e.Result.Message != "" {
		fmt.Fprintf(b, ": %s", e.Result.Message)
	}
	b.WriteString("\n")
	if e.Older != "" {
		fmt.Fprintf(b, "    that is older than the decision: %s\n", e.Older)
		return
	}
	for _, hint := range e.Result.Hints {
		b.WriteString(strings.TrimRight(fmt.Sprintf("    %s: %s %s", hint.Annotation, hint.State, hint.Message), " ") + "\n")
	}
	for _, rule := range e.Result.Rules {
		b.WriteString(strings.TrimRight(fmt.Sprintf("    rule %s: %s %s", rule.Name, rule.Mechanism, rule.Message), " ") + "\n")
	}
}
