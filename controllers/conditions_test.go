// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/policy"
)

// scene is an observation of a policy in generation 3 that decides for one pod,
// on a node whose agent has done everything; tests spoil parts of it.
type scene struct {
	*observation
	history planHistory
	silent  map[string]string
}

func newScene() *scene {
	endpoint := v1alpha1.PlanEndpoint{
		UID: "u", Namespace: "ns", Name: "pod", Addresses: []string{"10.0.0.1"},
		Policy:   v1alpha1.PolicyReference{Kind: policy.KindPolicy, Namespace: "ns", Name: "p", Generation: 3},
		Paths:    []v1alpha1.PathWeight{{Path: "blue", Weight: 1}},
		Subflows: v1alpha1.PlanSubflows{Manager: v1alpha1.SubflowManagerAgent, Count: 1},
	}
	spec := v1alpha1.MPTCPNodePlanSpec{Paths: []v1alpha1.PlanPath{{Name: "blue"}}, Endpoints: []v1alpha1.PlanEndpoint{endpoint}}
	plan := &v1alpha1.MPTCPNodePlan{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "plan", Generation: 7}, Spec: *spec.DeepCopy()}
	plan.Status.ObservedGeneration = 7
	plan.Status.Endpoints = []v1alpha1.EndpointStatus{{UID: "u", Namespace: "ns", Name: "pod", PolicyGeneration: 3, State: v1alpha1.EndpointProgrammed}}
	s := &scene{history: planHistory{}, silent: map[string]string{}, observation: &observation{
		result: &policy.Result{Active: true, Plans: map[string]v1alpha1.MPTCPNodePlanSpec{"n": spec}},
		plans:  map[string]*v1alpha1.MPTCPNodePlan{"n": plan},
		nodes:  map[string]*v1alpha1.MPTCPNode{},
	}}
	s.silence = func(node string) string { return s.silent[node] }
	return s
}

// giveChain makes the pod's endpoint one with a chain that refers to a program.
func (s *scene) giveChain(name string) {
	compiled := s.result.Plans["n"]
	for _, spec := range []*v1alpha1.MPTCPNodePlanSpec{&compiled, &s.plans["n"].Spec} {
		spec.Endpoints[0].Chain = name
		spec.Programs = []v1alpha1.PlanProgram{{Policy: "c", Program: v1alpha1.Program{Name: "mark"}, Revision: "1"}}
	}
	s.result.Plans["n"] = compiled
}

func (s *scene) judge() podState {
	s.history.observe(s.plans)
	s.pods = judgePods(s.observation, s.history, judgements{})
	return s.pods["n"]["u"]
}

