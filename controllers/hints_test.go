// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/policy"
)

// hinted is a cluster with one pod on a node with three paths, a policy that
// spreads its subflows, and guardrails for its namespace.
type hinted struct {
	*cluster
	pod        *corev1.Pod
	policy     *v1alpha1.MPTCPPolicy
	guardrails *v1alpha1.MPTCPGuardrail
}

func newHinted(t *testing.T) *hinted {
	t.Helper()
	k := newCluster(t)
	k.node("node-a", nil)
	for _, name := range []string{"blue", "green", "red"} {
		k.path(name)
	}
	h := &hinted{cluster: k, pod: k.pod("pod", "node-a", "10.0.0.2", nil), policy: k.policy("spread", nil)}
	h.guardrails = &v1alpha1.MPTCPGuardrail{ObjectMeta: metav1.ObjectMeta{Name: "tenants"}}
	h.guardrails.Spec.NamespaceSelector.MatchLabels = map[string]string{"kubernetes.io/metadata.name": k.namespace}
	h.guardrails.Spec.Guardrails = v1alpha1.Guardrails{
		Paths: []v1alpha1.PathName{"blue", "green"}, MaxPodRate: new(resource.MustParse("100M")),
		TenantPaths: []v1alpha1.TenantPath{{Path: "blue", MaxRate: new(resource.MustParse("1G"))}},
	}
	k.create(h.guardrails)
	return h
}

func (h *hinted) annotate(key, value string) {
	h.t.Helper()
	change(h.cluster, h.pod, func(p *corev1.Pod) {
		if p.Annotations == nil {
			p.Annotations = map[string]string{}
		}
		p.Annotations[key] = value
		if value == "" {
			delete(p.Annotations, key)
		}
	})
}

var errNotYet = errors.New("not yet")

// waitForEndpoint waits until the pod's endpoint in the plan is as wanted.
func (h *hinted) waitForEndpoint(want func(*v1alpha1.PlanEndpoint) bool) *v1alpha1.PlanEndpoint {
	h.t.Helper()
	var found *v1alpha1.PlanEndpoint
	h.eventually(func() error {
		plan, err := h.plan("node-a")
		if err != nil || plan == nil || len(plan.Spec.Endpoints) != 1 || !want(&plan.Spec.Endpoints[0]) {
			return fmt.Errorf("the plan is %+v: %w", plan, errors.Join(err, errNotYet))
		}
		found = &plan.Spec.Endpoints[0]
		return nil
	})
	return found
}

func prefers(names ...v1alpha1.PathName) func(*v1alpha1.PlanEndpoint) bool {
	return func(e *v1alpha1.PlanEndpoint) bool { return slices.Equal(e.Preferred, names) }
}

func TestAnAnnotationChangesThePlanAndItsRemovalChangesItBack(t *testing.T) {
	h := newHinted(t)
	h.startController(apiServer)
	before := h.waitForEndpoint(prefers())
	start := time.Now()
	h.annotate(v1alpha1.AnnotationPreferredPaths, "green")
	h.waitForEndpoint(prefers("green"))
	t.Logf("the plan followed after %s", time.Since(start).Round(time.Millisecond))
	h.annotate(v1alpha1.AnnotationPreferredPaths, "blue")
	h.waitForEndpoint(prefers("blue"))
	h.annotate("example.com/other", "blue")
	h.annotate(v1alpha1.AnnotationPreferredPaths, "")
	after := h.waitForEndpoint(prefers())
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("the endpoint is not as it was:\n%s", diff)
	}
	if events := h.hintEvents(); len(events) > 0 {
		t.Errorf("Events about hints that were followed: %v", events)
	}
}

