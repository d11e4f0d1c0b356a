// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"braid.dev/braid/api/v1alpha1"
)

func TestCapacityShares(t *testing.T) {
	for _, tc := range []struct {
		name       string
		capacities []int64
		want       []int32
		smallest   int64
	}{
		{"no path", nil, []int32{}, 0},
		{"no capacity counts everywhere the same", []int64{0, 0}, []int32{1, 1}, 0},
		{"equal capacities are weight 1", []int64{10e9, 10e9, 10e9}, []int32{1, 1, 1}, 10e9},
		{"the proportion is kept in the smallest numbers", []int64{10e9, 25e9, 100e9}, []int32{2, 5, 20}, 10e9},
		{"a path without capacity counts like the smallest", []int64{0, 40e9, 10e9}, []int32{1, 4, 1}, 10e9},
		{"what does not fit into 1 to 100 is scaled", []int64{1_000_000_007, 2_000_000_014, 500_000_009}, []int32{50, 100, 25}, 500_000_009},
		{"a tiny capacity still has weight 1", []int64{1, 400e9}, []int32{1, 100}, 1},
		{"the largest quantities do not overflow", []int64{1<<63 - 1, 1<<62 - 1}, []int32{100, 50}, 1<<62 - 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, smallest := capacityShares(tc.capacities)
			if !slices.Equal(got, tc.want) || smallest != tc.smallest {
				t.Errorf("got %v and %d, want %v and %d", got, smallest, tc.want, tc.smallest)
			}
		})
	}
}

// oneNode is an input with one node, one namespace, one path and a policy for
// all pods of the namespace.
func oneNode(pods ...corev1.Pod) Input {
	return Input{
		Paths: []v1alpha1.MPTCPPath{{ObjectMeta: metav1.ObjectMeta{Name: "blue"}}},
		Policies: []v1alpha1.MPTCPPolicy{{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "all", CreationTimestamp: metav1.NewTime(time.Unix(1, 0))},
		}},
		Namespaces: []corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}},
		Nodes:      []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "node"}}},
		Pods:       pods,
	}
}

func runningPod(name string, addresses ...string) corev1.Pod {
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name)}}
	pod.Spec.NodeName = "node"
	pod.Status.Phase = corev1.PodRunning
	for _, a := range addresses {
		pod.Status.PodIPs = append(pod.Status.PodIPs, corev1.PodIP{IP: a})
	}
	return pod
}

func TestPodThatIsBeingDeletedTakesPartUntilItHasEnded(t *testing.T) {
	pod := runningPod("leaving", "10.0.0.1")
	pod.DeletionTimestamp = new(metav1.Now())
	if got := len(Compile(oneNode(pod)).Plans["node"].Endpoints); got != 1 {
		t.Errorf("%d endpoints, want 1", got)
	}
}

func TestAddressesAreListedOnceAndAtMostEight(t *testing.T) {
	addresses := []string{"10.0.0.1", "10.0.0.1", "fd00::1"}
	for i := range 8 {
		addresses = append(addresses, fmt.Sprintf("10.0.1.%d", i))
	}
	got := Compile(oneNode(runningPod("many", addresses...))).Plans["node"].Endpoints[0].Addresses
	want := append([]string{"10.0.0.1", "fd00::1"}, addresses[3:9]...)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestNodeWithTooManySelectedPodsKeepsTheFirstAndSaysSo(t *testing.T) {
	var pods []corev1.Pod
	for i := range MaxEndpoints + 2 {
		pods = append(pods, runningPod(fmt.Sprintf("pod-%04d", i), "10.0.0.1"))
	}
	result := Compile(oneNode(pods...))
	if got := len(result.Plans["node"].Endpoints); got != MaxEndpoints {
		t.Errorf("%d endpoints, want %d", got, MaxEndpoints)
	}
	if got := len(result.Policies[0].Decides); got != len(pods) {
		t.Errorf("the policy selects %d pods, want %d", got, len(pods))
	}
	last := result.Decisions[len(pods)-1]
	if !strings.Contains(last.LeftOut, "1024") || !strings.Contains(last.String(), last.LeftOut) {
		t.Errorf("the last pod's decision does not say that it is left out: %s", last)
	}
}

func TestClusterPolicyDoesNotReachAnUnknownNamespace(t *testing.T) {
	in := oneNode(runningPod("pod", "10.0.0.1"))
	in.Policies, in.Namespaces = nil, nil
	in.ClusterPolicies = []v1alpha1.ClusterMPTCPPolicy{{ObjectMeta: metav1.ObjectMeta{Name: "all"}}}
	if Compile(in).Active {
		t.Error("a policy selects a pod of a namespace whose labels are not known")
	}
}

func TestInvalidSelectorIsTheErrorOfThatPolicyAlone(t *testing.T) {
	in := oneNode(runningPod("pod", "10.0.0.1"))
	invalid := v1alpha1.MPTCPPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "invalid"}}
	invalid.Spec.Priority = 1000
	invalid.Spec.PodSelector.MatchLabels = map[string]string{"not a key!": "x"}
	in.Policies = append(in.Policies, invalid)
	result := Compile(in)
	if got := result.Decisions[0].Winner; got == nil || got.Name != "all" {
		t.Errorf("the winner is %v, want all", got)
	}
	if got := result.Policies[1]; got.Policy.Name != "invalid" || !strings.HasPrefix(got.Error, "spec.podSelector: ") {
		t.Errorf("the error is not told: %+v", got)
	}
}