func TestPodIsProgrammedOnlyWhenEverythingAgrees(t *testing.T) {
	for _, tc := range []struct {
		name    string
		spoil   func(s *scene, plan *v1alpha1.MPTCPNodePlan)
		reason  string
		message string
	}{
		{"nothing is amiss", func(*scene, *v1alpha1.MPTCPNodePlan) {}, v1alpha1.ReasonProgrammed, ""},
		{"there is no plan", func(s *scene, _ *v1alpha1.MPTCPNodePlan) { delete(s.plans, "n") }, v1alpha1.ReasonPending, "being written"},
		{"the plan in the API lacks the pod", func(_ *scene, p *v1alpha1.MPTCPNodePlan) { p.Spec.Endpoints = nil }, v1alpha1.ReasonPending, "being written"},
		{"the plan in the API is of an older generation of the policy", func(_ *scene, p *v1alpha1.MPTCPNodePlan) {
			p.Spec.Endpoints[0].Policy.Generation, p.Status.Endpoints[0].PolicyGeneration = 2, 2
		}, v1alpha1.ReasonPending, "being written"},
		{"the plan in the API has other weights", func(_ *scene, p *v1alpha1.MPTCPNodePlan) { p.Spec.Endpoints[0].Paths[0].Weight = 9 }, v1alpha1.ReasonPending, "being written"},
		{"the agent has not seen the plan", func(_ *scene, p *v1alpha1.MPTCPNodePlan) { p.Status.ObservedGeneration = 6 }, v1alpha1.ReasonPending, "not applied"},
		{"the agent does not mention the pod", func(_ *scene, p *v1alpha1.MPTCPNodePlan) { p.Status.Endpoints = nil }, v1alpha1.ReasonPending, "not applied"},
		{"the agent carries out an older policy", func(_ *scene, p *v1alpha1.MPTCPNodePlan) { p.Status.Endpoints[0].PolicyGeneration = 2 }, v1alpha1.ReasonPending, "older generation"},
		{"the agent waits", func(_ *scene, p *v1alpha1.MPTCPNodePlan) {
			p.Status.Endpoints[0].State, p.Status.Endpoints[0].Message = v1alpha1.EndpointPending, "no veth"
		}, v1alpha1.ReasonPending, "no veth"},
		{"the agent failed, whatever was programmed before", func(_ *scene, p *v1alpha1.MPTCPNodePlan) {
			p.Status.Endpoints[0] = v1alpha1.EndpointStatus{UID: "u", State: v1alpha1.EndpointFailed, Message: "no room"}
		}, v1alpha1.ReasonEndpointFailed, "no room"},
		{"the agent has put the chain in place", func(s *scene, p *v1alpha1.MPTCPNodePlan) {
			s.giveChain("chain")
			p.Status.Endpoints[0].Chain = "chain"
		}, v1alpha1.ReasonProgrammed, ""},
		{"the agent still runs another chain", func(s *scene, p *v1alpha1.MPTCPNodePlan) {
			s.giveChain("chain")
			p.Status.Endpoints[0].Chain = "old"
		}, v1alpha1.ReasonPending, "chain of rules"},
		{"the agent still runs a chain that is no longer wanted", func(_ *scene, p *v1alpha1.MPTCPNodePlan) { p.Status.Endpoints[0].Chain = "old" }, v1alpha1.ReasonPending, "chain of rules"},
		{"the plan in the API has another revision of a program", func(s *scene, p *v1alpha1.MPTCPNodePlan) {
			s.giveChain("chain")
			p.Status.Endpoints[0].Chain, p.Spec.Programs[0].Revision = "chain", "0"
		}, v1alpha1.ReasonPending, "being written"},
		{"a rule made the endpoint fail", func(s *scene, p *v1alpha1.MPTCPNodePlan) {
			p.Status.Endpoints[0] = v1alpha1.EndpointStatus{UID: "u", State: v1alpha1.EndpointFailed, Message: "the chain is not in place", Rules: []v1alpha1.RuleStatus{
				{Policy: "ClusterMPTCPPolicy/c", Name: "mark", Message: "the verifier refuses it"}, {Policy: "MPTCPPolicy/ns/p", Name: "limit", Mechanism: "Pace"},
			}}
		}, v1alpha1.ReasonEndpointFailed, "the chain is not in place; rule mark of ClusterMPTCPPolicy/c: the verifier refuses it"},
		{"the datapath failed as a whole", func(_ *scene, p *v1alpha1.MPTCPNodePlan) {
			p.Status.Endpoints[0].State = v1alpha1.EndpointFailed
			meta.SetStatusCondition(&p.Status.Conditions, condition(v1alpha1.ConditionProgrammed, metav1.ConditionFalse, v1alpha1.ReasonDatapathFailed, "no BPF", 7))
		}, v1alpha1.ReasonDatapathFailed, "no BPF"},
		{"the agent is silent, whatever it said before", func(s *scene, _ *v1alpha1.MPTCPNodePlan) { s.silent["n"] = "gone quiet" }, v1alpha1.ReasonAgentNotReporting, "gone quiet"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newScene()
			tc.spoil(s, s.plans["n"])
			if got := s.judge(); got.reason != tc.reason || !strings.Contains(got.message, tc.message) {
				t.Errorf("got %+v, want reason %s and a message with %q", got, tc.reason, tc.message)
			}
		})
	}
}

func TestPlanHistoryKnowsWhichEndpointChanged(t *testing.T) {
	s := newScene()
	if got := s.judge(); got.reason != v1alpha1.ReasonProgrammed {
		t.Fatalf("the scene is spoiled: %+v", got)
	}
	next := func(change func(*v1alpha1.MPTCPNodePlanSpec)) string {
		plan := s.plans["n"].DeepCopy()
		plan.Generation++
		change(&plan.Spec)
		s.plans["n"] = plan
		s.result.Plans["n"] = *plan.Spec.DeepCopy()
		return s.judge().reason
	}
	if got := next(func(spec *v1alpha1.MPTCPNodePlanSpec) {
		spec.Endpoints = append(spec.Endpoints, v1alpha1.PlanEndpoint{UID: "v"})
	}); got != v1alpha1.ReasonProgrammed {
		t.Errorf("another pod joined, and this one is %s", got)
	}
	if got := next(func(spec *v1alpha1.MPTCPNodePlanSpec) { spec.Endpoints[0].Addresses = []string{"10.0.0.2"} }); got != v1alpha1.ReasonPending {
		t.Errorf("the pod's address changed, and it is %s", got)
	}
	s.plans["n"].Status.ObservedGeneration = s.plans["n"].Generation
	if got := next(func(spec *v1alpha1.MPTCPNodePlanSpec) { spec.Paths[0].Interfaces = []v1alpha1.InterfacePattern{"eth9"} }); got != v1alpha1.ReasonPending {
		t.Errorf("the node's paths changed, and the pod is %s", got)
	}
	s.plans["n"].Status.ObservedGeneration = s.plans["n"].Generation
	newProgram := func(revision string) func(*v1alpha1.MPTCPNodePlanSpec) {
		return func(spec *v1alpha1.MPTCPNodePlanSpec) {
			spec.Programs = []v1alpha1.PlanProgram{{Policy: "c", Program: v1alpha1.Program{Name: "mark"}, Revision: revision}}
		}
	}
	if got := next(newProgram("1")); got != v1alpha1.ReasonProgrammed {
		t.Errorf("a program of other pods' chains changed, and this one is %s", got)
	}
	next(func(spec *v1alpha1.MPTCPNodePlanSpec) { spec.Endpoints[0].Chain = "chain" })
	s.plans["n"].Status.ObservedGeneration = s.plans["n"].Generation
	s.plans["n"].Status.Endpoints[0].Chain = "chain"
	if got := s.judge(); got.reason != v1alpha1.ReasonProgrammed {
		t.Fatalf("the chain is in place, and the pod is %+v", got)
	}
	if got := next(newProgram("2")); got != v1alpha1.ReasonPending {
		t.Errorf("a program of its chain changed, and the pod is %s", got)
	}
}

