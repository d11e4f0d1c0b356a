// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"braid.dev/braid/api/v1alpha1"
)

// railsOf are the guardrails of all policies of the input that select a pod.
func (in Input) railsOf(pod *corev1.Pod) []*v1alpha1.Guardrails {
	var rails []*v1alpha1.Guardrails
	for i := range in.Guardrails {
		p := &in.Guardrails[i]
		if in.selects(v1alpha1.PolicyReference{Kind: KindGuardrail, Name: p.Name}, pod) {
			rails = append(rails, &p.Spec.Guardrails)
		}
	}
	return rails
}

// TestNoEndpointIsBeyondAnyOfItsGuardrails is the promise to admins: whatever
// policies and annotations ask for, every guardrail that selects a pod holds.
func TestNoEndpointIsBeyondAnyOfItsGuardrails(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawInput(t)
		pods := map[types.UID]*corev1.Pod{}
		for i := range in.Pods {
			pods[in.Pods[i].UID] = &in.Pods[i]
		}
		for node, plan := range Compile(in).Plans {
			for i := range plan.Endpoints {
				e := &plan.Endpoints[i]
				for _, rails := range in.railsOf(pods[e.UID]) {
					if err := checkGuardrails(&plan, e, rails); err != nil {
						t.Fatalf("endpoint %s of node %s: %v", e.Name, node, err)
					}
				}
			}
		}
	})
}

func checkGuardrails(plan *v1alpha1.MPTCPNodePlanSpec, e *v1alpha1.PlanEndpoint, rails *v1alpha1.Guardrails) error {
	guard := v1alpha1.PlanGuard{}
	if e.Guard != nil {
		guard = *e.Guard
	}
	for _, w := range e.Paths {
		if len(rails.Paths) > 0 && !slices.Contains(rails.Paths, w.Path) {
			return fmt.Errorf("it uses path %s, and %v are allowed", w.Path, rails.Paths)
		}
	}
	for _, annotation := range e.Hinted {
		if rails.Hints != nil && !slices.Contains(annotationsOf(*rails.Hints), annotation) {
			return fmt.Errorf("it follows %s, and %v are allowed", annotation, *rails.Hints)
		}
	}
	switch {
	case rails.MaxPodRate != nil && (guard.MaxRate == 0 || guard.MaxRate > rails.MaxPodRate.Value()):
		return fmt.Errorf("its rate is %d, and %s is allowed", guard.MaxRate, rails.MaxPodRate)
	case rails.SpoofCheck != v1alpha1.SpoofCheckOff && !guard.SpoofCheck:
		return fmt.Errorf("the spoof check is off")
	case rails.Unparsable == v1alpha1.UnparsableDrop && !guard.DropUnparsable:
		return fmt.Errorf("what cannot be parsed passes")
	}
	return checkTenant(plan, e.Namespace, rails)
}

func checkTenant(plan *v1alpha1.MPTCPNodePlanSpec, namespace string, rails *v1alpha1.Guardrails) error {
	for _, want := range rails.TenantPaths {
		if !slices.ContainsFunc(plan.Paths, func(p v1alpha1.PlanPath) bool { return p.Name == want.Path }) {
			continue
		}
		got := tenantPath(plan, namespace, want.Path)
		if got == nil || want.MaxRate != nil && (got.MaxRate == 0 || got.MaxRate > want.MaxRate.Value()) || want.Weight != nil && got.Weight == 0 {
			return fmt.Errorf("path %s: the namespace's part is %+v, want %+v or less", want.Path, got, want)
		}
	}
	return nil
}

func tenantPath(plan *v1alpha1.MPTCPNodePlanSpec, namespace string, path v1alpha1.PathName) *v1alpha1.PlanTenantPath {
	for _, tenant := range plan.Tenants {
		for i := range tenant.Paths {
			if tenant.Namespace == namespace && tenant.Paths[i].Path == path {
				return &tenant.Paths[i]
			}
		}
	}
	return nil
}

