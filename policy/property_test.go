// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"braid.dev/braid/api/v1alpha1"
)

// Small alphabets, so that selectors, names and ages often meet.
var (
	namespaceNames = []string{"ns-a", "ns-b", "ns-c"}
	nodeNames      = []string{"node-a", "node-b", "node-c"}
	pathNames      = []string{"p0", "p1", "p2", "p3", "p4", "p5", "p6", "p7", "p8", "p9"}
	labelValues    = []string{"x", "y", "z"}
)

func drawLabels(t *rapid.T) map[string]string {
	return rapid.MapOfN(rapid.SampledFrom([]string{"k", "l"}), rapid.SampledFrom(labelValues), 0, 2).Draw(t, "labels")
}

func drawSelector(t *rapid.T) metav1.LabelSelector {
	selector := metav1.LabelSelector{MatchLabels: rapid.MapOfN(rapid.SampledFrom([]string{"k", "l"}), rapid.SampledFrom(labelValues), 0, 1).Draw(t, "matchLabels")}
	if rapid.Bool().Draw(t, "expression") {
		operators := []metav1.LabelSelectorOperator{metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn, metav1.LabelSelectorOpExists, "Invalid"}
		requirement := metav1.LabelSelectorRequirement{Key: "k", Operator: rapid.SampledFrom(operators).Draw(t, "operator")}
		if requirement.Operator != metav1.LabelSelectorOpExists {
			requirement.Values = []string{rapid.SampledFrom(labelValues).Draw(t, "value")}
		}
		selector.MatchExpressions = append(selector.MatchExpressions, requirement)
	}
	return selector
}

func drawRules(t *rapid.T) v1alpha1.PolicyRules {
	names := rapid.SliceOfNDistinct(rapid.SampledFrom(append(pathNames, "unknown")), 0, 4, rapid.ID).Draw(t, "allowed")
	rules := v1alpha1.PolicyRules{Priority: rapid.Int32Range(-1, 1).Draw(t, "priority")}
	for _, name := range names {
		rules.Paths.Allowed = append(rules.Paths.Allowed, v1alpha1.PathName(name))
		if w := rapid.Int32Range(0, 3).Draw(t, "weight"); w > 0 {
			rules.Paths.Weights = append(rules.Paths.Weights, v1alpha1.PathWeight{Path: v1alpha1.PathName(name), Weight: w})
		}
	}
	rules.Paths.Spread = rapid.SampledFrom([]v1alpha1.SpreadMode{"", v1alpha1.SpreadPerSubflow, v1alpha1.SpreadNone}).Draw(t, "spread")
	rules.Subflows.Manager = rapid.SampledFrom([]v1alpha1.SubflowManager{"", v1alpha1.SubflowManagerKernel, v1alpha1.SubflowManagerAgent, v1alpha1.SubflowManagerNone}).Draw(t, "manager")
	if rapid.Bool().Draw(t, "counted") {
		rules.Subflows.Count = new(rapid.Int32Range(1, 8).Draw(t, "count"))
	}
	rules.Paths.Preferred, rules.Paths.Backup = drawPaths(t, "preferred"), drawPaths(t, "backup")
	rules.Rules = drawChain(t)
	return rules
}

func drawPaths(t *rapid.T, label string) []v1alpha1.PathName {
	var names []v1alpha1.PathName
	for _, name := range rapid.SliceOfNDistinct(rapid.SampledFrom(append(pathNames, "unknown")), 0, 3, rapid.ID).Draw(t, label) {
		names = append(names, v1alpha1.PathName(name))
	}
	return names
}