func TestARuleThatFailsIsTheFailureOfItsOwnPolicy(t *testing.T) {
	s := newScene()
	s.plans["n"].Status.Endpoints[0].Rules = []v1alpha1.RuleStatus{
		{Policy: "MPTCPPolicy/ns/p", Name: "limit", Mechanism: "Police", Message: "no SYN was seen"},
		{Policy: "ClusterMPTCPPolicy/c", Name: "control", Failed: true, Message: "the kernel knows no congestion control vegas"},
	}
	s.judge()
	pod := policy.PodRef{Namespace: "ns", Name: "pod", UID: "u", Node: "n"}
	decides := &policy.PolicyResult{Policy: v1alpha1.PolicyReference{Kind: policy.KindPolicy, Namespace: "ns", Name: "p"}, Decides: []policy.PodRef{pod}}
	rulesOnly := &policy.PolicyResult{Policy: v1alpha1.PolicyReference{Kind: policy.KindClusterPolicy, Name: "c"}, RulesOnly: []policy.PodRef{pod}, Overridden: []policy.Override{{Pod: pod}}}
	for _, tc := range []struct {
		name       string
		result     *policy.PolicyResult
		reason     string
		programmed int32
		message    string
	}{
		{"the policy whose rules all work", decides, v1alpha1.ReasonProgrammed, 1, "1 of 1 pods"},
		{"the policy whose rule fails, though another decides for the pod", rulesOnly, v1alpha1.ReasonRuleFailed, 0, "ns/pod: rule control: the kernel knows no congestion control vegas"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			status := newVerdict(s.observation, tc.result).status
			c := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionProgrammed)
			if c.Reason != tc.reason || status.PodsProgrammed != tc.programmed || !strings.Contains(c.Message, tc.message) {
				t.Errorf("%d pods are programmed, and the condition is %+v", status.PodsProgrammed, c)
			}
		})
	}
}

func TestRulesAcceptedNamesRuleAndField(t *testing.T) {
	problem := func(rule string) policy.RuleProblem {
		return policy.RuleProblem{Rule: rule, Field: "spec.rules[0]", Reason: v1alpha1.ReasonContradictingRules, Message: "it never runs"}
	}
	pod := policy.PodRef{Namespace: "ns", Name: "pod"}
	for _, tc := range []struct {
		name    string
		result  policy.PolicyResult
		status  metav1.ConditionStatus
		reason  string
		message string
	}{
		{
			"rules that run for some of the pods",
			policy.PolicyResult{Rules: 2, Decides: []policy.PodRef{pod}, Overridden: []policy.Override{{Pod: pod}, {Pod: pod}}, RulesOnly: []policy.PodRef{pod}},
			metav1.ConditionTrue, v1alpha1.ReasonAccepted, "the 2 rules can work; they are for 2 of 3 selected pods",
		},
		{
			"rules that cannot work",
			policy.PolicyResult{Rules: 5, RuleProblems: []policy.RuleProblem{problem("a"), problem("b"), problem("c"), problem("d")}},
			metav1.ConditionFalse, v1alpha1.ReasonContradictingRules,
			"rule a: spec.rules[0]: it never runs; rule b: spec.rules[0]: it never runs; rule c: spec.rules[0]: it never runs; and 1 more. None of the policy's rules is applied until this is corrected",
		},
		{
			"rules that do not fit beside the cluster's",
			policy.PolicyResult{Rules: 40, Decides: []policy.PodRef{pod}, RulesLeftOut: []policy.RulesLeftOut{{Pod: pod, Reason: "65 rules"}}},
			metav1.ConditionFalse, v1alpha1.ReasonTooManyRules, "the rules are not applied to 1 pods; ns/pod: 65 rules",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newScene()
			c := meta.FindStatusCondition(newVerdict(s.observation, &tc.result).status.Conditions, v1alpha1.ConditionRulesAccepted)
			if c == nil || c.Status != tc.status || c.Reason != tc.reason || c.Message != tc.message {
				t.Errorf("unexpected condition: %+v", c)
			}
		})
	}
}

