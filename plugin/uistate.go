// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/plugin/ui"
)

// uiHead is what the page shows of the whole cluster.
type uiHead struct {
	Context string `json:"context"`
	// Stale says why what is shown may be old.
	Stale string `json:"stale,omitempty"`
	// Status is what `kubectl braid status` says; its lists are in Reports.
	Status Status   `json:"status"`
	Paths  []uiPath `json:"paths"`
	// Reports is the newest first: what is wrong now, and what was reported. Older is how much
	// more there is.
	Reports []uiReport `json:"reports"`
	Older   int        `json:"older,omitempty"`
	// Namespace is where who may not read all looks for pods.
	Namespace string `json:"namespace"`
}

// uiPath is a column of the map.
type uiPath struct {
	Name                  string `json:"name"`
	CapacityBitsPerSecond uint64 `json:"capacityBitsPerSecond,omitempty"`
	Nodes                 int32  `json:"nodes"`
	Up                    int32  `json:"up"`
	// Problem is empty where it is ready, or nobody needs it.
	Problem string `json:"problem,omitempty"`
}

// uiReport is something that is wrong now, or that was reported.
type uiReport struct {
	Time time.Time `json:"time"`
	// Type is Problem, NIC, Traffic or Remark of what is so now, Warning or Normal of an Event.
	Type    string `json:"type"`
	Object  string `json:"object"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
	Remedy  string `json:"remedy,omitempty"`
	Count   int32  `json:"count,omitempty"`
	// Node, Namespace and Pod say which page tells more.
	Node      string `json:"node,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Pod       string `json:"pod,omitempty"`
}

// uiNode is a row of the map.
type uiNode struct {
	Name string `json:"name"`
	// Problem is why the node is not fine, Silent since when its agent does not report.
	Problem string `json:"problem,omitempty"`
	Silent  string `json:"silent,omitempty"`
	// NoAgent is true where none has ever run.
	NoAgent bool                   `json:"noAgent,omitempty"`
	Kernel  string                 `json:"kernel,omitempty"`
	Agent   string                 `json:"agent,omitempty"`
	NICs    []uiNIC                `json:"nics"`
	Tunnels []v1alpha1.NodeOverlay `json:"tunnels,omitempty"`
	// Pods are those that a policy selects, Wrong of them are not programmed, and NotSpread
	// have traffic that is not spread.
	Pods      int `json:"pods"`
	Wrong     int `json:"wrong,omitempty"`
	NotSpread int `json:"notSpread,omitempty"`
}

// uiNIC is a node's NIC on one path.
type uiNIC struct {
	v1alpha1.NodePath
	Is nicIs `json:"is"`
	// Why it is not as it should be; empty where it is.
	Why string `json:"why,omitempty"`
}

// nicIs is the state of a NIC in a word.
type nicIs string

const (
	nicUp        nicIs = "up"
	nicDown      nicIs = "down"
	nicNoCarrier nicIs = "noCarrier"
	nicMissing   nicIs = "missing"
	nicUnusable  nicIs = "unusable"
	nicUnreached nicIs = "unreached"
	nicPartly    nicIs = "partly"
	nicAway      nicIs = "away" // nobody looks at it: the agent is silent
)

// nicOf judges a NIC as explain does.
func nicOf(member *v1alpha1.MPTCPNode, path *v1alpha1.NodePath, silent string) uiNIC {
	nic := uiNIC{NodePath: *path, Is: nicUp, Why: notNow(member, path)}
	switch {
	case silent != "":
		nic.Is, nic.Why = nicAway, silent
	case path.Interface == "":
		nic.Is = nicMissing
	case path.State != v1alpha1.LinkUp && strings.Contains(path.Message, "no carrier"):
		nic.Is = nicNoCarrier
	case path.State != v1alpha1.LinkUp:
		nic.Is = nicDown
	case !path.Usable():
		nic.Is = nicUnusable
	case path.PeersProbed > 0 && path.PeersAlive == 0:
		nic.Is = nicUnreached
	case path.PeersAlive < path.PeersProbed:
		nic.Is = nicPartly
		nic.Why = fmt.Sprintf("%d of %d nodes that are probed do not answer", path.PeersProbed-path.PeersAlive, path.PeersProbed)
		if len(path.Unreachable) > 0 {
			nic.Why += ": " + enumerate(path.Unreached(path.Unreachable))
		}
	}
	return nic
}