// drawGuardrails draws guardrails, or none.
func drawGuardrails(t *rapid.T) v1alpha1.Guardrails {
	rails := v1alpha1.Guardrails{Paths: drawPaths(t, "guarded paths")}
	if rapid.Bool().Draw(t, "hints limited") {
		hints := []v1alpha1.Hint{v1alpha1.HintPreferredPaths, v1alpha1.HintBackupPaths, v1alpha1.HintMaxRate}
		rails.Hints = new(rapid.SliceOfNDistinct(rapid.SampledFrom(hints), 0, 3, rapid.ID).Draw(t, "hints"))
	}
	if rapid.Bool().Draw(t, "rate limited") {
		rails.MaxPodRate = new(resource.MustParse(rapid.SampledFrom([]string{"1M", "20M", "1G"}).Draw(t, "maxPodRate")))
	}
	for _, name := range drawPaths(t, "tenant paths") {
		rails.TenantPaths = append(rails.TenantPaths, v1alpha1.TenantPath{
			Path:    name,
			MaxRate: new(resource.MustParse(rapid.SampledFrom([]string{"10M", "1G"}).Draw(t, "maxRate"))),
			Weight:  new(rapid.Int32Range(1, 3).Draw(t, "weight")),
		})
	}
	rails.OnExceed = rapid.SampledFrom([]v1alpha1.OnExceed{"", v1alpha1.OnExceedReject, v1alpha1.OnExceedClamp}).Draw(t, "on exceed")
	rails.SpoofCheck = rapid.SampledFrom([]v1alpha1.SpoofCheck{"", v1alpha1.SpoofCheckEnforce, v1alpha1.SpoofCheckOff}).Draw(t, "spoof check")
	rails.Unparsable = rapid.SampledFrom([]v1alpha1.Unparsable{"", v1alpha1.UnparsablePass, v1alpha1.UnparsableDrop}).Draw(t, "unparsable")
	rails.NewPods = rapid.SampledFrom([]v1alpha1.NewPods{"", v1alpha1.NewPodsPass, v1alpha1.NewPodsGuard}).Draw(t, "new pods")
	return rails
}

// drawAnnotations draws hints of which some are wrong.
func drawAnnotations(t *rapid.T) map[string]string {
	annotations := map[string]string{}
	lists := rapid.SampledFrom([]string{"p0", "p0,p1", "p1 , p2,p3", "p9,unknown", "", "P0", "p1,,p2"})
	if rapid.Bool().Draw(t, "prefers") {
		annotations[v1alpha1.AnnotationPreferredPaths] = lists.Draw(t, "preferred-paths")
	}
	if rapid.Bool().Draw(t, "backs up") {
		annotations[v1alpha1.AnnotationBackupPaths] = lists.Draw(t, "backup-paths")
	}
	if rapid.Bool().Draw(t, "limits") {
		annotations[v1alpha1.AnnotationMaxRate] = rapid.SampledFrom([]string{"500k", "10M", "2G", "1", "fast"}).Draw(t, "max-rate")
	}
	return annotations
}

// drawChain draws rules of which some contradict each other, name unknown paths
// or programs, or can never match.
func drawChain(t *rapid.T) []v1alpha1.Rule {
	var rules []v1alpha1.Rule
	count := rapid.SampledFrom([]int{0, 0, 1, 2, 3, 40}).Draw(t, "rules")
	for i := range count {
		rule := v1alpha1.Rule{Name: fmt.Sprintf("r%d", i), Match: drawMatch(t, i)}
		for range rapid.IntRange(1, 2).Draw(t, "actions") {
			rule.Actions = append(rule.Actions, drawAction(t))
		}
		rules = append(rules, rule)
	}
	return rules
}

func drawMatch(t *rapid.T, i int) *v1alpha1.Match {
	if rapid.IntRange(0, 2).Draw(t, "distinct") > 0 {
		return &v1alpha1.Match{Selectors: v1alpha1.Selectors{Token: fmt.Sprintf("0x%08x", i)}}
	}
	yes := true
	return rapid.SampledFrom([]*v1alpha1.Match{
		nil,
		{Selectors: v1alpha1.Selectors{Direction: v1alpha1.DirectionToEndpoint}},
		{Selectors: v1alpha1.Selectors{Paths: []v1alpha1.PathName{"p0"}}},
		{Selectors: v1alpha1.Selectors{Backup: &yes}, All: []v1alpha1.NestedMatch{{Selectors: v1alpha1.Selectors{Backup: new(bool)}}}},
		{Any: []v1alpha1.NestedMatch{{Not: &v1alpha1.Selectors{PacketTypes: []v1alpha1.PacketType{v1alpha1.PacketMPJoin}}}}},
	}).Draw(t, "match")
}