func TestEveryPodHasADecisionThatCanBeRead(t *testing.T) {
	lost := runningPod("lost", "10.0.0.1")
	lost.Spec.NodeName = ""
	result := Compile(oneNode(lost, runningPod("selected", "10.0.0.2")))
	got := []string{result.Decisions[0].String(), result.Decisions[1].String()}
	want := []string{
		"Pod shop/lost\n  ignored: it is not placed on a node yet\n",
		`Pod shop/selected on node node
  policy: MPTCPPolicy shop/all (the only policy that selects the pod)
  path blue: weight 1 (neither weights nor capacities are given, so all paths count the same)
  subflows: 1 (one for each path that the pod uses), opened by: Kernel
`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// BenchmarkCompile compiles 1,000 nodes, 20,000 pods, 100 namespaces and 500
// policies, 50 of them for the whole cluster.
func BenchmarkCompile(b *testing.B) {
	in := largeInput(1000, 20000, 100, 450, 50)
	b.ReportAllocs()
	for b.Loop() {
		if !Compile(in).Active {
			b.Fatal("no pod is selected")
		}
	}
}

func largeInput(nodes, pods, namespaces, policies, clusterPolicies int) Input {
	var in Input
	for i := range 4 {
		in.Paths = append(in.Paths, v1alpha1.MPTCPPath{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("path-%d", i)}})
	}
	for i := range nodes {
		in.Nodes = append(in.Nodes, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%d", i)}})
	}
	for i := range namespaces {
		in.Namespaces = append(in.Namespaces, corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("ns-%d", i), Labels: map[string]string{"tier": fmt.Sprint(i % 10)}}})
	}
	for i := range pods {
		pod := runningPod(fmt.Sprintf("pod-%d", i), fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255))
		pod.Namespace, pod.Spec.NodeName = fmt.Sprintf("ns-%d", i%namespaces), fmt.Sprintf("node-%d", i%nodes)
		pod.Labels = map[string]string{"app": fmt.Sprint(i % 7), "pod-template-hash": "5d9c7b8f6d"}
		in.Pods = append(in.Pods, pod)
	}
	app := func(i int) metav1.LabelSelector {
		return metav1.LabelSelector{MatchLabels: map[string]string{"app": fmt.Sprint(i % 7)}}
	}
	for i := range policies {
		p := v1alpha1.MPTCPPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: fmt.Sprintf("ns-%d", i%namespaces), Name: fmt.Sprintf("p-%d", i)}}
		p.Spec.PodSelector = app(i / namespaces)
		p.Spec.Rules = manyRules(4, 1)
		in.Policies = append(in.Policies, p)
	}
	for i := range clusterPolicies {
		p := v1alpha1.ClusterMPTCPPolicy{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("c-%d", i)}}
		p.Spec.NamespaceSelector = metav1.LabelSelector{MatchLabels: map[string]string{"tier": fmt.Sprint(i % 10)}}
		p.Spec.PodSelector = app(i)
		p.Spec.Rules = manyRules(8, 1)
		in.ClusterPolicies = append(in.ClusterPolicies, p)
	}
	return in
}
