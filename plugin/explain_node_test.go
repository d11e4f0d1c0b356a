// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/policy"
)

// decided is a cluster with one pod on node1, whose agent has carried out what is decided.
func decided() (*cluster, *corev1.Pod, []corev1.Namespace) {
	namespaces := []corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "u", Annotations: map[string]string{v1alpha1.AnnotationPreferredPaths: "blue"}},
		Spec:       corev1.PodSpec{NodeName: "node1"},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: "10.0.0.9"}}},
	}
	c := &cluster{}
	member := v1alpha1.MPTCPNode{ObjectMeta: metav1.ObjectMeta{Name: "node1"}}
	for _, name := range []string{"blue", "green", "red"} {
		c.paths.Items = append(c.paths.Items, v1alpha1.MPTCPPath{ObjectMeta: metav1.ObjectMeta{Name: name}})
		member.Status.Paths = append(member.Status.Paths, v1alpha1.NodePath{Name: v1alpha1.PathName(name), Interface: "eth-" + name, State: v1alpha1.LinkUp, PeersProbed: 2, PeersAlive: 2})
	}
	c.policies.Items = []v1alpha1.MPTCPPolicy{{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "spread", Generation: 3}}}
	c.nodes.Items = []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "node1"}}}
	c.members.Items = []v1alpha1.MPTCPNode{member}
	compiled := policy.Compile(policy.Input{Paths: c.paths.Items, Policies: c.policies.Items, Namespaces: namespaces, Nodes: c.nodes.Items, Pods: []corev1.Pod{*pod}})
	plan := v1alpha1.MPTCPNodePlan{ObjectMeta: metav1.ObjectMeta{Name: "node1", Generation: 4}, Spec: compiled.Plans["node1"]}
	plan.Status.ObservedGeneration = 4
	plan.Status.Endpoints = []v1alpha1.EndpointStatus{{
		UID: "u", PolicyGeneration: 3, State: v1alpha1.EndpointProgrammed,
		Hints: []v1alpha1.HintStatus{{Annotation: v1alpha1.AnnotationPreferredPaths, State: v1alpha1.HintFollowed}},
	}}
	c.plans.Items = []v1alpha1.MPTCPNodePlan{plan}
	return c, pod, namespaces
}

func TestAnExplanationCountsThePathsThatTheNodeCanUse(t *testing.T) {
	const share = "; they share 2 of 3 paths now"
	for name, test := range map[string]struct {
		change func(c *cluster, green *v1alpha1.NodePath)
		says   string
	}{
		"a NIC that is down": {func(_ *cluster, green *v1alpha1.NodePath) {
			green.State, green.Message = v1alpha1.LinkDown, "no carrier"
		}, "but not now: eth-green is down: no carrier"},
		"a NIC that is down for no known reason": {func(_ *cluster, green *v1alpha1.NodePath) { green.State = v1alpha1.LinkDown }, "but not now: eth-green is down\n"},
		"a path of which the node has no NIC": {func(_ *cluster, green *v1alpha1.NodePath) {
			green.Interface, green.State, green.Message = "", v1alpha1.LinkDown, "no NIC matches"
		}, "but not now: node1 has no NIC of it: no NIC matches"},
		"a NIC that is up and cannot be used": {func(_ *cluster, green *v1alpha1.NodePath) {
			green.Message = "eth-green has no global address"
		}, "but not now: eth-green has no global address"},
		"a path that is dead by probes":         {func(_ *cluster, green *v1alpha1.NodePath) { green.PeersAlive = 0 }, "but not now: no other node answers probes over it, of 2"},
		"a path that was not looked for so far": {func(_ *cluster, green *v1alpha1.NodePath) { green.Name = "other" }, "but not now: the agent of node1 has not looked for its NIC yet"},
	} {
		t.Run(name, func(t *testing.T) {
			c, pod, namespaces := decided()
			require.NotContains(t, c.explain(pod, namespaces).text(), "now", "all paths can be used")
			test.change(c, &c.members.Items[0].Status.Paths[1])
			text := c.explain(pod, namespaces).text()
			require.Contains(t, text, test.says)
			require.Contains(t, text, share)
		})
	}
}

func TestAnExplanationSaysWhichPathDoesLessThanItShould(t *testing.T) {
	for name, test := range map[string]struct {
		change func(member *v1alpha1.MPTCPNode)
		says   string
	}{
		"a path that loses probes": {func(member *v1alpha1.MPTCPNode) { member.Status.Paths[1].LossPercent = 30 }, "but it loses 30 % of its probes: look for errors"},
		"a path that is dead to one node": {func(member *v1alpha1.MPTCPNode) {
			member.Status.Paths[1].PeersAlive, member.Status.Paths[1].Unreachable = 1, []string{"node2"}
		}, "but not to node2 now: probes over it are not answered from there"},
		"a path that loses large packets to one node": {func(member *v1alpha1.MPTCPNode) {
			green := &member.Status.Paths[1]
			green.PeersAlive, green.Unreachable, green.LargePacketsLost = 1, []string{"node2"}, []string{"node2"}
		}, "but not to node2 now: only large packets are lost on the way. Look at the MTU of switches and routers"},
		"a path that is distant from one node": {func(member *v1alpha1.MPTCPNode) {
			member.Status.Paths[1].DistantTo = []string{"node2"}
		}, "but to node2 answers take much longer than by others, as it is longer or full: connections begin by others"},
		"a node that answers on no path": {func(member *v1alpha1.MPTCPNode) {
			for i := range member.Status.Paths {
				member.Status.Paths[i].PeersAlive, member.Status.Paths[i].Unreachable = 1, []string{"node2"}
			}
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			c, pod, namespaces := decided()
			test.change(&c.members.Items[0])
			text := c.explain(pod, namespaces).text()
			require.Contains(t, text, test.says)
			require.Equal(t, test.says != "", strings.Contains(text, ", but "), text)
			require.NotContains(t, text, "they share", "the path is used")
		})
	}
}

// A hint that was corrected is followed, and the agent's word about the one before is not
// shown beside that.
func TestWhatAnAgentSaidOfAnOlderPlanIsNotMixedWithTheDecision(t *testing.T) {
	c, pod, namespaces := decided()
	text := c.explain(pod, namespaces).text()
	require.Contains(t, text, `annotation braid.dev/preferred-paths "blue": followed`)
	require.Contains(t, text, "braid.dev/preferred-paths: Followed")

	pod.Annotations[v1alpha1.AnnotationPreferredPaths] = "green"
	c.plans.Items[0].Status.Endpoints[0].Hints[0].State = v1alpha1.HintRefused
	text = c.explain(pod, namespaces).text()
	require.Contains(t, text, `annotation braid.dev/preferred-paths "green": followed`)
	require.NotContains(t, text, "Refused")
	require.Contains(t, text, "older than the decision: the controller has not put this decision into the node's plan yet")

	c, pod, namespaces = decided()
	c.plans.Items[0].Generation++
	require.Contains(t, c.explain(pod, namespaces).text(), "older than the decision: the agent has not applied the node's last plan yet")
}