func drawAction(t *rapid.T) v1alpha1.Action {
	limit := &v1alpha1.RateLimit{Rate: resource.MustParse("20M")}
	return rapid.SampledFrom([]v1alpha1.Action{
		{Type: v1alpha1.ActionRecord}, {Type: v1alpha1.ActionRecord}, {Type: v1alpha1.ActionReportSubflow},
		{Type: v1alpha1.ActionRateLimit, RateLimit: limit},
		{Type: v1alpha1.ActionSuppressAddAddr}, {Type: v1alpha1.ActionReleaseAddAddr}, {Type: v1alpha1.ActionReset},
		{Type: v1alpha1.ActionRunProgram, RunProgram: &v1alpha1.RunProgram{Program: "known"}},
		{Type: v1alpha1.ActionRunProgram, RunProgram: &v1alpha1.RunProgram{Program: "unknown"}},
	}).Draw(t, "action")
}

// drawPrograms draws a program whose object exists, does not, or is not known of.
func drawPrograms(t *rapid.T) []v1alpha1.Program {
	return rapid.SampledFrom([][]v1alpha1.Program{
		nil,
		{{Name: "known", File: "known.o"}},
		{{Name: "known", ConfigMap: &v1alpha1.ProgramConfigMap{Name: "programs", Key: "known.o"}}},
		{{Name: "known", ConfigMap: &v1alpha1.ProgramConfigMap{Name: "programs", Key: "gone.o"}}},
	}).Draw(t, "programs")
}

func drawMeta(t *rapid.T, namespace, name string) metav1.ObjectMeta {
	day := rapid.IntRange(0, 2).Draw(t, "day")
	meta := metav1.ObjectMeta{Namespace: namespace, Name: name, Generation: 1}
	if day > 0 {
		meta.CreationTimestamp = metav1.NewTime(time.Date(2026, 1, day, 0, 0, 0, 0, time.UTC))
	}
	return meta
}

func drawPod(t *rapid.T, i int) corev1.Pod {
	namespace, name := rapid.SampledFrom(namespaceNames).Draw(t, "namespace"), fmt.Sprintf("pod-%d", i)
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(name), Labels: drawLabels(t), Annotations: drawAnnotations(t)}}
	pod.Spec.NodeName = rapid.SampledFrom(append(nodeNames, "", "gone")).Draw(t, "node")
	pod.Spec.HostNetwork = rapid.IntRange(0, 9).Draw(t, "hostNetwork") == 0
	pod.Status.Phase = rapid.SampledFrom([]corev1.PodPhase{corev1.PodPending, corev1.PodRunning, corev1.PodRunning, corev1.PodFailed}).Draw(t, "phase")
	if rapid.IntRange(0, 9).Draw(t, "address") > 0 {
		pod.Status.PodIPs = []corev1.PodIP{{IP: fmt.Sprintf("10.0.0.%d", i)}}
	}
	return pod
}

func drawPath(t *rapid.T, name string) v1alpha1.MPTCPPath {
	path := v1alpha1.MPTCPPath{ObjectMeta: metav1.ObjectMeta{Name: name, Generation: 1}}
	path.Spec.Interfaces = []v1alpha1.InterfacePattern{"eth*"}
	if rapid.Bool().Draw(t, "selective") {
		path.Spec.NodeSelector = new(drawSelector(t))
	}
	if rapid.Bool().Draw(t, "capacity given") {
		path.Spec.Capacity = new(resource.MustParse(rapid.SampledFrom([]string{"10G", "25G", "100G", "1001M"}).Draw(t, "capacity")))
	}
	path.Spec.BottleneckGroup = rapid.SampledFrom([]string{"", "", "north", "south"}).Draw(t, "bottleneck group")
	return path
}

