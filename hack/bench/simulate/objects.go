// SPDX-License-Identifier: Apache-2.0

// Package simulate makes clusters of many nodes that are objects alone, and plays
// their agents: to see what the controller does with a thousand nodes, nobody
// needs to have them.
package simulate

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/policy"
)

// Size is how many objects of each kind a cluster has.
type Size struct{ Nodes, Pods, Namespaces, Policies int }

// Paths of the cluster; the last one is on every other node.
var Paths = []string{"blue", "green", "red"}

// Labels by which policies select.
const (
	labelApp   = "app"
	labelGroup = "group"
	labelRack  = "rack"
	// LabelFirst is on one pod of each node: Everywhere selects it.
	LabelFirst = "first"
	// LabelOnly is on one pod of the cluster: Only selects it.
	LabelOnly = "only"
)

const (
	apps   = 4
	groups = 20
	// hintedOf is of how many pods one has an annotation.
	hintedOf = 20
)

// Objects are those of a cluster, in the order in which they can be created.
// Pods have their addresses and run.
type Objects struct {
	Paths           []v1alpha1.MPTCPPath
	Namespaces      []corev1.Namespace
	Nodes           []corev1.Node
	Policies        []v1alpha1.MPTCPPolicy
	ClusterPolicies []v1alpha1.ClusterMPTCPPolicy
	Guardrails      []v1alpha1.MPTCPGuardrail
	Pods            []corev1.Pod
	// Only is the policy that selects a single pod, and Everywhere the one that
	// selects a pod on each node; both decide for what they select.
	Only       *v1alpha1.MPTCPPolicy
	Everywhere *v1alpha1.ClusterMPTCPPolicy
}

// Objects makes the objects: the same ones for the same size.
func (s Size) Objects() *Objects {
	o := &Objects{}
	for i := range Paths {
		o.Paths = append(o.Paths, path(i))
	}
	for i := range s.Namespaces {
		o.Namespaces = append(o.Namespaces, corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
			Name: namespace(i), Labels: map[string]string{corev1.LabelMetadataName: namespace(i), labelGroup: fmt.Sprint("group-", i%groups)},
		}})
	}
	for i := range s.Nodes {
		o.Nodes = append(o.Nodes, corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name: Node(i), Labels: map[string]string{labelRack: fmt.Sprint("rack-", i%2)},
		}})
	}
	for i := range s.Pods {
		o.Pods = append(o.Pods, s.pod(i))
	}
	s.addPolicies(o)
	return o
}

// Input is what policy compiles of the objects.
func (o *Objects) Input() policy.Input {
	return policy.Input{
		Paths: o.Paths, Policies: o.Policies, ClusterPolicies: o.ClusterPolicies, Guardrails: o.Guardrails,
		Namespaces: o.Namespaces, Nodes: o.Nodes, Pods: o.Pods,
	}
}

// Node is the name of a node by its number.
func Node(i int) string { return fmt.Sprintf("node-%04d", i) }

func namespace(i int) string { return fmt.Sprintf("team-%03d", i) }

func path(i int) v1alpha1.MPTCPPath {
	p := v1alpha1.MPTCPPath{ObjectMeta: metav1.ObjectMeta{Name: Paths[i]}}
	p.Spec.Interfaces = []v1alpha1.InterfacePattern{v1alpha1.InterfacePattern(fmt.Sprint("eth", i))}
	p.Spec.Capacity = new(resource.MustParse("10G"))
	if i == len(Paths)-1 {
		p.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{labelRack: "rack-0"}}
	}
	return p
}

// pod makes pod i. The pods of a node are of different namespaces, and those of a
// namespace on different nodes.
func (s Size) pod(i int) corev1.Pod {
	round := i / s.Nodes
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace((i + round) % s.Namespaces), Name: fmt.Sprintf("pod-%05d", i),
		Labels: map[string]string{labelApp: fmt.Sprint("app-", round%apps)},
	}}
	pod.Spec.NodeName = Node(i % s.Nodes)
	pod.Spec.Containers = []corev1.Container{{Name: "main", Image: "example.invalid/none"}}
	if round == 0 {
		pod.Labels[LabelFirst] = "yes"
	}
	if i == s.Pods-1 {
		pod.Labels[LabelOnly] = "yes"
	}
	if i%hintedOf == 1 {
		pod.Annotations = map[string]string{v1alpha1.AnnotationPreferredPaths: Paths[i/hintedOf%len(Paths)]}
	}
	address := fmt.Sprintf("10.%d.%d.%d", 64+i>>16, i>>8&0xff, i&0xff)
	pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: address, PodIPs: []corev1.PodIP{{IP: address}}}
	return pod
}