func TestAPolicyWhoseRulesAreLeftOutIsNotProgrammed(t *testing.T) {
	s := newScene()
	s.judge()
	pod := policy.PodRef{Namespace: "ns", Name: "pod", UID: "u", Node: "n"}
	for name, result := range map[string]*policy.PolicyResult{
		v1alpha1.ReasonPathNotFound: {Rules: 1, Decides: []policy.PodRef{pod}, RuleProblems: []policy.RuleProblem{{Reason: v1alpha1.ReasonPathNotFound}}},
		v1alpha1.ReasonTooManyRules: {Rules: 1, Decides: []policy.PodRef{pod}, RulesLeftOut: []policy.RulesLeftOut{{Pod: pod}}},
		v1alpha1.ReasonProgrammed:   {Rules: 1, Decides: []policy.PodRef{pod}},
	} {
		c := meta.FindStatusCondition(newVerdict(s.observation, result).status.Conditions, v1alpha1.ConditionProgrammed)
		if c.Reason != name || (c.Status == metav1.ConditionTrue) != (name == v1alpha1.ReasonProgrammed) {
			t.Errorf("want reason %s: %+v", name, c)
		}
	}
}

func TestAPolicyWithoutRulesSaysNothingOfThem(t *testing.T) {
	s := newScene()
	if c := meta.FindStatusCondition(newVerdict(s.observation, &policy.PolicyResult{}).status.Conditions, v1alpha1.ConditionRulesAccepted); c != nil {
		t.Errorf("unexpected condition: %+v", c)
	}
}

func TestTheCacheKeepsSumsOfPrograms(t *testing.T) {
	object := func(content string) *corev1.ConfigMap {
		return &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: "programs"}, Data: map[string]string{"text": "large"},
			BinaryData: map[string][]byte{"mark.o": []byte(content)},
		}
	}
	first, same, other := trim[*corev1.ConfigMap](t, sumConfigMap, object(strings.Repeat("x", 1000))), trim[*corev1.ConfigMap](t, sumConfigMap, object(strings.Repeat("x", 1000))), trim[*corev1.ConfigMap](t, sumConfigMap, object("y"))
	if len(first.Data) > 0 || len(first.BinaryData["mark.o"]) > 16 {
		t.Errorf("the cache keeps what nobody reads: %+v", first)
	}
	var p programsChanged
	for name, test := range map[string]struct{ got, want bool }{
		"the same content":      {p.Update(event.UpdateEvent{ObjectOld: first, ObjectNew: same}), false},
		"another content":       {p.Update(event.UpdateEvent{ObjectOld: first, ObjectNew: other}), true},
		"one with programs":     {p.Create(event.CreateEvent{Object: first}), true},
		"one with text alone":   {p.Create(event.CreateEvent{Object: &corev1.ConfigMap{}}), false},
		"its end":               {p.Delete(event.DeleteEvent{Object: first}), true},
		"the end of other ones": {p.Delete(event.DeleteEvent{Object: &corev1.ConfigMap{}}), false},
	} {
		if test.got != test.want {
			t.Errorf("%s causes a run: %v, want %v", name, test.got, test.want)
		}
	}
}

func (s *scene) setState(pod policy.PodRef, state podState) {
	if s.pods[pod.Node] == nil {
		s.pods[pod.Node] = map[types.UID]podState{}
	}
	s.pods[pod.Node][pod.UID] = state
}

func TestFailingNodesAreSortedAndCapped(t *testing.T) {
	s := newScene()
	s.pods = podStates{}
	result := &policy.PolicyResult{Policy: v1alpha1.PolicyReference{Generation: 3}}
	for i := range 12 {
		for j := range 2 {
			pod := policy.PodRef{Namespace: "ns", Name: fmt.Sprintf("pod-%d-%d", i, j), UID: types.UID(fmt.Sprint(i, j)), Node: fmt.Sprintf("node-%02d", 11-i)}
			result.Decides = append(result.Decides, pod)
			s.setState(pod, podState{reason: v1alpha1.ReasonEndpointFailed, message: "broken"})
		}
	}
	s.setState(result.Decides[3], podState{reason: v1alpha1.ReasonAgentNotReporting, message: "silent"})
	status := newVerdict(s.observation, result).status
	if len(status.FailingNodes) != v1alpha1.MaxFailingNodes || status.FailingNodes[0].Node != "node-00" || status.FailingNodes[9].Node != "node-09" {
		t.Errorf("failing nodes: %+v", status.FailingNodes)
	}
	if f := status.FailingNodes[1]; f.Pods != 2 || f.Message != "ns/pod-10-0: broken" {
		t.Errorf("the number of pods or the first of them is not told: %+v", f)
	}
	c := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionProgrammed)
	if c.Reason != v1alpha1.ReasonEndpointFailed || !strings.Contains(c.Message, "12 nodes fail") {
		t.Errorf("unexpected condition: %+v", c)
	}
}