func drawInput(t *rapid.T) Input {
	var in Input
	for _, name := range namespaceNames {
		in.Namespaces = append(in.Namespaces, corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: drawLabels(t)}})
	}
	for _, name := range nodeNames {
		in.Nodes = append(in.Nodes, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: drawLabels(t)}})
	}
	for _, name := range pathNames[:rapid.IntRange(0, len(pathNames)).Draw(t, "paths")] {
		in.Paths = append(in.Paths, drawPath(t, name))
	}
	for i := range rapid.IntRange(0, 8).Draw(t, "pods") {
		in.Pods = append(in.Pods, drawPod(t, i))
	}
	for i := range rapid.IntRange(0, 4).Draw(t, "policies") {
		in.Policies = append(in.Policies, drawPolicy(t, fmt.Sprintf("policy-%d", i)))
	}
	for i := range rapid.IntRange(0, 4).Draw(t, "clusterPolicies") {
		in.ClusterPolicies = append(in.ClusterPolicies, v1alpha1.ClusterMPTCPPolicy{
			ObjectMeta: drawMeta(t, "", fmt.Sprintf("policy-%d", i)),
			Spec:       drawClusterSpec(t),
		})
	}
	for i := range rapid.IntRange(0, 3).Draw(t, "guardrails") {
		in.Guardrails = append(in.Guardrails, v1alpha1.MPTCPGuardrail{
			ObjectMeta: drawMeta(t, "", fmt.Sprintf("guardrail-%d", i)), Spec: drawGuardrailSpec(t),
		})
	}
	if rapid.Bool().Draw(t, "objects known") {
		in.ProgramObjects = map[ProgramObject]string{{ConfigMap: "programs", Key: "known.o"}: "1"}
	}
	return in
}

func drawClusterSpec(t *rapid.T) v1alpha1.ClusterMPTCPPolicySpec {
	spec := v1alpha1.ClusterMPTCPPolicySpec{
		NamespaceSelector: drawSelector(t), PodSelector: drawSelector(t), PolicyRules: drawRules(t), Programs: drawPrograms(t),
	}
	return spec
}

func drawGuardrailSpec(t *rapid.T) v1alpha1.MPTCPGuardrailSpec {
	return v1alpha1.MPTCPGuardrailSpec{
		NamespaceSelector: drawSelector(t), PodSelector: drawSelector(t), Guardrails: drawGuardrails(t),
		Priority: rapid.Int32Range(-1, 1).Draw(t, "guardrail priority"),
	}
}

func drawPolicy(t *rapid.T, name string) v1alpha1.MPTCPPolicy {
	return v1alpha1.MPTCPPolicy{
		ObjectMeta: drawMeta(t, rapid.SampledFrom(namespaceNames).Draw(t, "namespace"), name),
		Spec:       v1alpha1.MPTCPPolicySpec{PodSelector: drawSelector(t), PolicyRules: drawRules(t)},
	}
}

func permute(t *rapid.T, in Input) Input {
	return Input{
		Paths:           rapid.Permutation(in.Paths).Draw(t, "paths permuted"),
		Policies:        rapid.Permutation(in.Policies).Draw(t, "policies permuted"),
		ClusterPolicies: rapid.Permutation(in.ClusterPolicies).Draw(t, "cluster policies permuted"),
		Guardrails:      rapid.Permutation(in.Guardrails).Draw(t, "guardrails permuted"),
		Namespaces:      rapid.Permutation(in.Namespaces).Draw(t, "namespaces permuted"),
		Pods:            rapid.Permutation(in.Pods).Draw(t, "pods permuted"),
		Nodes:           rapid.Permutation(in.Nodes).Draw(t, "nodes permuted"),
		ProgramObjects:  in.ProgramObjects,
	}
}

func (in Input) deepCopy() Input {
	return Input{
		Paths:           copyAll(in.Paths, (*v1alpha1.MPTCPPath).DeepCopy),
		Policies:        copyAll(in.Policies, (*v1alpha1.MPTCPPolicy).DeepCopy),
		ClusterPolicies: copyAll(in.ClusterPolicies, (*v1alpha1.ClusterMPTCPPolicy).DeepCopy),
		Guardrails:      copyAll(in.Guardrails, (*v1alpha1.MPTCPGuardrail).DeepCopy),
		Namespaces:      copyAll(in.Namespaces, (*corev1.Namespace).DeepCopy),
		Pods:            copyAll(in.Pods, (*corev1.Pod).DeepCopy),
		Nodes:           copyAll(in.Nodes, (*corev1.Node).DeepCopy),
		Endpoints:       copyAll(in.Endpoints, (*v1alpha1.MPTCPEndpoint).DeepCopy),
		ProgramObjects:  maps.Clone(in.ProgramObjects),
	}
}

