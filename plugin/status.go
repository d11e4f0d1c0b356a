// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/policy"
)

// Status says whether everything is fine.
type Status struct {
	// Fine is true when there is no problem.
	Fine bool `json:"fine"`
	// Traffic is what that of each policy's pods does.
	Traffic []Traffic `json:"traffic,omitempty"`
	// Sockets are what those of the pods speak; nil where no pod is selected.
	Sockets *Sockets `json:"sockets,omitempty"`
	// Counts are by what is counted: nodes, paths, policies, endpoints.
	Counts []Count `json:"counts"`
	// Problems are what is not fine, and why.
	Problems []Problem `json:"problems,omitempty"`
	// Remarks are worth knowing and no problem.
	Remarks []Problem `json:"remarks,omitempty"`
	// LeftOut is what was not looked at, because whoever asks may not read it.
	LeftOut []string `json:"leftOut,omitempty"`
}

// Count is how many of some kind there are, and how many of them are fine.
type Count struct {
	What  string `json:"what"`
	Fine  int    `json:"fine"`
	Total int    `json:"total"`
}

// Problem is one object that is not fine.
type Problem struct {
	Object  string `json:"object"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

func (p *plugin) statusCommand() *cobra.Command {
	var wait time.Duration
	var noWorkloads bool
	command := &cobra.Command{
		Use:   "status",
		Short: "Say whether everything is fine, and if not what and why",
		Long: `Say whether everything is fine, and if not what and why. The exit code is 1 while it is not.

Braid's own parts come first: what objects say is worth nothing once those that write
it are gone. What you may not read is left out, and named.`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			return p.status(command.Context(), wait, noWorkloads)
		},
	}
	command.Flags().DurationVar(&wait, "wait", 0, "how long to wait for everything to be fine; --wait alone means a minute")
	command.Flags().Lookup("wait").NoOptDefVal = "1m"
	command.Flags().BoolVar(&noWorkloads, "no-workloads", false, "agents and controller are no pods of this cluster: go by their Leases alone")
	addSystem(command, &p.systemNamespace)
	return p.addFormat(command)
}

func (p *plugin) status(ctx context.Context, wait time.Duration, noWorkloads bool) error {
	c, err := p.connect(ctx)
	if err != nil {
		return err
	}
	status, err := p.waitUntilFine(ctx, c, wait, noWorkloads)
	if err != nil {
		return err
	}
	if err := p.print(status, status.text); err != nil {
		return err
	}
	if !status.Fine {
		return ErrNotFine
	}
	return nil
}

// waitUntilFine looks until everything is fine, or for so long.
func (p *plugin) waitUntilFine(ctx context.Context, c client.Client, wait time.Duration, noWorkloads bool) (Status, error) {
	tables, err := p.tables()
	if err != nil {
		return Status{}, err
	}
	for deadline := time.Now().Add(wait); ; {
		reader, err := p.reader(c)
		if err != nil {
			return Status{}, err
		}
		reader.noWorkloads, reader.tables = noWorkloads, tables
		found, err := reader.read(ctx)
		if err != nil {
			return Status{}, err
		}
		if status := found.status(); status.Fine || !time.Now().Before(deadline) {
			return status, nil
		}
		select {
		case <-ctx.Done():
			return Status{}, ctx.Err()
		case <-time.After(500 * time.Millisecond):
		}
	}
}

func (c *cluster) status() Status {
	s := Status{LeftOut: c.leftOut}
	if c.own != nil {
		s.addComponents(c.own)
	}
	s.addNodes(c)
	s.addPaths(c)
	s.addPolicies(c)
	s.addEndpoints(c)
	s.Fine = len(s.Problems) == 0
	return s
}

// count adds to a count, and to the problems where there is one.
func (s *Status) count(what string, problem *Problem) {
	count := s.counted(what)
	count.Total++
	if problem == nil {
		count.Fine++
		return
	}
	s.Problems = append(s.Problems, *problem)
}

// counted is the count of some kind, the last one where there is none yet.
func (s *Status) counted(what string) *Count {
	at := slices.IndexFunc(s.Counts, func(count Count) bool { return count.What == what })
	if at < 0 {
		s.Counts = append(s.Counts, Count{What: what})
		at = len(s.Counts) - 1
	}
	return &s.Counts[at]
}

// unlessTrue is the problem of an object whose condition is not True, or not of its present
// generation.
func unlessTrue(object string, generation int64, conditions []metav1.Condition, kind string) *Problem {
	condition := meta.FindStatusCondition(conditions, kind)
	switch {
	case condition == nil:
		return &Problem{object, "Unknown", "nobody has reported yet: is the controller running?"}
	case condition.ObservedGeneration != generation:
		return &Problem{object, v1alpha1.ReasonPending, "the controller has not seen its last change yet"}
	case condition.Status == metav1.ConditionTrue:
		return nil
	}
	return &Problem{object, condition.Reason, condition.Message}
}

// addNodes goes by the cluster's Nodes: one without an agent takes no part.
func (s *Status) addNodes(c *cluster) {
	members := map[string]*v1alpha1.MPTCPNode{}
	for i := range c.members.Items {
		members[c.members.Items[i].Name] = &c.members.Items[i]
	}
	for i := range c.nodes.Items {
		name := c.nodes.Items[i].Name
		member, known := members[name]
		if !known {
			s.Remarks = append(s.Remarks, Problem{"node " + name, "NoAgent", "no agent has run there: its pods' connections are left alone"})
			continue
		}
		s.count("nodes", c.nodeProblem(&c.nodes.Items[i], member))
		s.Remarks = append(s.Remarks, c.nodeRemarks(&c.nodes.Items[i])...)
		// Others do without the addresses that are refused. One that is claimed is worth
		// knowing at both ends.
		addresses := meta.FindStatusCondition(member.Status.Conditions, v1alpha1.ConditionAddressesConfirmed)
		if addresses != nil && (addresses.Status == metav1.ConditionFalse || addresses.Reason == v1alpha1.ReasonDuplicate) {
			s.Remarks = append(s.Remarks, Problem{"node " + name, addresses.Reason, addresses.Message})
		}
	}
}

// nodeProblem: a silent agent's last words count for nothing. The generation of a member is
// that of what the controller itself confirms.
func (c *cluster) nodeProblem(node *corev1.Node, member *v1alpha1.MPTCPNode) *Problem {
	object, kubelet := "node "+member.Name, kubeletProblem(node)
	if silence := c.silenceOf(member); silence != "" {
		return &Problem{object, v1alpha1.ReasonAgentNotReporting, strings.TrimSuffix(silence+"; "+kubelet, "; ")}
	}
	if kubelet != "" {
		return &Problem{object, reasonNodeNotReady, kubelet}
	}
	ready := meta.FindStatusCondition(member.Status.Conditions, v1alpha1.ConditionReady)
	if ready == nil {
		return unlessTrue(object, 0, nil, v1alpha1.ConditionReady)
	}
	return unlessTrue(object, ready.ObservedGeneration, member.Status.Conditions, v1alpha1.ConditionReady)
}

func (s *Status) addPaths(c *cluster) {
	for i := range c.paths.Items {
		path := &c.paths.Items[i]
		// Nothing is wrong with a path that nobody needs yet.
		problem := unlessTrue("path "+path.Name, path.Generation, path.Status.Conditions, v1alpha1.ConditionReady)
		if silent := c.silentNodes(v1alpha1.PathName(path.Name)); problem == nil && len(silent) > 0 {
			problem = &Problem{"path " + path.Name, v1alpha1.ReasonAgentNotReporting, "no agent reports on " + enumerate(silent) + ": its NICs there are not known to work"}
		}
		if problem != nil && problem.Reason == v1alpha1.ReasonNoPodsSelected {
			s.Remarks, problem = append(s.Remarks, *problem), nil
		}
		s.count("paths", problem)
		if lossy := c.lossyNodes(v1alpha1.PathName(path.Name)); problem == nil && len(lossy) > 0 {
			s.Remarks = append(s.Remarks, Problem{"path " + path.Name, reasonPathLossy, "probes are lost: " + enumerate(lossy) + ". " + lossRemedy})
		}
	}
}

const (
	reasonPathLossy = "PathLossy"
	// mostLossPercent is the loss above which it is told: agents publish changes from this on.
	mostLossPercent = 4
	lossRemedy      = "look for errors with ip -s link and ethtool -S, change the cable or the transceiver, or send less over it (docs/alerts.md#braidpathloss)"
)

// lossyNodes are those that lose probes on a path that is alive.
func (c *cluster) lossyNodes(name v1alpha1.PathName) (lossy []string) {
	for i := range c.members.Items {
		member := &c.members.Items[i]
		path := pathOf(member, name)
		if path != nil && path.PeersAlive > 0 && path.LossPercent > mostLossPercent && c.silenceOf(member) == "" {
			lossy = append(lossy, fmt.Sprintf("%s %d %%", member.Name, path.LossPercent))
		}
	}
	return lossy
}

// silentNodes are those on which a path was, and whose agents do not report any more.
func (c *cluster) silentNodes(path v1alpha1.PathName) (silent []string) {
	for i := range c.members.Items {
		member := &c.members.Items[i]
		if pathOf(member, path) != nil && c.silenceOf(member) != "" {
			silent = append(silent, member.Name)
		}
	}
	return silent
}

// pathOf is a path as a node's agent sees it; nil where the node does not have it.
func pathOf(member *v1alpha1.MPTCPNode, name v1alpha1.PathName) *v1alpha1.NodePath {
	for i := range member.Status.Paths {
		if member.Status.Paths[i].Name == name {
			return &member.Status.Paths[i]
		}
	}
	return nil
}

func (s *Status) addPolicies(c *cluster) {
	for i := range c.policies.Items {
		p := &c.policies.Items[i]
		s.addPolicy("policies", "policy "+p.Namespace+"/"+p.Name, p.Generation, p.Status.Conditions)
	}
	for i := range c.clusterPolicies.Items {
		p := &c.clusterPolicies.Items[i]
		s.addPolicy("policies", "cluster policy "+p.Name, p.Generation, p.Status.Conditions)
	}
	for i := range c.guardrails.Items {
		g := &c.guardrails.Items[i]
		s.addPolicy("guardrails", "guardrail "+g.Name, g.Generation, g.Status.Conditions)
	}
}

// addPolicy names the first condition that explains the others. That another
// policy decides for some pods, or that none is selected, is no problem but worth knowing:
// the selector may have a typo.
func (s *Status) addPolicy(what, object string, generation int64, conditions []metav1.Condition) {
	s.addTraffic(object, conditions)
	for _, kind := range []string{v1alpha1.ConditionAccepted, v1alpha1.ConditionRulesAccepted, v1alpha1.ConditionProgrammed} {
		condition := meta.FindStatusCondition(conditions, kind)
		optional := kind != v1alpha1.ConditionAccepted
		if optional && (condition == nil || condition.Reason == v1alpha1.ReasonNoPodsSelected || condition.Reason == v1alpha1.ReasonOverridden) {
			continue
		}
		if problem := unlessTrue(object, generation, conditions, kind); problem != nil {
			s.count(what, problem)
			return
		}
	}
	s.count(what, nil)
	if programmed := meta.FindStatusCondition(conditions, v1alpha1.ConditionProgrammed); programmed != nil && programmed.Reason == v1alpha1.ReasonNoPodsSelected {
		s.Remarks = append(s.Remarks, Problem{object, programmed.Reason, programmed.Message + "; compare its selectors with kubectl get pods --show-labels"})
	}
	for _, kind := range []string{v1alpha1.ConditionEffective, v1alpha1.ConditionHintsAccepted} {
		if condition := meta.FindStatusCondition(conditions, kind); condition != nil && condition.Status == metav1.ConditionFalse {
			s.Remarks = append(s.Remarks, Problem{object, condition.Reason, condition.Message})
		}
	}
}

// endpointKinds are what endpoints are counted as.
var endpointKinds = []string{kindPods, kindVMs, kindHolders}

const kindPods, kindVMs, kindHolders = "pods", "VMs", "pods that hold VMs"

func (s *Status) addEndpoints(c *cluster) {
	for _, kind := range endpointKinds { // in this order, whichever come first
		s.Counts = append(s.Counts, Count{What: kind})
	}
	for _, plan := range c.counted {
		s.addCounted(plan.summary)
	}
	for i := range c.plans.Items {
		plan := &c.plans.Items[i]
		silence, results := c.silence(plan.Name), map[string]*v1alpha1.EndpointStatus{}
		for j := range plan.Status.Endpoints {
			results[string(plan.Status.Endpoints[j].UID)] = &plan.Status.Endpoints[j]
		}
		for j := range plan.Spec.Endpoints {
			endpoint := &plan.Spec.Endpoints[j]
			what := kindPods
			switch {
			case endpoint.Guest != nil:
				what = kindVMs
			case endpoint.HoldsVirtualMachine():
				what = kindHolders
				s.addHolder(silence, plan.Name, endpoint, results[string(endpoint.UID)])
			default:
				s.addSockets(silence, endpoint, results[string(endpoint.UID)])
			}
			s.count(what, problemOf(plan.Name, silence, endpoint, results[string(endpoint.UID)]))
		}
	}
	s.Counts = slices.DeleteFunc(s.Counts, func(count Count) bool { return count.Total == 0 && slices.Contains(endpointKinds, count.What) })
	for i := range c.endpoints.Items {
		s.addGuest(&c.endpoints.Items[i])
	}
}

// addCounted adds a plan of which nothing is noteworthy.
func (s *Status) addCounted(plan *v1alpha1.PlanSummary) {
	for kind, count := range map[string]int32{kindPods: plan.Pods, kindVMs: plan.VirtualMachines, kindHolders: plan.VirtualMachinePods} {
		of := s.counted(kind)
		of.Fine += int(count)
		of.Total += int(count)
	}
	if plan.Pods == 0 {
		return
	}
	if s.Sockets == nil {
		s.Sockets = &Sockets{}
	}
	s.Sockets.MPTCP += int(plan.MPTCP)
	s.Sockets.PlainTCP += int(plan.PlainTCP)
	s.Sockets.NotKnown += int(plan.Pods - plan.MPTCP - plan.PlainTCP)
}

// addGuest tells of a VM that has not all of its addresses, which no plan shows, that follows
// no announcements, and what of its policy does not hold for it.
func (s *Status) addGuest(e *v1alpha1.MPTCPEndpoint) {
	object := fmt.Sprintf("VM %s/%s", e.Namespace, e.Name)
	if accepted := meta.FindStatusCondition(e.Status.Conditions, v1alpha1.ConditionAccepted); accepted != nil && accepted.Status == metav1.ConditionFalse {
		s.count("addresses of VMs", &Problem{object, accepted.Reason, accepted.Message})
	}
	for _, kind := range []string{v1alpha1.ConditionGuestSubflows, v1alpha1.ConditionGuestAgent} {
		if is := meta.FindStatusCondition(e.Status.Conditions, kind); is != nil && is.Status == metav1.ConditionFalse {
			s.Remarks = append(s.Remarks, Problem{object, is.Reason, is.Message})
		}
	}
	if len(e.Status.NotApplied) > 0 {
		s.Remarks = append(s.Remarks, Problem{object, v1alpha1.ReasonNotForGuests, policy.DescribeNotApplied(e.Status.NotApplied)})
	}
}

// addHolder tells the same of a pod that holds a VM.
func (s *Status) addHolder(silence, node string, endpoint *v1alpha1.PlanEndpoint, result *v1alpha1.EndpointStatus) {
	object := fmt.Sprintf("pod %s/%s on %s", endpoint.Namespace, endpoint.Name, node)
	if silence == "" && result != nil && result.GuestSubflows == v1alpha1.GuestNotTaken {
		s.Remarks = append(s.Remarks, Problem{object, v1alpha1.ReasonGuestTakesNoAnnouncements, v1alpha1.GuestRemedy})
	}
	if is := agentProblem(silence, object, result); is != nil {
		s.Remarks = append(s.Remarks, *is)
	}
	if settings := endpoint.NotApplied(); len(settings) > 0 {
		s.Remarks = append(s.Remarks, Problem{object, v1alpha1.ReasonNotForGuests, policy.DescribeNotApplied(settings)})
	}
}

// agentProblem is what keeps a node from setting the limits of a pod's guest.
func agentProblem(silence, object string, result *v1alpha1.EndpointStatus) *Problem {
	if silence != "" || result == nil || result.GuestAgent == nil {
		return nil
	}
	switch is := result.GuestAgent; is.State {
	case v1alpha1.GuestAgentUnreachable:
		return &Problem{object, v1alpha1.ReasonGuestAgentUnreachable, is.Message}
	case v1alpha1.GuestAgentRefused:
		return &Problem{object, v1alpha1.ReasonGuestAgentRefused, is.Message}
	}
	return nil
}

func problemOf(node, silence string, endpoint *v1alpha1.PlanEndpoint, result *v1alpha1.EndpointStatus) *Problem {
	object := fmt.Sprintf("pod %s/%s on %s", endpoint.Namespace, endpoint.Name, node)
	if endpoint.Guest != nil {
		object = "VM" + strings.TrimPrefix(object, "pod")
	}
	switch {
	case silence != "":
		return &Problem{object, v1alpha1.ReasonAgentNotReporting, silence}
	case result == nil:
		return &Problem{object, string(v1alpha1.EndpointPending), "the node's agent has not seen it yet"}
	case result.State != v1alpha1.EndpointProgrammed:
		return &Problem{object, string(result.State), result.Message}
	case result.PolicyGeneration != endpoint.Policy.Generation:
		return &Problem{object, string(v1alpha1.EndpointPending), "the node's agent has not seen the policy's change yet"}
	case result.Chain != endpoint.Chain:
		return &Problem{object, string(v1alpha1.EndpointPending), "the node's agent has not put the pod's chain of rules in place yet"}
	}
	return nil
}

func (s Status) text() string {
	rows := [][]string{}
	summary, notSpread := s.trafficText()
	if summary != "" {
		rows = append(rows, []string{"traffic", summary})
	}
	if s.Sockets != nil && s.Sockets.MPTCP+s.Sockets.PlainTCP > 0 {
		rows = append(rows, []string{"sockets", s.Sockets.text()})
	}
	for _, count := range s.Counts {
		rows = append(rows, []string{count.What, fmt.Sprintf("%d of %d fine", count.Fine, count.Total)})
	}
	out := table(rows...)
	if len(rows) == 0 {
		out = "no agent reports, and there are no paths and no policies\n"
	}
	out += notSpread + list("Problems", s.Problems) + list("Worth knowing", s.Remarks) + leftOutText(s.LeftOut)
	switch {
	case s.Fine && len(s.LeftOut) > 0:
		out += "\nWhat you may read is fine.\n"
	case s.Fine && notSpread != "":
		out += "\nEverything is in place, but not all traffic is spread.\n"
	case s.Fine:
		out += "\nEverything is fine.\n"
	}
	return out
}

// leftOutText names what may not be read.
func leftOutText(leftOut []string) string {
	if len(leftOut) == 0 {
		return ""
	}
	return "\nLeft out, because you may not read it:\n  " + strings.Join(leftOut, "\n  ") + "\n"
}

// maxEnumerated is how many names a message lists.
const maxEnumerated = 10

func enumerate(names []string) string {
	text := strings.Join(names[:min(len(names), maxEnumerated)], ", ")
	if more := len(names) - maxEnumerated; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

func list(title string, problems []Problem) string {
	if len(problems) == 0 {
		return ""
	}
	out := "\n" + title + ":\n"
	for _, problem := range problems {
		out += fmt.Sprintf("  %s: %s\n    %s\n", problem.Object, problem.Reason, problem.Message)
	}
	return out
}