// uiNodes are the rows of the map by their names.
func (c *cluster) uiNodes() map[string]any {
	rows := map[string]*uiNode{}
	for i := range c.nodes.Items {
		name := c.nodes.Items[i].Name
		rows[name] = &uiNode{Name: name, NoAgent: !c.unread(unreadMembers), NICs: []uiNIC{}}
	}
	for i := range c.members.Items {
		member := &c.members.Items[i]
		if rows[member.Name] != nil || c.unread(unreadNodes) {
			rows[member.Name] = c.uiNode(member)
		}
	}
	for i := range c.plans.Items {
		if row := rows[c.plans.Items[i].Name]; row != nil {
			row.count(c.podsOfPlan(&c.plans.Items[i]))
		}
	}
	all := map[string]any{}
	for name, row := range rows {
		all[name] = row
	}
	return all
}

func (c *cluster) uiNode(member *v1alpha1.MPTCPNode) *uiNode {
	row := &uiNode{
		Name: member.Name, Silent: c.silenceOf(member), Kernel: member.Status.KernelRelease, Agent: member.Status.AgentVersion,
		NICs: []uiNIC{}, Tunnels: member.Status.Overlays,
	}
	if problem := c.nodeProblem(c.node(member.Name), member); problem != nil {
		row.Problem = problem.Reason + ": " + problem.Message
	}
	for i := range member.Status.Paths {
		row.NICs = append(row.NICs, nicOf(member, &member.Status.Paths[i], row.Silent))
	}
	return row
}

// uiPod is a pod or a VM that a policy selects.
type uiPod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	VM        bool   `json:"vm,omitempty"`
	Node      string `json:"node,omitempty"`
	Policy    string `json:"policy,omitempty"`
	// Problem is why it is not programmed.
	Problem string `json:"problem,omitempty"`
	// Spreading is what its traffic does, with the reason.
	Spreading v1alpha1.SpreadingState `json:"spreading,omitempty"`
	Reason    string                  `json:"reason,omitempty"`
}

// podsOfPlan are the pods of a node.
func (c *cluster) podsOfPlan(plan *v1alpha1.MPTCPNodePlan) []uiPod {
	silence, results := c.silence(plan.Name), map[string]*v1alpha1.EndpointStatus{}
	for i := range plan.Status.Endpoints {
		results[string(plan.Status.Endpoints[i].UID)] = &plan.Status.Endpoints[i]
	}
	pods := make([]uiPod, 0, len(plan.Spec.Endpoints))
	for i := range plan.Spec.Endpoints {
		e := &plan.Spec.Endpoints[i]
		result := results[string(e.UID)]
		pod := uiPod{Namespace: e.Namespace, Name: e.Name, VM: e.Guest != nil, Node: plan.Name, Policy: strings.TrimPrefix(e.Policy.Namespace+"/"+e.Policy.Name, "/")}
		if problem := problemOf(plan.Name, silence, e, result); problem != nil {
			pod.Problem = problem.Reason + ": " + problem.Message
		}
		if result != nil && result.Spreading != nil && silence == "" {
			pod.Spreading, pod.Reason = result.Spreading.State, result.Spreading.Reason
		}
		pods = append(pods, pod)
	}
	return pods
}

func (n *uiNode) count(pods []uiPod) {
	n.Pods = len(pods)
	for i := range pods {
		if pods[i].Problem != "" {
			n.Wrong++
		}
		if pods[i].Spreading == v1alpha1.SpreadingNotSpread {
			n.NotSpread++
		}
	}
}

func (c *cluster) uiPaths() []uiPath {
	all, declared := []uiPath{}, capacities(c.paths.Items)
	for i := range c.paths.Items {
		path := &c.paths.Items[i]
		column := uiPath{
			Name: path.Name, CapacityBitsPerSecond: declared[v1alpha1.PathName(path.Name)], Nodes: path.Status.Nodes, Up: path.Status.NodesUp,
		}
		problem := unlessTrue("", path.Generation, path.Status.Conditions, v1alpha1.ConditionReady)
		if problem != nil && problem.Reason != v1alpha1.ReasonNoPodsSelected {
			column.Problem = problem.Reason + ": " + problem.Message
		}
		all = append(all, column)
	}
	return all
}

// maxReports bounds how much of what is wrong is listed.
const maxReports = 150