func TestEveryPodWithGuardrailsIsAnEndpoint(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawInput(t)
		result := Compile(in)
		for i := range in.Pods {
			pod := &in.Pods[i]
			if !runs(*pod) || len(in.railsOf(pod)) == 0 {
				continue
			}
			if !slices.ContainsFunc(result.Plans[pod.Spec.NodeName].Endpoints, func(e v1alpha1.PlanEndpoint) bool { return e.UID == pod.UID }) {
				t.Fatalf("pod %s has guardrails and is no endpoint", pod.Name)
			}
		}
	})
}

func TestOfPathsThatShareABottleneckAllButOneAreBackups(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawInput(t)
		groups := map[v1alpha1.PathName]string{}
		for _, p := range in.Paths {
			groups[v1alpha1.PathName(p.Name)] = p.Spec.BottleneckGroup
		}
		for _, plan := range Compile(in).Plans {
			for _, e := range plan.Endpoints {
				first := slices.DeleteFunc(slices.Clone(e.Paths), func(p v1alpha1.PathWeight) bool { return slices.Contains(e.Backup, p.Path) })
				if len(first) == 0 && len(e.Paths) > 0 {
					t.Fatalf("%s has backups alone", e.Name)
				}
				for _, a := range first {
					for _, b := range first {
						if a.Path != b.Path && groups[a.Path] != "" && groups[a.Path] == groups[b.Path] {
							t.Fatalf("%s uses both %s and %s", e.Name, a.Path, b.Path)
						}
					}
				}
			}
		}
	})
}

func TestAPathOfABottleneckGroupIsABackupOfTheOneThatIsUsed(t *testing.T) {
	share := map[string]string{"blue": "uplink", "green": "uplink"}
	for _, tc := range []struct {
		name        string
		groups      map[string]string
		annotations map[string]string
		policy      v1alpha1.PathRules
		backup      []v1alpha1.PathName
		from        string
		subflows    int32
		hinted      []string
		refused     []string
	}{
		{name: "beside a path of no group", groups: share, backup: []v1alpha1.PathName{"green"}, from: "spec.bottleneckGroup of paths", subflows: 2},
		{name: "where all paths are of one", groups: map[string]string{"blue": "uplink", "green": "uplink", "red": "uplink"},
			backup: []v1alpha1.PathName{"green", "red"}, from: "spec.bottleneckGroup of paths", subflows: 1},
		{name: "beside a backup of the policy's", groups: share, policy: v1alpha1.PathRules{Backup: []v1alpha1.PathName{"red"}},
			backup: []v1alpha1.PathName{"green", "red"}, from: "spec.paths.backup and spec.bottleneckGroup of paths", subflows: 2},
		{name: "where the pod's owner prefers it", groups: share, annotations: map[string]string{v1alpha1.AnnotationPreferredPaths: "green"},
			backup: []v1alpha1.PathName{"green"}, from: "spec.bottleneckGroup of paths", subflows: 2,
			refused: []string{v1alpha1.ReasonHintPathNotAllowed}},
		{name: "where the pod's owner wants it for a backup, which it is", groups: share, annotations: map[string]string{v1alpha1.AnnotationBackupPaths: "green,red"},
			backup: []v1alpha1.PathName{"green", "red"}, from: v1alpha1.AnnotationBackupPaths + " and spec.bottleneckGroup of paths", subflows: 2,
			hinted: []string{v1alpha1.AnnotationBackupPaths}},
		{name: "where the pod's owner wants it alone for one", groups: share, annotations: map[string]string{v1alpha1.AnnotationBackupPaths: "green"},
			backup: []v1alpha1.PathName{"green"}, from: v1alpha1.AnnotationBackupPaths + " and spec.bottleneckGroup of paths", subflows: 2,
			hinted: []string{v1alpha1.AnnotationBackupPaths}},
		{name: "where the pod's owner wants all others for backups", groups: share, annotations: map[string]string{v1alpha1.AnnotationBackupPaths: "blue,red"},
			backup: []v1alpha1.PathName{"green"}, from: "spec.bottleneckGroup of paths", subflows: 2,
			refused: []string{v1alpha1.ReasonHintMalformed}},
		{name: "where there is no group", subflows: 3},
	} {
		t.Run(tc.name, func(t *testing.T) {
			pod := runningPod("pod", "10.0.0.1")
			pod.Annotations = tc.annotations
			in := oneNode(pod)
			in.Policies[0].Spec.Paths, in.Paths = tc.policy, nil
			for _, name := range []string{"blue", "green", "red"} {
				in.Paths = append(in.Paths, v1alpha1.MPTCPPath{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.MPTCPPathSpec{BottleneckGroup: tc.groups[name]}})
			}
			result := Compile(in)
			endpoint := result.Plans["node"].Endpoints[0]
			require.Len(t, endpoint.Paths, 3)
			require.Equal(t, tc.backup, endpoint.Backup)
			require.Equal(t, tc.subflows, endpoint.Subflows.Count)
			require.Equal(t, tc.hinted, append([]string(nil), endpoint.Hinted...))
			require.Equal(t, tc.from, result.Decisions[0].BackupFrom)
			var refused []string
			for _, hint := range endpoint.RefusedHints {
				refused = append(refused, hint.Reason)
			}
			require.Equal(t, tc.refused, refused)
		})
	}
}