func TestPodBeyondTheLimitOfAPlanFails(t *testing.T) {
	s := newScene()
	s.pods = podStates{}
	result := &policy.PolicyResult{Decides: []policy.PodRef{{Namespace: "ns", Name: "late", UID: "late", Node: "n"}}}
	status := newVerdict(s.observation, result).status
	if len(status.FailingNodes) != 1 || !strings.Contains(status.FailingNodes[0].Message, "1024") {
		t.Errorf("failing nodes: %+v", status.FailingNodes)
	}
}

// What the datapath has is less than what the policy says.
func TestAPolicyThatNamesAPathWhichDoesNotExistIsNotProgrammed(t *testing.T) {
	s := newScene()
	pod := policy.PodRef{Namespace: "ns", Name: "pod", UID: "u", Node: "n"}
	result := &policy.PolicyResult{Policy: v1alpha1.PolicyReference{Generation: 3}, Decides: []policy.PodRef{pod}}
	s.pods = podStates{}
	s.setState(pod, podState{reason: v1alpha1.ReasonProgrammed})
	reason := func() string {
		return meta.FindStatusCondition(newVerdict(s.observation, result).status.Conditions, v1alpha1.ConditionProgrammed).Reason
	}
	if got := reason(); got != v1alpha1.ReasonProgrammed {
		t.Errorf("got %s", got)
	}
	result.UnknownPaths = []v1alpha1.PathName{"bleu"}
	if got := reason(); got != v1alpha1.ReasonPathNotFound {
		t.Errorf("with bleu it is %s", got)
	}
}

func TestAcceptedNamesTheFirstThingToCorrect(t *testing.T) {
	s := newScene()
	s.result.Paths = []policy.PathResult{{Name: "blue"}, {Name: "green"}}
	for _, tc := range []struct {
		name    string
		result  policy.PolicyResult
		status  metav1.ConditionStatus
		reason  string
		message string
	}{
		{"all is well", policy.PolicyResult{}, metav1.ConditionTrue, v1alpha1.ReasonAccepted, ""},
		{"a selector is invalid", policy.PolicyResult{Error: "spec.podSelector: bad"}, metav1.ConditionFalse, v1alpha1.ReasonInvalidSelector, "spec.podSelector: bad"},
		{"paths are unknown", policy.PolicyResult{UnknownPaths: []v1alpha1.PathName{"x", "y"}}, metav1.ConditionFalse, v1alpha1.ReasonPathNotFound, "x, y; there are blue, green"},
		{"a path was cut", policy.PolicyResult{CutPaths: []v1alpha1.PathName{"z"}}, metav1.ConditionFalse, v1alpha1.ReasonTooManyPaths, "z cannot be used"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := accepted(s.observation, &tc.result, 1)
			if c.Status != tc.status || c.Reason != tc.reason || !strings.Contains(c.Message, tc.message) {
				t.Errorf("unexpected condition: %+v", c)
			}
		})
	}
}