func TestAMisspeltAnnotationIsTold(t *testing.T) {
	h := newHinted(t)
	h.startController(apiServer)
	h.annotate("braid.dev/preferred-path", "blue")
	h.waitForEvent(h.pod, "Warning", v1alpha1.ReasonHintUnknown)
	c := h.waitForCondition(h.policy, v1alpha1.ConditionHintsAccepted, v1alpha1.ReasonHintsRefused)
	if !strings.Contains(c.Message, "braid.dev/preferred-path: Braid has no such annotation; those that count are braid.dev/preferred-paths") {
		t.Errorf("the condition says %s", c.Message)
	}
	h.annotate("braid.dev/preferred-path", "")
	h.waitUntilConditionIsGone(h.policy, v1alpha1.ConditionHintsAccepted)
}

func TestOtherAnnotationsCauseNoRun(t *testing.T) {
	pod := func(annotations map[string]string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "pod", Annotations: annotations}, Status: corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: "10.0.0.1"}}}}
	}
	full := pod(map[string]string{"example.com/other": "x", v1alpha1.AnnotationMaxRate: "1M"})
	trimmed, err := trimPod(full)
	if err != nil {
		t.Fatal(err)
	}
	if got := trimmed.(*corev1.Pod).Annotations; len(got) != 1 || got[v1alpha1.AnnotationMaxRate] != "1M" {
		t.Errorf("the cache keeps %v", got)
	}
	for _, tc := range []struct {
		name          string
		before, after map[string]string
		want          bool
	}{
		{"another annotation", nil, map[string]string{"example.com/other": "x"}, false},
		{"a hint that comes", nil, map[string]string{v1alpha1.AnnotationBackupPaths: "blue"}, true},
		{"a hint that changes", map[string]string{v1alpha1.AnnotationMaxRate: "1M"}, map[string]string{v1alpha1.AnnotationMaxRate: "2M"}, true},
		{"a hint that goes", map[string]string{v1alpha1.AnnotationPreferredPaths: "blue"}, nil, true},
		{"what the pod is", nil, map[string]string{v1alpha1.AnnotationVirtualMachine: "true"}, true},
		{"an empty hint that comes", nil, map[string]string{v1alpha1.AnnotationPreferredPaths: ""}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := (podChanged{compiled: newShared[policy.Result]()}).Update(event.UpdateEvent{ObjectOld: pod(tc.before), ObjectNew: pod(tc.after)}); got != tc.want {
				t.Errorf("it causes a run: %v, want %v", got, tc.want)
			}
		})
	}
}

// hintEvents lists the Events about the pod's hints, oldest first, as reason and
// note.
func (h *hinted) hintEvents() []string {
	h.t.Helper()
	events, err := h.events(h.pod)
	if err != nil {
		h.t.Fatal(err)
	}
	slices.SortFunc(events, func(a, b eventsv1.Event) int { return a.EventTime.Compare(b.EventTime.Time) })
	var told []string
	for _, e := range events {
		if e.Action == hintAction {
			told = append(told, e.Type+" "+e.Reason+" "+e.Note)
		}
	}
	return told
}