// uiState is what the page shows. since says from when on something is wrong.
func (c *cluster) uiState(head uiHead, events []Event, since func(Problem) time.Time) ui.State {
	status := c.status()
	head.Paths = c.uiPaths()
	nodes := c.uiNodes()
	reports := append(reportsOf(&status, since), reportsOfNICs(nodes, since)...)
	for i := range events {
		reports = append(reports, events[i].report())
	}
	slices.SortStableFunc(reports, func(a, b uiReport) int {
		return cmp.Or(b.Time.Compare(a.Time), strings.Compare(a.Object, b.Object))
	})
	head.Older = max(0, len(reports)-maxReports)
	head.Reports = reports[:len(reports)-head.Older]
	head.Status = Status{Fine: status.Fine, Counts: status.Counts, Traffic: status.Traffic, LeftOut: status.LeftOut}
	return ui.State{Head: head, Nodes: nodes}
}

func reportsOf(status *Status, since func(Problem) time.Time) []uiReport {
	reports := []uiReport{}
	add := func(kind string, problem Problem, remedy string) {
		one := uiReport{Time: since(problem), Type: kind, Object: problem.Object, Reason: problem.Reason, Message: problem.Message, Remedy: remedy}
		words := strings.Fields(problem.Object)
		switch {
		case len(words) == 2 && words[0] == "node":
			one.Node = words[1]
		case len(words) == 4 && (words[0] == "pod" || words[0] == "VM"):
			one.Namespace, one.Pod, _ = strings.Cut(words[1], "/")
		}
		reports = append(reports, one)
	}
	for _, problem := range status.Problems {
		add("Problem", problem, "")
	}
	for _, traffic := range status.Traffic {
		if traffic.Status == metav1.ConditionFalse {
			add("Traffic", Problem{traffic.Object, traffic.Reason, traffic.Message}, traffic.Remedy)
		}
	}
	for _, remark := range status.Remarks {
		add("Remark", remark, "")
	}
	return reports
}

// reportsOfNICs are those that cannot be used as they are.
func reportsOfNICs(nodes map[string]any, since func(Problem) time.Time) (reports []uiReport) {
	for name, row := range nodes {
		for _, nic := range row.(*uiNode).NICs {
			if nic.Is == nicUp || nic.Is == nicAway {
				continue
			}
			problem := Problem{string(nic.Name) + " on " + name, nicReasons[nic.Is], nic.Why}
			reports = append(reports, uiReport{Time: since(problem), Type: "NIC", Object: problem.Object, Reason: problem.Reason, Message: problem.Message, Node: name})
		}
	}
	return reports
}

// nicReasons are the reasons of a path's condition where it has one.
var nicReasons = map[nicIs]string{
	nicDown: v1alpha1.ReasonInterfaceDown, nicNoCarrier: v1alpha1.ReasonInterfaceDown, nicMissing: v1alpha1.ReasonInterfaceNotFound,
	nicUnusable: v1alpha1.ReasonInterfaceNotUsable, nicUnreached: v1alpha1.ReasonPeersUnreachable, nicPartly: v1alpha1.ReasonPeersUnreachable,
}

func (e *Event) report() uiReport {
	one := uiReport{Time: e.Time, Type: e.Type, Object: e.object(), Reason: e.Reason, Message: e.Message, Count: e.Count}
	switch e.Kind {
	case "Node", "MPTCPNode", "MPTCPNodePlan":
		one.Node = e.Name
	case "Pod", "MPTCPEndpoint":
		one.Namespace, one.Pod = e.Namespace, e.Name
	}
	return one
}

// times are when conditions became what they are, by object and reason.
func (c *cluster) times() map[[2]string]time.Time {
	times := map[[2]string]time.Time{}
	add := func(object string, conditions []metav1.Condition) {
		for i := range conditions {
			times[[2]string{object, conditions[i].Reason}] = conditions[i].LastTransitionTime.Time
		}
	}
	for i := range c.members.Items {
		member := &c.members.Items[i]
		add("node "+member.Name, member.Status.Conditions)
		if c.own != nil && c.own.leases[v1alpha1.AgentLeasePrefix+member.Name] != nil {
			times[[2]string{"node " + member.Name, v1alpha1.ReasonAgentNotReporting}] = renewed(c.own.leases[v1alpha1.AgentLeasePrefix+member.Name])
		}
	}
	for i := range c.paths.Items {
		add("path "+c.paths.Items[i].Name, c.paths.Items[i].Status.Conditions)
	}
	for i := range c.policies.Items {
		add("policy "+c.policies.Items[i].Namespace+"/"+c.policies.Items[i].Name, c.policies.Items[i].Status.Conditions)
	}
	for i := range c.clusterPolicies.Items {
		add("cluster policy "+c.clusterPolicies.Items[i].Name, c.clusterPolicies.Items[i].Status.Conditions)
	}
	return times
}