func TestAPeerAnswersOnAPathUnlessItIsListedOrMayHaveBeenLeftOut(t *testing.T) {
	path := func(probed, alive int32, unreachable ...string) *v1alpha1.NodePath {
		return &v1alpha1.NodePath{PeersProbed: probed, PeersAlive: alive, Unreachable: unreachable}
	}
	for name, tc := range map[string]struct {
		path *v1alpha1.NodePath
		want bool
	}{
		"all answer":                   {path(3, 3), true},
		"none does":                    {path(3, 0), false},
		"it is listed":                 {path(3, 2, "n5"), false},
		"others are listed":            {path(3, 1, "n1", "n7"), true},
		"the list ends behind it":      {path(9, 1, "n1", "n7"), true},
		"the list ends before it":      {path(9, 1, "n1", "n2"), false},
		"nothing is listed of several": {path(9, 1), false},
	} {
		if got := answersOn(tc.path, "n5"); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestNodesToWhichLargePacketsAloneAreLostAreNamedSo(t *testing.T) {
	nic := &v1alpha1.NodePath{Unreachable: []string{"n1", "n2", "n3"}, LargePacketsLost: []string{"n2"}}
	problems := pathProblems{}
	problems.addUnreachable("n0", nic, []string{"n1", "n2"})
	want := []string{"n0 to n1, n2 (only large packets are lost: look at the MTU of switches)"}
	if got := problems[v1alpha1.ReasonPeersUnreachable]; !slices.Equal(got, want) {
		t.Errorf("it says %q", got)
	}
}

func TestPathReadyTellsTheWorstProblemFirst(t *testing.T) {
	nic := func(name string, state v1alpha1.LinkState) []v1alpha1.NodePath {
		return []v1alpha1.NodePath{{Name: "blue", Interface: name, State: state}}
	}
	good, down, missing := nic("eth1", v1alpha1.LinkUp), nic("eth1", v1alpha1.LinkDown), nic("", v1alpha1.LinkDown)
	narrow := []v1alpha1.NodePath{{Name: "blue", Interface: "eth1", State: v1alpha1.LinkUp, Message: "eth1 has an MTU of 1400 bytes where another has 1500"}}
	// n0 has another path, too, on which it may reach n1.
	dead := func(elsewhere ...string) []v1alpha1.NodePath {
		blue := v1alpha1.NodePath{Name: "blue", Interface: "eth1", State: v1alpha1.LinkUp, PeersProbed: 2, Unreachable: []string{"n1", "n2"}}
		return []v1alpha1.NodePath{blue, {Name: "green", Interface: "eth2", State: v1alpha1.LinkUp, PeersProbed: 2, PeersAlive: int32(2 - len(elsewhere)), Unreachable: elsewhere}}
	}
	for _, tc := range []struct {
		name   string
		paths  [][]v1alpha1.NodePath // of nodes n0, n1, …; nil: nothing published
		spoil  func(*scene, *policy.PathResult)
		reason string
		status metav1.ConditionStatus
		nodes  int32
		up     int32
	}{
		{"all nodes are up", [][]v1alpha1.NodePath{good, good}, nil, v1alpha1.ReasonReady, metav1.ConditionTrue, 2, 2},
		{"one NIC is down", [][]v1alpha1.NodePath{good, down}, nil, v1alpha1.ReasonInterfaceDown, metav1.ConditionFalse, 2, 1},
		{"one NIC is down and one is missing", [][]v1alpha1.NodePath{down, missing}, nil, v1alpha1.ReasonInterfaceNotFound, metav1.ConditionFalse, 1, 0},
		{"an agent has not looked yet", [][]v1alpha1.NodePath{good, nil}, nil, v1alpha1.ReasonPending, metav1.ConditionFalse, 1, 1},
		{"an agent is silent", [][]v1alpha1.NodePath{good, good}, func(s *scene, _ *policy.PathResult) { s.silent["n1"] = "x" }, v1alpha1.ReasonAgentNotReporting, metav1.ConditionFalse, 2, 1},
		{"a path is up, and dead by probes", [][]v1alpha1.NodePath{dead(), good, good}, nil, v1alpha1.ReasonPeersUnreachable, metav1.ConditionFalse, 3, 3},
		{"it is dead to one of two nodes that answer", [][]v1alpha1.NodePath{dead("n1"), good, good}, nil, v1alpha1.ReasonPeersUnreachable, metav1.ConditionFalse, 3, 3},
		{"nodes answer on no path", [][]v1alpha1.NodePath{dead("n1", "n2"), good, good}, nil, v1alpha1.ReasonReady, metav1.ConditionTrue, 3, 3},
		{"a NIC that is up cannot be used", [][]v1alpha1.NodePath{good, narrow, dead()}, nil, v1alpha1.ReasonInterfaceNotUsable, metav1.ConditionFalse, 3, 3},
		{"probes are lost because a NIC is down", [][]v1alpha1.NodePath{dead(), down, good}, nil, v1alpha1.ReasonInterfaceDown, metav1.ConditionFalse, 3, 2},
		{"probes are lost because agents are silent", [][]v1alpha1.NodePath{dead(), good, good}, func(s *scene, _ *policy.PathResult) { s.silent["n1"], s.silent["n2"] = "x", "x" }, v1alpha1.ReasonAgentNotReporting, metav1.ConditionFalse, 3, 1},
		{"no policy is active", [][]v1alpha1.NodePath{nil}, func(s *scene, _ *policy.PathResult) { s.result.Active = false }, v1alpha1.ReasonNoPodsSelected, metav1.ConditionUnknown, 0, 0},
		{"no node is selected", nil, nil, v1alpha1.ReasonNoNodes, metav1.ConditionFalse, 0, 0},
		{"a node has too many paths", [][]v1alpha1.NodePath{good}, func(_ *scene, p *policy.PathResult) { p.CutNodes = []string{"n9"} }, v1alpha1.ReasonTooManyPaths, metav1.ConditionFalse, 1, 1},
		{"its selector is invalid", nil, func(_ *scene, p *policy.PathResult) { p.Error = "bad" }, v1alpha1.ReasonInvalidSelector, metav1.ConditionFalse, 0, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, result := newScene(), &policy.PathResult{Name: "blue", Generation: 4}
			for i, paths := range tc.paths {
				name := fmt.Sprintf("n%d", i)
				result.Nodes = append(result.Nodes, name)
				s.nodes[name] = &v1alpha1.MPTCPNode{Status: v1alpha1.MPTCPNodeStatus{Paths: paths}}
			}
			if tc.spoil != nil {
				tc.spoil(s, result)
			}
			status := pathStatus(s.observation, result)
			c := status.Conditions[0]
			if c.Status != tc.status || c.Reason != tc.reason || c.ObservedGeneration != 4 || status.Nodes != tc.nodes || status.NodesUp != tc.up {
				t.Errorf("unexpected status: %+v", status)
			}
		})
	}
}

func TestNodeIsReadyWhileItsAgentReportsAndItsDatapathWorks(t *testing.T) {
	s := newScene()
	node := &v1alpha1.MPTCPNode{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	reason := func() string { return nodeStatus(s.observation, node).Conditions[0].Reason }
	if got := reason(); got != v1alpha1.ReasonReady {
		t.Errorf("got %s", got)
	}
	meta.SetStatusCondition(&s.plans["n"].Status.Conditions, condition(v1alpha1.ConditionProgrammed, metav1.ConditionFalse, v1alpha1.ReasonDatapathFailed, "no BPF", 7))
	if got := reason(); got != v1alpha1.ReasonDatapathFailed {
		t.Errorf("the datapath failed, and the node is %s", got)
	}
	s.silent["n"] = "quiet"
	if got := reason(); got != v1alpha1.ReasonAgentNotReporting {
		t.Errorf("the agent is silent, and the node is %s", got)
	}
}

func TestTransitionsAreNewsOnce(t *testing.T) {
	c := func(status metav1.ConditionStatus, reason string) *metav1.Condition {
		return &metav1.Condition{Type: "T", Status: status, Reason: reason}
	}
	for _, tc := range []struct {
		name   string
		before *metav1.Condition
		after  *metav1.Condition
		want   bool
	}{
		{"a condition begins as expected", nil, c("False", v1alpha1.ReasonPending), false},
		{"a condition begins badly", nil, c("False", v1alpha1.ReasonPathNotFound), true},
		{"nothing changes", c("False", "A"), c("False", "A"), false},
		{"the status changes", c("False", "A"), c("True", "A"), true},
		{"another reason keeps it False", c("False", "A"), c("False", "B"), true},
		{"another reason keeps it True", c("True", "A"), c("True", "B"), false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := isNews(tc.before, *tc.after); got != tc.want {
				t.Errorf("got %t, want %t", got, tc.want)
			}
		})
	}
}

func TestTransitionTimesStayWhileTheStatusDoes(t *testing.T) {
	old := metav1.Unix(1000, 0)
	previous := []metav1.Condition{
		{Type: "Same", Status: "True", Reason: "A", LastTransitionTime: old},
		{Type: "Changed", Status: "True", Reason: "A", LastTransitionTime: old},
		{Type: "Gone", Status: "True", Reason: "A", LastTransitionTime: old},
	}
	merged := withTransitionTimes(previous, []metav1.Condition{
		{Type: "Same", Status: "True", Reason: "B"}, {Type: "Changed", Status: "False", Reason: "B"}, {Type: "New", Status: "True", Reason: "B"},
	})
	for _, c := range merged {
		if kept := c.LastTransitionTime.Equal(&old); kept != (c.Type == "Same") || c.Reason != "B" {
			t.Errorf("unexpected condition: %+v", c)
		}
	}
	if len(merged) != 3 {
		t.Errorf("%d conditions, want 3", len(merged))
	}
}

func TestShortenKeepsWholeCharacters(t *testing.T) {
	for _, text := range []string{"", "short", strings.Repeat("ä", 30), strings.Repeat("日本語", 30), "x" + strings.Repeat("ä", 30)} {
		got := shorten(text, 20)
		if len(got) > 20 || !utf8.ValidString(got) || len(text) <= 20 && got != text {
			t.Errorf("shorten(%q) is %q", text, got)
		}
	}
}

func TestEnumerateStopsAfterTen(t *testing.T) {
	names := strings.Split("abcdefghijklm", "")
	if got := enumerate(names[:2]); got != "a, b" {
		t.Errorf("got %q", got)
	}
	if got := enumerate(names); got != "a, b, c, d, e, f, g, h, i, j and 3 more" {
		t.Errorf("got %q", got)
	}
}

func TestOnlyPodEventsThatMatterCauseARun(t *testing.T) {
	running := func(change func(*corev1.Pod)) *corev1.Pod {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u", Labels: map[string]string{"a": "b"}, ResourceVersion: "1"}}
		pod.Spec.NodeName, pod.Status.Phase, pod.Status.PodIPs = "n", corev1.PodRunning, []corev1.PodIP{{IP: "10.0.0.1"}}
		if change != nil {
			change(pod)
		}
		return pod
	}
	for _, tc := range []struct {
		name  string
		after *corev1.Pod
		want  bool
	}{
		{"its phase changes", running(func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }), false},
		{"its annotations change", running(func(p *corev1.Pod) { p.Annotations = map[string]string{"a": "b"} }), false},
		{"its labels change", running(func(p *corev1.Pod) { p.Labels = nil }), true},
		{"its address changes", running(func(p *corev1.Pod) { p.Status.PodIPs[0].IP = "10.0.0.2" }), true},
		{"it loses its address", running(func(p *corev1.Pod) { p.Status.PodIPs = nil }), true},
		{"another pod takes its name", running(func(p *corev1.Pod) { p.UID = "v" }), true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := (podChanged{compiled: newShared[policy.Result]()}).Update(event.UpdateEvent{ObjectOld: running(nil), ObjectNew: tc.after}); got != tc.want {
				t.Errorf("got %t, want %t", got, tc.want)
			}
		})
	}
	host := running(func(p *corev1.Pod) { p.Spec.HostNetwork = true })
	if (podChanged{compiled: newShared[policy.Result]()}).Create(event.CreateEvent{Object: host}) || (podChanged{compiled: newShared[policy.Result]()}).Delete(event.DeleteEvent{Object: host}) {
		t.Error("a pod on its host's network causes a run")
	}
}