// addPolicies makes four of five policies MPTCPPolicies, and the others
// ClusterMPTCPPolicies for the namespaces of a group. The last of the one kind is
// Only, the first of the other Everywhere.
func (s Size) addPolicies(o *Objects) {
	cluster := max(1, s.Policies/5)
	for i := range s.Policies - cluster {
		o.Policies = append(o.Policies, s.policy(i))
	}
	for i := range cluster {
		if i%4 == 1 {
			o.Guardrails = append(o.Guardrails, guardrail(i))
			continue
		}
		o.ClusterPolicies = append(o.ClusterPolicies, clusterPolicy(i))
	}
	last := o.Pods[len(o.Pods)-1]
	o.Only, o.Everywhere = &o.Policies[len(o.Policies)-1], &o.ClusterPolicies[0]
	o.Only.Namespace, o.Only.Name, o.Only.Spec.Priority = last.Namespace, "only", 500
	o.Only.Spec.PodSelector.MatchLabels = map[string]string{LabelOnly: "yes"}
}

// policy makes policy i: the first of a namespace for all of its pods, the next
// ones for an app each.
func (s Size) policy(i int) v1alpha1.MPTCPPolicy {
	p := v1alpha1.MPTCPPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace(i % s.Namespaces), Name: fmt.Sprintf("policy-%03d", i)}}
	if round := i / s.Namespaces; round > 0 {
		p.Spec.Priority = int32(min(round, 100))
		p.Spec.PodSelector.MatchLabels = map[string]string{labelApp: fmt.Sprint("app-", round%apps)}
	}
	if i%4 == 3 {
		p.Spec.Paths.Preferred = []v1alpha1.PathName{"green"}
	}
	if i%10 == 5 {
		p.Spec.Rules = []v1alpha1.Rule{rateRule("slow", "50M")}
	}
	return p
}

func guardrail(i int) v1alpha1.MPTCPGuardrail {
	p := v1alpha1.MPTCPGuardrail{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("guardrail-%03d", i)}}
	p.Spec.NamespaceSelector.MatchLabels = map[string]string{labelGroup: fmt.Sprint("group-", i%groups)}
	p.Spec.Guardrails = v1alpha1.Guardrails{Paths: []v1alpha1.PathName{"blue", "green"}, MaxPodRate: new(resource.MustParse("1G"))}
	return p
}

func clusterPolicy(i int) v1alpha1.ClusterMPTCPPolicy {
	p := v1alpha1.ClusterMPTCPPolicy{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("cluster-%03d", i)}}
	p.Spec.Priority = -10
	p.Spec.NamespaceSelector.MatchLabels = map[string]string{labelGroup: fmt.Sprint("group-", i%groups)}
	switch {
	case i == 0:
		p.Name, p.Spec.Priority = "everywhere", 400
		p.Spec.NamespaceSelector = metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
			Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpExists,
		}}}
		p.Spec.PodSelector.MatchLabels = map[string]string{LabelFirst: "yes"}
	case i%4 == 2:
		p.Spec.Rules = []v1alpha1.Rule{rateRule("ceiling", "200M")}
	default:
		p.Spec.PodSelector.MatchLabels = map[string]string{labelApp: fmt.Sprint("app-", i%apps)}
	}
	return p
}

// rateRule limits what each connection of a pod sends.
func rateRule(name, rate string) v1alpha1.Rule {
	return v1alpha1.Rule{
		Name:  name,
		Match: &v1alpha1.Match{Selectors: v1alpha1.Selectors{Direction: v1alpha1.DirectionFromEndpoint}},
		Actions: []v1alpha1.Action{{Type: v1alpha1.ActionRateLimit, RateLimit: &v1alpha1.RateLimit{
			Rate: resource.MustParse(rate), Per: v1alpha1.RateLimitPerConnection, Mechanism: v1alpha1.RateLimitAuto,
		}}},
	}
}