// excessive asks for a forbidden path, and for more rate than is allowed.
func excessive() corev1.Pod {
	pod := runningPod("pod", "10.0.0.1")
	pod.Annotations = map[string]string{v1alpha1.AnnotationPreferredPaths: "blue,red", v1alpha1.AnnotationMaxRate: "2G"}
	return pod
}

func TestWhatBecomesOfAHintBeyondGuardrails(t *testing.T) {
	for _, tc := range []struct {
		name      string
		onExceed  v1alpha1.OnExceed
		preferred []v1alpha1.PathName
		hinted    []string
	}{
		{"it is refused by default", "", nil, nil},
		{"it is rejected", v1alpha1.OnExceedReject, nil, nil},
		{"it is clamped", v1alpha1.OnExceedClamp, []v1alpha1.PathName{"blue"}, []string{v1alpha1.AnnotationPreferredPaths}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			in := guarded(&v1alpha1.Guardrails{Paths: []v1alpha1.PathName{"blue", "green"}, MaxPodRate: new(resource.MustParse("1G")), OnExceed: tc.onExceed}, excessive())
			result := Compile(in)
			e := result.Plans["node"].Endpoints[0]
			if !slices.Equal(e.Preferred, tc.preferred) || !slices.Equal(e.Hinted, tc.hinted) || e.Guard.MaxRate != 1_000_000_000 {
				t.Errorf("preferred %v, hinted %v, guard %+v", e.Preferred, e.Hinted, e.Guard)
			}
			var reasons []string
			for _, refused := range e.RefusedHints {
				reasons = append(reasons, refused.Reason)
				if !strings.Contains(refused.Message, "blue, green") && !strings.Contains(refused.Message, "1G") {
					t.Errorf("the message does not say what is allowed: %s", refused.Message)
				}
			}
			if want := []string{v1alpha1.ReasonHintPathNotAllowed, v1alpha1.ReasonHintRateTooHigh}; !slices.Equal(reasons, want) {
				t.Errorf("refused for %v, want %v", reasons, want)
			}
			guards := result.Policies[0]
			if len(guards.Guards) != 1 || guards.HintedPods != 1 || len(guards.RefusedHints) != 2 || len(guards.Decides) != 0 {
				t.Errorf("the guardrails' policy says %+v", guards)
			}
		})
	}
}

func TestARuleForTheRateNeverTakesThePlaceOfOthers(t *testing.T) {
	pod := runningPod("pod", "10.0.0.1")
	pod.Annotations = map[string]string{v1alpha1.AnnotationMaxRate: "10M"}
	in := oneNode(pod)
	in.Policies[0].Spec.Rules = manyRules(v1alpha1.MaxRules, 1)
	result := Compile(in)
	e, chains := result.Plans["node"].Endpoints[0], result.Plans["node"].Chains
	if len(chains) != 1 || len(chains[0].Rules) != v1alpha1.MaxRules || chains[0].Rules[0].Policy == v1alpha1.GuardrailsOwner {
		t.Errorf("the chain has not the policy's own %d rules", v1alpha1.MaxRules)
	}
	if e.Guard == nil || e.Guard.MaxRate != 10_000_000 {
		t.Errorf("the limit at the uplinks is missing: %+v", e.Guard)
	}
	if text := result.Decisions[0].String(); !strings.Contains(text, "rate: at most 10M over all paths (at the uplinks alone: the pod's chain has no room for one more rule)") {
		t.Errorf("the decision does not say so: %s", text)
	}
	if got := result.Policies[0].RulesLeftOut; len(got) != 0 {
		t.Errorf("rules are left out: %v", got)
	}
}