func copyAll[T any](items []T, deepCopy func(*T) *T) []T {
	var copies []T
	for i := range items {
		copies = append(copies, *deepCopy(&items[i]))
	}
	return copies
}

func TestOrderOfInputDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawInput(t)
		if diff := cmp.Diff(Compile(in), Compile(permute(t, in))); diff != "" {
			t.Fatalf("the result depends on the order of the input:\n%s", diff)
		}
	})
}

func TestCompileChangesNoInputAndRepeatsItself(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawInput(t)
		before := in.deepCopy()
		first := Compile(in)
		if diff := cmp.Diff(before, in.deepCopy()); diff != "" {
			t.Fatalf("Compile changed its input:\n%s", diff)
		}
		if diff := cmp.Diff(first, Compile(in)); diff != "" {
			t.Fatalf("a second compile differs:\n%s", diff)
		}
	})
}

// selects is the meaning of a policy's selectors, told a second time.
func (in Input) selects(ref v1alpha1.PolicyReference, pod *corev1.Pod) bool {
	match := matchesSelector
	for _, p := range in.Policies {
		if ref.Kind == KindPolicy && p.Namespace == ref.Namespace && p.Name == ref.Name {
			return pod.Namespace == p.Namespace && match(p.Spec.PodSelector, pod.Labels)
		}
	}
	for _, p := range in.ClusterPolicies {
		if ref.Kind == KindClusterPolicy && p.Name == ref.Name {
			return match(p.Spec.NamespaceSelector, in.namespaceLabels(pod.Namespace)) && match(p.Spec.PodSelector, pod.Labels)
		}
	}
	for _, p := range in.Guardrails {
		if ref.Kind == KindGuardrail && p.Name == ref.Name {
			return match(p.Spec.NamespaceSelector, in.namespaceLabels(pod.Namespace)) && match(p.Spec.PodSelector, pod.Labels)
		}
	}
	return false
}

func (in Input) namespaceLabels(name string) map[string]string {
	for _, ns := range in.Namespaces {
		if ns.Name == name {
			return ns.Labels
		}
	}
	return nil
}

func matchesSelector(selector metav1.LabelSelector, labels map[string]string) bool {
	for k, v := range selector.MatchLabels {
		if got, ok := labels[k]; !ok || got != v {
			return false
		}
	}
	for _, r := range selector.MatchExpressions {
		got, ok := labels[r.Key]
		switch r.Operator {
		case metav1.LabelSelectorOpIn:
			if !ok || !slices.Contains(r.Values, got) {
				return false
			}
		case metav1.LabelSelectorOpNotIn:
			if ok && slices.Contains(r.Values, got) {
				return false
			}
		case metav1.LabelSelectorOpExists:
			if !ok {
				return false
			}
		default:
			return false
		}
	}
	return true
}

func TestPolicyNeverTouchesPodsOutsideItsSelectors(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawInput(t)
		pods := map[types.UID]*corev1.Pod{}
		for i := range in.Pods {
			pods[in.Pods[i].UID] = &in.Pods[i]
		}
		result := Compile(in)
		for _, plan := range result.Plans {
			for _, e := range plan.Endpoints {
				if !in.selects(e.Policy, pods[e.UID]) {
					t.Fatalf("%v decides for %s, which it does not select", e.Policy, e.Name)
				}
			}
		}
		for _, p := range result.Policies {
			for _, pod := range p.Decides {
				if !in.selects(p.Policy, pods[pod.UID]) {
					t.Fatalf("%v counts %s as selected", p.Policy, pod)
				}
			}
		}
	})
}