func (h *hinted) waitForHintEvents(want ...string) {
	h.t.Helper()
	h.eventually(func() error {
		if got := h.hintEvents(); !slices.Equal(got, want) {
			return fmt.Errorf("the Events are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		return nil
	})
}

func TestARefusedHintIsAnEventThatSaysWhatIsAllowed(t *testing.T) {
	for _, tc := range []struct{ name, key, value, want string }{
		{"a forbidden path", v1alpha1.AnnotationPreferredPaths, "red",
			"Warning HintPathNotAllowed braid.dev/preferred-paths: red: the guardrails of MPTCPGuardrail tenants do not allow it; the annotation is not followed; the pod may use blue, green"},
		{"an unknown path", v1alpha1.AnnotationBackupPaths, "purple",
			"Warning HintPathNotFound braid.dev/backup-paths: no MPTCPPath is named purple; the annotation is not followed; the pod may use blue, green"},
		{"too high a rate", v1alpha1.AnnotationMaxRate, "1G",
			"Warning HintRateTooHigh braid.dev/max-rate: it asks for 1G; the guardrails of MPTCPGuardrail tenants allow a pod 100M, and the pod is held to that"},
		{"a malformed list", v1alpha1.AnnotationPreferredPaths, "blue;green",
			`Warning HintMalformed braid.dev/preferred-paths: "blue;green" is no list of paths: "blue;green" cannot be the name of a path. Give names of paths with commas between them; the pod may use blue, green`},
		{"a malformed rate", v1alpha1.AnnotationMaxRate, "fast",
			`Warning HintMalformed braid.dev/max-rate: "fast" is no rate: it cannot be read as a quantity. Give bits a second, such as 200M; the guardrails of MPTCPGuardrail tenants allow 8k to 100M`},
		{"neither a VM nor none", v1alpha1.AnnotationVirtualMachine, "yes",
			`Warning HintMalformed braid.dev/virtual-machine: "yes" is neither true nor false. Give "true" where the pod holds a virtual machine, and "false" where its connections are its own`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := newHinted(t)
			h.startController(apiServer)
			h.annotate(tc.key, tc.value)
			h.waitForHintEvents(tc.want)
			h.waitForCondition(h.policy, v1alpha1.ConditionHintsAccepted, v1alpha1.ReasonHintsRefused)
			c := h.waitForCondition(h.guardrails, v1alpha1.ConditionHintsAccepted, v1alpha1.ReasonHintsRefused)
			if !strings.HasPrefix(c.Message, "annotations of 1 of 1 pods are refused, as a whole or in part. "+h.namespace+"/pod: "+tc.key+": ") {
				t.Errorf("the condition says: %s", c.Message)
			}
			h.waitForEvent(h.guardrails, "Warning", v1alpha1.ReasonHintsRefused)
		})
	}
}

func TestARefusedHintIsToldOnceForEachChange(t *testing.T) {
	h := newHinted(t)
	stop := h.startController(apiServer)
	told := func(path string) string {
		return "Warning HintPathNotFound braid.dev/preferred-paths: no MPTCPPath is named " + path + "; the annotation is not followed; the pod may use blue, green"
	}
	h.annotate(v1alpha1.AnnotationPreferredPaths, "purple")
	h.waitForHintEvents(told("purple"))
	h.annotate(v1alpha1.AnnotationPreferredPaths, "pink")
	h.waitForHintEvents(told("purple"), told("pink"))

	// What changes elsewhere, also in the same plan, and a new controller are no
	// reason to say it again.
	h.cluster.pod("other", "node-a", "10.0.0.3", nil)
	h.waitForPods("node-a", "other", "pod")
	stop()
	h.startController(apiServer)
	h.cluster.pod("third", "node-a", "10.0.0.4", nil)
	h.waitForPods("node-a", "other", "pod", "third")
	h.waitForHintEvents(told("purple"), told("pink"))

	h.annotate(v1alpha1.AnnotationPreferredPaths, "blue")
	h.waitForCondition(h.guardrails, v1alpha1.ConditionHintsAccepted, v1alpha1.ReasonHintsAccepted)
	h.annotate(v1alpha1.AnnotationPreferredPaths, "purple")
	h.waitForHintEvents(told("purple"), told("pink"), told("purple"))
	h.annotate(v1alpha1.AnnotationPreferredPaths, "")
	h.waitUntilConditionIsGone(h.policy, v1alpha1.ConditionHintsAccepted)
}

func TestAnAnnotatedPodThatNoPolicySelectsIsToldOnce(t *testing.T) {
	h := newHinted(t)
	h.delete(h.guardrails)
	h.delete(h.policy)
	told := func(value string) string {
		return `Warning HintWithoutPolicy braid.dev/preferred-paths="` + value + `": no policy selects the pod, so its annotations have no effect. ` +
			"An MPTCPPolicy of its namespace or a ClusterMPTCPPolicy selects pods by their labels"
	}
	h.annotate(v1alpha1.AnnotationPreferredPaths, "blue")
	stop := h.startController(apiServer)
	h.waitForHintEvents(told("blue"))

	// Neither further runs nor a new controller say it again. The policy selects
	// another pod, so that its plan shows when a run is over.
	selected := map[string]string{"app": "other"}
	other := h.policyFor("other", selected)
	h.cluster.pod("other", "node-a", "10.0.0.3", selected)
	h.waitForPods("node-a", "other")
	stop()
	h.startController(apiServer)
	h.cluster.pod("third", "node-a", "10.0.0.4", selected)
	h.waitForPods("node-a", "other", "third")
	h.waitForHintEvents(told("blue"))

	// Another value is news, and so is nothing once a policy selects the pod.
	h.annotate(v1alpha1.AnnotationPreferredPaths, "green")
	h.waitForHintEvents(told("blue"), told("green"))
	change(h.cluster, other, func(p *v1alpha1.MPTCPPolicy) { p.Spec.PodSelector = metav1.LabelSelector{} })
	h.waitForPods("node-a", "other", "pod", "third")
	h.annotate(v1alpha1.AnnotationPreferredPaths, "blue")
	h.eventually(func() error {
		plan, err := h.plan("node-a")
		if err != nil || !prefers("blue")(&plan.Spec.Endpoints[1]) {
			return errors.Join(err, errNotYet)
		}
		return nil
	})
	h.waitForHintEvents(told("blue"), told("green"))
}

func (k *cluster) policyFor(name string, labels map[string]string) *v1alpha1.MPTCPPolicy {
	k.t.Helper()
	return k.policy(name, func(p *v1alpha1.MPTCPPolicy) { p.Spec.PodSelector.MatchLabels = labels })
}

func (k *cluster) waitUntilConditionIsGone(object client.Object, kind string) {
	k.t.Helper()
	k.eventually(func() error {
		if err := k.Get(context.Background(), client.ObjectKeyFromObject(object), object); err != nil {
			return err
		}
		if c := meta.FindStatusCondition(conditionsOf(object), kind); c != nil {
			return fmt.Errorf("%T %s still has %+v", object, object.GetName(), c)
		}
		return nil
	})
}

func TestGuardrailsAreProgrammedWhenTheirPodsAre(t *testing.T) {
	h := newHinted(t)
	a := h.agent("node-a", "blue", "green", "red")
	h.startController(apiServer)
	h.waitForEndpoint(prefers())
	h.waitForCondition(h.guardrails, v1alpha1.ConditionProgrammed, v1alpha1.ReasonPending)
	a.report(v1alpha1.EndpointProgrammed, "")
	h.waitForCondition(h.guardrails, v1alpha1.ConditionProgrammed, v1alpha1.ReasonProgrammed)
	if got := h.guardrails.Status; got.PodsSelected != 1 || got.PodsProgrammed != 1 {
		t.Errorf("%d of %d pods are programmed, want 1 of 1", got.PodsProgrammed, got.PodsSelected)
	}
	c := h.waitForCondition(h.guardrails, v1alpha1.ConditionEffective, v1alpha1.ReasonEffective)
	if c.Message != "the guardrails hold for every pod that it selects, 1 in all" {
		t.Errorf("effective: %s", c.Message)
	}

	// A ceiling is not in the endpoint, and its change is not carried out before
	// the agent says so.
	change(h.cluster, h.guardrails, func(p *v1alpha1.MPTCPGuardrail) {
		p.Spec.Guardrails.TenantPaths[0].MaxRate = new(resource.MustParse("2G"))
	})
	h.waitForCondition(h.guardrails, v1alpha1.ConditionProgrammed, v1alpha1.ReasonPending)
	h.eventually(func() error {
		plan, err := h.plan("node-a")
		if err != nil || plan.Spec.Tenants[0].Paths[0].MaxRate != 2_000_000_000 {
			return errors.Join(err, errNotYet)
		}
		return nil
	})
	a.report(v1alpha1.EndpointProgrammed, "")
	h.waitForCondition(h.guardrails, v1alpha1.ConditionProgrammed, v1alpha1.ReasonProgrammed)
}

func TestAPolicyIsToldWhatItMayNotUse(t *testing.T) {
	h := newHinted(t)
	h.startController(apiServer)
	change(h.cluster, h.policy, func(p *v1alpha1.MPTCPPolicy) { p.Spec.Paths.Preferred = []v1alpha1.PathName{"red"} })
	c := h.waitForCondition(h.policy, v1alpha1.ConditionAccepted, v1alpha1.ReasonPathNotAllowed)
	if c.Message != "guardrails do not let pods of this policy use red (MPTCPGuardrail tenants). The policy works within the guardrails" {
		t.Errorf("accepted: %s", c.Message)
	}
	change(h.cluster, h.guardrails, func(p *v1alpha1.MPTCPGuardrail) { p.Spec.Guardrails.TenantPaths[0].Weight = new(int32(3)) })
	c = h.waitForCondition(h.guardrails, v1alpha1.ConditionAccepted, v1alpha1.ReasonCapacityMissing)
	if !strings.Contains(c.Message, "blue") {
		t.Errorf("accepted: %s", c.Message)
	}
}

func TestOnlyPoliciesOfHintedPodsSpeakOfHints(t *testing.T) {
	refused := func(n int) []policy.PodHint {
		var hints []policy.PodHint
		for i := range n {
			hints = append(hints, policy.PodHint{
				Pod:  policy.PodRef{Namespace: "ns", Name: fmt.Sprintf("pod-%d", i), UID: "u"},
				Hint: v1alpha1.RefusedHint{Annotation: "a", Reason: v1alpha1.ReasonHintMalformed, Message: "m"},
			})
		}
		return hints
	}
	for _, tc := range []struct {
		name   string
		result policy.PolicyResult
		want   string
	}{
		{"no pod has annotations", policy.PolicyResult{}, ""},
		{"all are followed", policy.PolicyResult{HintedPods: 2}, "True the annotations of 2 pods are followed"},
		{"many are refused", policy.PolicyResult{HintedPods: 9, RefusedHints: refused(5)},
			"False annotations of 1 of 9 pods are refused, as a whole or in part. ns/pod-0: a: m. ns/pod-1: a: m. ns/pod-2: a: m. And 2 more"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newScene()
			s.judge()
			got := ""
			if c := meta.FindStatusCondition(newVerdict(s.observation, &tc.result).status.Conditions, v1alpha1.ConditionHintsAccepted); c != nil {
				got = string(c.Status) + " " + c.Message
			}
			if got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestAPodWhoseHintsChangeAllTheTimeGetsABoundedNumberOfEvents(t *testing.T) {
	teller := newHintTeller(nil)
	change := func(uid string, value int) {
		endpoint := v1alpha1.PlanEndpoint{UID: types.UID(uid), Namespace: "team", Name: uid, RefusedHints: []v1alpha1.RefusedHint{{
			Annotation: v1alpha1.AnnotationMaxRate, Reason: v1alpha1.ReasonHintMalformed, Message: fmt.Sprint(value),
		}}}
		teller.tell(t.Context(), nil, &v1alpha1.MPTCPNodePlan{Spec: v1alpha1.MPTCPNodePlanSpec{Endpoints: []v1alpha1.PlanEndpoint{endpoint}}})
	}
	for value := range 1000 {
		change("flapping", value)
	}
	if got := len(teller.waiting); got != podEventsBurst {
		t.Errorf("the pod gets %d Events, and should get %d", got, podEventsBurst)
	}
	change("other", 1)
	if got := len(teller.waiting); got != podEventsBurst+1 {
		t.Errorf("another pod gets %d Events", got-podEventsBurst)
	}
}