func TestRatesOfOneNamespaceTakeNoRoomFromOthers(t *testing.T) {
	var pods []corev1.Pod
	for i := range 60 {
		pod := runningPod(fmt.Sprintf("pod-%02d", i), "10.0.0.1")
		pod.Annotations = map[string]string{v1alpha1.AnnotationMaxRate: fmt.Sprintf("%dM", i+1)}
		pods = append(pods, pod)
	}
	last := runningPod("last", "10.0.0.2")
	last.Namespace, last.Annotations = "zoo", map[string]string{v1alpha1.AnnotationMaxRate: "7M"}
	in := oneNode(append(pods, last)...)
	in.Policies = append(in.Policies, v1alpha1.MPTCPPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "zoo", Name: "all"}})
	result := Compile(in)
	limited := map[string]int{}
	for _, e := range result.Plans["node"].Endpoints {
		if e.Guard == nil || e.Guard.MaxRate == 0 {
			t.Errorf("%s has no limit at the uplinks", e.Name)
		}
		if e.Chain != "" {
			limited[e.Namespace]++
		}
	}
	if diff := cmp.Diff(map[string]int{"shop": maxRates, "zoo": 1}, limited); diff != "" {
		t.Errorf("pods with a rule for their rate:\n%s", diff)
	}
}

func TestAPodThatNoPolicyDecidesForStaysAsItIsWithinItsGuardrails(t *testing.T) {
	pod := runningPod("pod", "10.0.0.1")
	pod.Annotations = map[string]string{v1alpha1.AnnotationPreferredPaths: "blue"}
	in := guarded(&v1alpha1.Guardrails{MaxPodRate: new(resource.MustParse("1G"))}, pod)
	in.Policies = nil
	result := Compile(in)
	e := result.Plans["node"].Endpoints[0]
	if len(e.Paths) != 0 || e.Subflows.Manager != v1alpha1.SubflowManagerNone || e.UpgradeSockets || e.Guard.MaxRate != 1_000_000_000 {
		t.Errorf("got %+v", e)
	}
	if len(e.RefusedHints) != 1 || e.RefusedHints[0].Reason != v1alpha1.ReasonHintNotAllowed {
		t.Errorf("the hint that can have no effect: %+v", e.RefusedHints)
	}
}

func TestAPolicyIsToldWhichOfItsPathsGuardrailsForbid(t *testing.T) {
	in := guarded(&v1alpha1.Guardrails{Paths: []v1alpha1.PathName{"blue"}, TenantPaths: []v1alpha1.TenantPath{{Path: "green", Weight: new(int32(2))}, {Path: "gone", Weight: new(int32(1))}}},
		runningPod("one", "10.0.0.1"), runningPod("two", "10.0.0.2"))
	in.Policies[0].Spec.Paths.Allowed = []v1alpha1.PathName{"blue", "red"}
	in.Policies[0].Spec.Paths.Preferred = []v1alpha1.PathName{"red"}
	result := Compile(in)
	guards, own := result.Policies[0], result.Policies[1]
	want := []ForbiddenPath{{Path: "red", By: v1alpha1.PolicyReference{Kind: KindGuardrail, Name: "tenants"}}}
	if diff := cmp.Diff(want, own.ForbiddenPaths); diff != "" {
		t.Error(diff)
	}
	if !slices.Equal(guards.UnknownPaths, []v1alpha1.PathName{"gone"}) || !slices.Equal(guards.WeightsWithoutCapacity, []v1alpha1.PathName{"green"}) {
		t.Errorf("the guardrails' policy says unknown %v, without capacity %v", guards.UnknownPaths, guards.WeightsWithoutCapacity)
	}
	if e := result.Plans["node"].Endpoints[0]; len(e.Paths) != 1 || len(e.Preferred) != 0 {
		t.Errorf("it uses %v and prefers %v", e.Paths, e.Preferred)
	}
}