func TestEverySelectedPodIsOneEndpointOfItsNode(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawInput(t)
		result := Compile(in)
		places := map[types.UID][]string{}
		for node, plan := range result.Plans {
			for _, e := range plan.Endpoints {
				places[e.UID] = append(places[e.UID], node)
			}
		}
		for _, pod := range in.Pods {
			want := []string(nil)
			if runs(pod) && in.anySelects(&pod) {
				want = []string{pod.Spec.NodeName}
			}
			if !slices.Equal(want, places[pod.UID]) {
				t.Fatalf("pod %s is on nodes %v, want %v", pod.Name, places[pod.UID], want)
			}
		}
	})
}

func runs(pod corev1.Pod) bool {
	running := pod.Status.Phase == corev1.PodRunning || pod.Status.Phase == corev1.PodPending
	return running && !pod.Spec.HostNetwork && len(pod.Status.PodIPs) > 0 && slices.Contains(nodeNames, pod.Spec.NodeName)
}

func (in Input) anySelects(pod *corev1.Pod) bool {
	for _, p := range in.Policies {
		if in.selects(v1alpha1.PolicyReference{Kind: KindPolicy, Namespace: p.Namespace, Name: p.Name}, pod) {
			return true
		}
	}
	for _, p := range in.ClusterPolicies {
		if in.selects(v1alpha1.PolicyReference{Kind: KindClusterPolicy, Name: p.Name}, pod) {
			return true
		}
	}
	return len(in.railsOf(pod)) > 0
}

func TestPolicyOfLowerPriorityChangesNoEndpoint(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawInput(t)
		before := Compile(in)
		lower := drawPolicy(t, "lower")
		lower.Spec.Priority = -2
		in.Policies = append(in.Policies, lower)
		after := Compile(in)
		for node, plan := range before.Plans {
			for _, e := range plan.Endpoints {
				if e.Policy.Kind == KindGuardrail {
					continue // No policy decided before, so the new one may.
				}
				if !slices.ContainsFunc(after.Plans[node].Endpoints, func(other v1alpha1.PlanEndpoint) bool { return cmp.Equal(e, other) }) {
					t.Fatalf("endpoint %s of node %s changed", e.Name, node)
				}
			}
		}
	})
}

func TestPlansKeepTheLimitsOfTheirSchema(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		result := Compile(drawInput(t))
		for node, plan := range result.Plans {
			if !result.Active && (len(plan.Paths) > 0 || len(plan.Endpoints) > 0) {
				t.Fatalf("no pod is selected, and the plan of %s is not empty", node)
			}
			if len(plan.Paths) > v1alpha1.MaxPaths {
				t.Fatalf("node %s has %d paths", node, len(plan.Paths))
			}
			for _, e := range plan.Endpoints {
				checkEndpoint(t, plan, e)
			}
		}
	})
}

func checkEndpoint(t *rapid.T, plan v1alpha1.MPTCPNodePlanSpec, e v1alpha1.PlanEndpoint) {
	if !slices.IsSortedFunc(e.Paths, func(a, b v1alpha1.PathWeight) int { return cmpNames(a.Path, b.Path) }) {
		t.Fatalf("paths of %s are not sorted", e.Name)
	}
	for _, w := range e.Paths {
		if w.Weight < 1 || w.Weight > 100 {
			t.Fatalf("weight %d of path %s", w.Weight, w.Path)
		}
		if !slices.ContainsFunc(plan.Paths, func(p v1alpha1.PlanPath) bool { return p.Name == w.Path }) {
			t.Fatalf("endpoint %s uses path %s, which its node does not have", e.Name, w.Path)
		}
	}
	if e.Subflows.Count < 1 || e.Subflows.Count > 8 {
		t.Fatalf("%d subflows", e.Subflows.Count)
	}
	if (e.Subflows.FirstAnnouncedPort != 0) != (e.Subflows.Manager == v1alpha1.SubflowManagerKernel) {
		t.Fatalf("manager %s with announced port %d", e.Subflows.Manager, e.Subflows.FirstAnnouncedPort)
	}
}

func cmpNames(a, b v1alpha1.PathName) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}