func TestCacheKeepsWhatTheCompileReads(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u", Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"large": "x"}}}
	pod.Spec.NodeName, pod.Spec.HostNetwork, pod.Spec.Containers = "n", true, []corev1.Container{{Name: "c"}}
	pod.Status.Phase, pod.Status.PodIPs = corev1.PodRunning, []corev1.PodIP{{IP: "10.0.0.1"}}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"a": "b"}}, Status: corev1.NodeStatus{Phase: "x"}}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns", Labels: map[string]string{"a": "b"}}}
	in := policy.Input{Pods: []corev1.Pod{*pod}, Nodes: []corev1.Node{*node}, Namespaces: []corev1.Namespace{*ns}}
	in.Policies = []v1alpha1.MPTCPPolicy{{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}}}
	trimmed := in
	trimmed.Pods = []corev1.Pod{*trim[*corev1.Pod](t, trimPod, pod)}
	trimmed.Nodes = []corev1.Node{*trim[*corev1.Node](t, trimNode, node)}
	trimmed.Namespaces = []corev1.Namespace{*trim[*corev1.Namespace](t, trimNamespace, ns)}
	for _, hostNetwork := range []bool{true, false} {
		in.Pods[0].Spec.HostNetwork, trimmed.Pods[0].Spec.HostNetwork = hostNetwork, hostNetwork
		if diff := cmp.Diff(policy.Compile(in), policy.Compile(trimmed)); diff != "" {
			t.Errorf("the compile differs:\n%s", diff)
		}
	}
	if p := trimmed.Pods[0]; p.Annotations != nil || p.Spec.Containers != nil {
		t.Errorf("the cache keeps what nobody reads: %+v", p)
	}
}

func trim[O client.Object](t *testing.T, transform func(any) (any, error), object O) O {
	t.Helper()
	trimmed, err := transform(object)
	if err != nil {
		t.Fatal(err)
	}
	return trimmed.(O)
}

// BenchmarkStatus judges 20,000 pods on 1,000 nodes, as a run does in which one
// plan changed.
func BenchmarkStatus(b *testing.B) {
	in := policy.Input{Namespaces: []corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "ns"}}}}
	in.Paths = []v1alpha1.MPTCPPath{{ObjectMeta: metav1.ObjectMeta{Name: "blue"}}, {ObjectMeta: metav1.ObjectMeta{Name: "green"}}}
	in.Policies = []v1alpha1.MPTCPPolicy{{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "all"}}}
	for i := range 1000 {
		in.Nodes = append(in.Nodes, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%d", i)}})
	}
	for i := range 20000 {
		pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprintf("pod-%d", i), UID: types.UID(fmt.Sprint(i))}}
		pod.Spec.NodeName, pod.Status.PodIPs = fmt.Sprintf("node-%d", i%1000), []corev1.PodIP{{IP: "10.0.0.1"}}
		in.Pods = append(in.Pods, pod)
	}
	result := policy.Compile(in)
	o := &observation{result: &result, plans: map[string]*v1alpha1.MPTCPNodePlan{}, silence: func(string) string { return "" }}
	for node, spec := range result.Plans {
		plan := &v1alpha1.MPTCPNodePlan{ObjectMeta: metav1.ObjectMeta{Name: node, Generation: 1}, Spec: *spec.DeepCopy()}
		plan.Status.ObservedGeneration = 1
		for _, e := range spec.Endpoints {
			plan.Status.Endpoints = append(plan.Status.Endpoints, v1alpha1.EndpointStatus{UID: e.UID, State: v1alpha1.EndpointProgrammed})
		}
		o.plans[node] = plan
	}
	history, judged := planHistory{}, judgements{}
	for b.Loop() {
		o.plans["node-7"].Generation++
		history.observe(o.plans)
		o.pods = judgePods(o, history, judged)
		if status := newVerdict(o, &result.Policies[0]).status; status.PodsProgrammed == 0 {
			b.Fatal("no pod is programmed")
		}
	}
}
