// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"braid.dev/braid/api/v1alpha1"
)

func parseRules(t *testing.T, text string) []v1alpha1.Rule {
	t.Helper()
	var rules []v1alpha1.Rule
	if err := yaml.UnmarshalStrict([]byte(text), &rules); err != nil {
		t.Fatal(err)
	}
	return rules
}

// problemsOf compiles rules as those of a cluster's policy with these programs.
func problemsOf(rules []v1alpha1.Rule, programs ...v1alpha1.Program) []string {
	in := oneNode(runningPod("pod", "10.0.0.1"))
	in.Policies = nil
	in.Namespaces[0].Labels = map[string]string{"team": "shop"}
	in.ProgramObjects = map[ProgramObject]string{{ConfigMap: "programs", Key: "known.o"}: "1"}
	p := v1alpha1.ClusterMPTCPPolicy{ObjectMeta: metav1.ObjectMeta{Name: "all"}}
	p.Spec.NamespaceSelector.MatchLabels = map[string]string{"team": "shop"}
	p.Spec.Rules, p.Spec.Programs = rules, programs
	in.ClusterPolicies = append(in.ClusterPolicies, p)
	result := Compile(in)
	var told []string
	for _, problem := range result.Policies[0].RuleProblems {
		told = append(told, problem.Reason+" "+problem.String())
	}
	if applied := result.Plans["node"].Endpoints[0].Chain != ""; applied == (len(told) > 0) {
		told = append(told, fmt.Sprintf("the rules are applied: %v", applied))
	}
	return told
}

func TestRules(t *testing.T) {
	programs := []v1alpha1.Program{
		{Name: "action", File: "action.o"},
		{Name: "control", Type: v1alpha1.ProgramCongestion, ConfigMap: &v1alpha1.ProgramConfigMap{Name: "programs", Key: "known.o"}},
		{Name: "lent", Type: v1alpha1.ProgramSchedule, File: "lent.o"},
		{Name: "lost", Type: v1alpha1.ProgramSchedule, ConfigMap: &v1alpha1.ProgramConfigMap{Name: "programs", Key: "gone.o"}},
	}
	for _, tc := range []struct {
		name, rules string
		want        []string
	}{
		{name: "of different matches never contradict each other", rules: `
- {name: a, match: {backup: true}, actions: [{type: SetBackup, setBackup: {backup: false}}, {type: Drop}]}
- {name: b, match: {backup: false}, actions: [{type: SetBackup, setBackup: {backup: true}}, {type: Drop}]}`},
		{name: "with the same match may do different things", rules: `
- {name: a, actions: [{type: RateLimit, rateLimit: {rate: 1M}}, {type: SetBackup, setBackup: {backup: true}}]}
- {name: b, actions: [{type: RateLimit, rateLimit: {rate: 9M, per: Endpoint}}, {type: SetBackup, setBackup: {backup: true}}]}`},
		{name: "behind a program, which may leave actions out, contradict nothing", rules: `
- {name: a, actions: [{type: RunProgram, runProgram: {program: action}}, {type: SetBackup, setBackup: {backup: true}}, {type: Drop}]}
- {name: b, actions: [{type: SetBackup, setBackup: {backup: false}}]}`},
		{name: "that name what exists work", rules: `
- name: a
  match: {paths: [blue]}
  actions:
  - {type: RunProgram, runProgram: {program: action}}
  - {type: Congestion, congestion: {algorithm: control}}
  - {type: Schedule, schedule: {strategy: EarliestCompletionFirst}}
- {name: b, match: {token: "0x00000001"}, actions: [{type: Congestion, congestion: {algorithm: cubic}}]}`},
		{name: "that name an unknown path, however deep, are refused", rules: `
- {name: a, match: {paths: [blue, red]}, actions: [{type: Record}]}
- {name: b, match: {not: {any: [{backup: true}, {paths: [green]}]}}, actions: [{type: Drop}]}`, want: []string{
			"PathNotFound rule a: spec.rules[0].match.paths[1]: no MPTCPPath is named red",
			"PathNotFound rule b: spec.rules[1].match.not.any[1].paths[0]: no MPTCPPath is named green",
		}},
		{name: "that name a program which is not there or of another type are refused", rules: `
- {name: a, actions: [{type: RunProgram, runProgram: {program: none}}, {type: RunProgram, runProgram: {program: control}}]}
- {name: b, actions: [{type: Schedule, schedule: {strategy: lost}}, {type: Congestion, congestion: {algorithm: action}}]}`, want: []string{
			"ProgramNotFound rule a: spec.rules[0].actions[0].runProgram.program: none of spec.programs is named none",
			"ProgramNotFound rule a: spec.rules[0].actions[1].runProgram.program: the program control has type Congestion, and this needs type Action",
			"ProgramNotFound rule b: spec.programs[lost].configMap: Braid's namespace has no ConfigMap programs with gone.o in its binaryData",
			"ProgramNotFound rule b: spec.rules[1].actions[1].congestion.algorithm: the program action has type Action, and this needs type Congestion",
		}},
		{name: "whose match asks a program which is not there or of another type are refused", rules: `
- {name: a, match: {program: {name: none}}, actions: [{type: Record}]}
- {name: b, match: {any: [{backup: true}, {not: {program: {name: control, value: 1}}}]}, actions: [{type: Drop}]}`, want: []string{
			"ProgramNotFound rule a: spec.rules[0].match.program.name: none of spec.programs is named none",
			"ProgramNotFound rule b: spec.rules[1].match.any[1].not.program.name: the program control has type Congestion, and this needs type Action",
		}},
		{name: "whose matches ask the same program, which may answer otherwise each time, contradict nothing", rules: `
- {name: a, match: {program: {name: action}}, actions: [{type: SetBackup, setBackup: {backup: true}}, {type: Drop}]}
- {name: b, match: {program: {name: action}}, actions: [{type: SetBackup, setBackup: {backup: false}}]}`},
		{name: "that schedule what a program selects are refused", rules: `
- {name: a, match: {not: {program: {name: action}}}, actions: [{type: Schedule, schedule: {strategy: EarliestCompletionFirst}}]}`, want: []string{
			"ImpossibleMatch rule a: spec.rules[0].actions[0]: Schedule cannot honour the rule's match: it schedules connections, and program answers for each packet",
		}},
		{name: "that always apply both and want opposites are refused", rules: `
- {name: a, actions: [{type: SetBackup, setBackup: {backup: true}}, {type: SuppressAddAddr}]}
- {name: b, match: {direction: ToEndpoint}, actions: [{type: RateLimit, rateLimit: {rate: 1M, per: Connection}}]}
- {name: c, actions: [{type: ReleaseAddAddr}, {type: SetBackup, setBackup: {backup: false}}]}
- {name: d, match: {direction: ToEndpoint}, actions: [{type: RateLimit, rateLimit: {rate: 2M, per: Connection}}]}`, want: []string{
			"ContradictingRules rule c: spec.rules[2].actions[0]: it contradicts SuppressAddAddr of rule a, which matches the same packets: addresses are either hidden or given back",
			"ContradictingRules rule c: spec.rules[2].actions[1]: it contradicts SetBackup of rule a, which matches the same packets: a subflow is either a backup or not",
			"ContradictingRules rule d: spec.rules[3].actions[0]: it contradicts RateLimit of rule b, which matches the same packets: there is one rate for each Connection",
		}},
		{name: "that schedule what the match leaves out are refused", rules: `
- {name: a, match: {paths: [blue]}, actions: [{type: Schedule, schedule: {strategy: lent}}]}
- {name: b, match: {any: [{sent: {subflow: {from: 1M}}}, {backup: true}]}, actions: [{type: Schedule, schedule: {strategy: EarliestCompletionFirst}}]}
- {name: c, match: {direction: ToEndpoint}, actions: [{type: Schedule, schedule: {strategy: EarliestCompletionFirst}}]}
- {name: d, match: {direction: FromEndpoint, destination: {ports: [{port: 80}]}}, actions: [{type: Schedule, schedule: {strategy: EarliestCompletionFirst}}]}`, want: []string{
			"ImpossibleMatch rule a: spec.rules[0].actions[0]: Schedule cannot honour the rule's match: a program schedules every connection of the pods; leave match out",
			"ImpossibleMatch rule b: spec.rules[1].actions[0]: Schedule cannot honour the rule's match: it schedules connections, and packetTypes, sequence and sent select some of their packets",
			"ImpossibleMatch rule c: spec.rules[2].actions[0]: Schedule cannot do anything for the packets that the rule matches: it distributes what the pod sends, and others send them",
		}},
		{name: "with two strategies or congestion controls for the same packets are refused", rules: `
- {name: a, actions: [{type: Congestion, congestion: {algorithm: cubic}}]}
- {name: b, actions: [{type: Congestion, congestion: {algorithm: reno}}, {type: Congestion, congestion: {algorithm: bbr}}]}`, want: []string{
			"ContradictingRules rule b: spec.rules[1].actions[0]: it contradicts Congestion of rule a, which matches the same packets: a subflow has one congestion control",
			"ContradictingRules rule b: spec.rules[1].actions[1]: it contradicts Congestion of rule a, which matches the same packets: a subflow has one congestion control",
			"ContradictingRules rule b: spec.rules[1].actions[1]: it contradicts Congestion of rule b, which matches the same packets: a subflow has one congestion control",
		}},
		{name: "behind one that lets nothing through are refused", rules: `
- {name: a, match: {packetTypes: [MPJoin]}, actions: [{type: Reset}]}
- {name: b, match: {packetTypes: [MPJoin]}, actions: [{type: Record}]}
- {name: c, match: {packetTypes: [SYN]}, actions: [{type: Record}]}
- {name: d, actions: [{type: Drop}]}
- {name: e, match: {packetTypes: [FIN]}, actions: [{type: Record}]}`, want: []string{
			"ContradictingRules rule b: spec.rules[1]: it never runs: rule a before it drops or resets everything that it matches",
			"ContradictingRules rule e: spec.rules[4]: it never runs: rule d before it drops or resets everything that it matches",
		}},
		{name: "whose match can never hold are refused", rules: `
- {name: a, match: {direction: ToEndpoint, all: [{all: [{direction: FromEndpoint}]}]}, actions: [{type: Record}]}
- {name: b, match: {all: [{backup: true}, {backup: false}]}, actions: [{type: Record}]}
- {name: c, match: {source: {cidr: 10.0.0.0/8}, destination: {cidr: "fd00::/8"}}, actions: [{type: Record}]}
- {name: d, match: {addressPair: [10.0.0.1, 10.0.0.2], any: [{direction: ToEndpoint, all: [{direction: FromEndpoint}]}]}, actions: [{type: Record}]}
- {name: e, match: {packetTypes: [Reset, FastClose]}, actions: [{type: RateLimit, rateLimit: {rate: 1M, mechanism: Window}}]}
- {name: f, match: {all: [{packetTypes: [SYN, MPJoin]}]}, actions: [{type: SuppressAddAddr}]}
- {name: g, match: {direction: ToEndpoint}, actions: [{type: RateLimit, rateLimit: {rate: 1M, mechanism: Pace}}]}`, want: []string{
			"ImpossibleMatch rule a: spec.rules[0].match.all[0].all[0].direction: no packet is both ToEndpoint and FromEndpoint: the match can never hold",
			"ImpossibleMatch rule b: spec.rules[1].match.all[1].backup: no subflow is and is not a backup at once: the match can never hold",
			"ImpossibleMatch rule c: spec.rules[2].match: its addresses are of both IPv4 and IPv6, and a packet has one of them: the match can never hold",
			"ImpossibleMatch rule d: spec.rules[3].match.any[0].all[0].direction: no packet is both ToEndpoint and FromEndpoint: the match can never hold",
			"ImpossibleMatch rule e: spec.rules[4].actions[0]: RateLimit cannot do anything for the packets that the rule matches: it governs what comes after them, and nothing does",
			"ImpossibleMatch rule f: spec.rules[5].actions[0]: SuppressAddAddr cannot do anything for the packets that the rule matches: none of them announces an address; match AddAddr, or leave packetTypes out",
			"ImpossibleMatch rule g: spec.rules[6].actions[0]: RateLimit cannot do anything for the packets that the rule matches: mechanism Pace governs the pod's own sockets, and others send them; use Auto, Window or Police",
		}},
		{name: "may ask the peer for another rate than the pod's own", rules: `
- {name: a, match: {paths: [blue]}, actions: [{type: RateLimit, rateLimit: {rate: 1M}}, {type: Congestion, congestion: {algorithm: cubic}}]}
- {name: b, match: {paths: [blue]}, actions: [{type: RateLimit, at: Peer, rateLimit: {rate: 2M}}, {type: Congestion, at: Peer, congestion: {algorithm: bbr}}]}`},
		{name: "that ask the peer twice contradict each other", rules: `
- {name: a, actions: [{type: Congestion, at: Peer, congestion: {algorithm: cubic}}]}
- {name: b, actions: [{type: Congestion, at: Peer, congestion: {algorithm: bbr}}]}`, want: []string{
			"ContradictingRules rule b: spec.rules[1].actions[0]: it contradicts Congestion of rule a, which matches the same packets: a subflow has one congestion control",
		}},
		{name: "that ask the peer for what it cannot do are refused", rules: `
- {name: a, actions: [{type: Record, at: Peer}]}
- {name: b, actions: [{type: RateLimit, at: Peer, rateLimit: {rate: 1M, per: Endpoint}}]}
- {name: c, match: {direction: FromEndpoint}, actions: [{type: RateLimit, at: Peer, rateLimit: {rate: 1M}}]}
- {name: d, actions: [{type: Congestion, at: Peer, congestion: {algorithm: control}}]}
- {name: e, actions: [{type: Schedule, at: Peer, schedule: {strategy: control}}]}
- {name: f, match: {direction: FromEndpoint}, actions: [{type: Schedule, at: Peer, schedule: {strategy: EarliestCompletionFirst}}]}`, want: []string{
			"InvalidRule rule a: spec.rules[0].actions[0].at: peers can be asked for Congestion, RateLimit, Schedule, and not for Record",
			"InvalidRule rule b: spec.rules[1].actions[0].rateLimit: with at: Peer each subflow has the rate and the peer paces it; leave per and mechanism out",
			"ImpossibleMatch rule c: spec.rules[2].actions[0]: RateLimit cannot do anything for the packets that the rule matches: at: Peer bounds what the pod receives; leave direction out, or match ToEndpoint",
			"InvalidRule rule d: spec.rules[3].actions[0].congestion.algorithm: control is a program of this policy; a peer is asked for one that its own kernel has by name",
			"InvalidRule rule e: spec.rules[4].actions[0].schedule.strategy: control is a program of this policy; a peer is asked for EarliestCompletionFirst",
			"ImpossibleMatch rule f: spec.rules[5].actions[0]: Schedule cannot do anything for the packets that the rule matches: at: Peer distributes what the pod receives; leave direction out, or match ToEndpoint",
		}},
		{name: "whose alternatives can hold work", rules: `
- {name: a, match: {direction: ToEndpoint, any: [{direction: FromEndpoint}, {direction: ToEndpoint}]}, actions: [{type: Record}]}
- {name: b, match: {not: {direction: ToEndpoint}, packetTypes: [Reset, FIN]}, actions: [{type: SetBackup, setBackup: {backup: true}}]}`},
		{name: "that no API server has seen are checked all the same", rules: `
- {name: a, actions: [{type: RateLimit}, {type: SetBackup, setBackup: {}}, {type: RunProgram}]}
- {name: b, match: {sent: {subflow: {from: 2M, to: 1M}}}, actions: [{type: RateLimit, rateLimit: {rate: "1"}}]}`, want: []string{
			"InvalidRule rule a: spec.rules[0].actions[0].rateLimit: type RateLimit needs it",
			"InvalidRule rule a: spec.rules[0].actions[1].setBackup: type SetBackup needs it",
			"InvalidRule rule a: spec.rules[0].actions[2].runProgram: type RunProgram needs it",
			"InvalidRule rule b: spec.rules[1].match.sent.subflow: from must not be negative and must be below to",
			"InvalidRule rule b: spec.rules[1].actions[0].rateLimit.rate: must be a rate in bits per second from 8k to 10T",
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, problemsOf(parseRules(t, tc.rules), programs...)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestRulesOfAPathThatTwoSelectorsMustNameInCommon(t *testing.T) {
	rules := parseRules(t, `[{name: a, match: {paths: [blue], all: [{paths: [green]}]}, actions: [{type: Record}]}]`)
	got := problemsOf(rules)
	if len(got) != 2 || !strings.Contains(got[1], "spec.rules[0].match.all[0].paths: a subflow goes over one path") {
		t.Errorf("got %q", got)
	}
}

// manyRules are rules with different matches.
func manyRules(count, actions int) []v1alpha1.Rule {
	var rules []v1alpha1.Rule
	for i := range count {
		rule := v1alpha1.Rule{Name: fmt.Sprintf("r%d", i), Match: &v1alpha1.Match{Selectors: v1alpha1.Selectors{Token: fmt.Sprintf("0x%08x", i)}}}
		for range actions {
			rule.Actions = append(rule.Actions, v1alpha1.Action{Type: v1alpha1.ActionRecord})
		}
		rules = append(rules, rule)
	}
	return rules
}

func TestRulesThatAreMoreThanAChainCanHoldAreRefused(t *testing.T) {
	wide := manyRules(33, 1)
	for i := range wide {
		wide[i].Match.Subflow = &v1alpha1.SubflowTuple{SourceAddress: "10.0.0.1", DestinationAddress: "10.0.0.2", SourcePort: 1, DestinationPort: 2}
	}
	for _, tc := range []struct {
		name  string
		rules []v1alpha1.Rule
		want  []string
	}{
		{"as many as there can be", manyRules(64, 2), nil},
		{"too many rules and actions", manyRules(65, 2), []string{"TooManyRules spec.rules: the policy has 65 rules, and a chain can have 64; 130 actions, and a chain can have 128"}},
		{"too many selectors", wide, []string{"TooManyRules spec.rules: the policy has 297 selectors, and a chain can have 256"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, problemsOf(tc.rules)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestRulesThatNeverRunBehindThoseOfTheClusterAreNamed(t *testing.T) {
	in := oneNode(runningPod("pod", "10.0.0.1"))
	in.Namespaces[0].Labels = map[string]string{"team": "shop"}
	in.Policies[0].Spec.Rules = parseRules(t, `[
		{name: joins, match: {packetTypes: [MPJoin]}, actions: [{type: Record}]},
		{name: all, actions: [{type: Record}]},
		{name: joins-too, match: {packetTypes: [MPJoin]}, actions: [{type: ReportSubflow}]}]`)
	cluster := v1alpha1.ClusterMPTCPPolicy{ObjectMeta: metav1.ObjectMeta{Name: "cluster"}}
	cluster.Spec.NamespaceSelector.MatchLabels = map[string]string{"team": "shop"}
	cluster.Spec.Rules = parseRules(t, `[{name: watch, actions: [{type: Record}]}, {name: refuse, match: {packetTypes: [MPJoin]}, actions: [{type: Reset}]}]`)
	cluster.Spec.Priority = -1
	in.ClusterPolicies = append(in.ClusterPolicies, cluster)
	result := Compile(in)
	namespaced := result.Policies[0]
	if namespaced.Policy.Kind != KindPolicy {
		namespaced = result.Policies[1]
	}
	want := []RulesShadowed{{
		Pod: namespaced.Decides[0], Rule: "joins", Rules: 2,
		By: v1alpha1.PolicyReference{Kind: KindClusterPolicy, Name: "cluster"}, ByRule: "refuse",
	}}
	if diff := cmp.Diff(want, namespaced.RulesShadowed); diff != "" {
		t.Error(diff)
	}
	const why = "rule joins never runs: rule refuse of ClusterMPTCPPolicy/cluster before it drops or resets everything that it matches"
	if text := result.Decisions[0].String(); !strings.Contains(text, why) {
		t.Errorf("the explanation does not say so: %s", text)
	}
	if got := len(result.Plans["node"].Chains[0].Rules); got != 5 {
		t.Errorf("the chain has %d rules, want all 5", got)
	}
}

func TestBlocksAreTheOnesThatSaySomething(t *testing.T) {
	spec := v1alpha1.PolicyRules{Subflows: v1alpha1.SubflowRules{Manager: v1alpha1.SubflowManagerKernel}}
	if got := blocksOf(&spec); len(got) != 0 {
		t.Errorf("a policy of defaults has %v", got)
	}
	spec.Paths.Allowed, spec.Sockets.Upgrade, spec.Rules = []v1alpha1.PathName{"blue"}, true, make([]v1alpha1.Rule, 1)
	spec.Subflows.Manager = v1alpha1.SubflowManagerAgent
	if diff := cmp.Diff([]string{"spec.paths", "spec.subflows", "spec.sockets", "spec.rules"}, blocksOf(&spec)); diff != "" {
		t.Error(diff)
	}
}

func TestRulesThatAreTooManyTogetherLeaveThoseOfTheNamespaceOut(t *testing.T) {
	in := oneNode(runningPod("pod", "10.0.0.1"))
	in.Namespaces[0].Labels = map[string]string{"team": "shop"}
	in.Policies[0].Spec.Rules = manyRules(40, 1)
	cluster := v1alpha1.ClusterMPTCPPolicy{ObjectMeta: metav1.ObjectMeta{Name: "cluster"}}
	cluster.Spec.NamespaceSelector.MatchLabels = map[string]string{"team": "shop"}
	cluster.Spec.Rules = manyRules(25, 1)
	in.ClusterPolicies = append(in.ClusterPolicies, cluster)
	result := Compile(in)
	const why = "together with the rules of ClusterMPTCPPolicy cluster the chain has 65 rules, and a chain can have 64"
	namespaced := result.Policies[1]
	if len(namespaced.RulesLeftOut) != 1 || namespaced.RulesLeftOut[0].Reason != why || len(namespaced.RuleProblems) > 0 {
		t.Errorf("the namespace's policy says %+v, %+v", namespaced.RulesLeftOut, namespaced.RuleProblems)
	}
	if got := len(result.Policies[0].RulesOnly); got != 1 {
		t.Errorf("the cluster's rules run for %d pods, want 1", got)
	}
	if got := result.Plans["node"].Chains[0].Rules; len(got) != 25 {
		t.Errorf("the chain has %d rules, want those of the cluster's policy alone", len(got))
	}
	if text := result.Decisions[0].String(); !strings.Contains(text, why) {
		t.Errorf("the decision does not say why: %s", text)
	}
}

func TestANodeHoldsWhatAnObjectCanAndSaysSo(t *testing.T) {
	var pods []corev1.Pod
	in := oneNode()
	in.Policies = nil
	for i := range 60 {
		name := fmt.Sprintf("pod-%02d", i)
		pod := runningPod(name, "10.0.0.1")
		pod.Labels = map[string]string{"app": name}
		pods = append(pods, pod)
		p := v1alpha1.MPTCPPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}}
		p.Spec.PodSelector.MatchLabels = pod.Labels
		p.Spec.Rules = manyRules(64, 2)
		for j := range p.Spec.Rules {
			p.Spec.Rules[j].Match.Source = &v1alpha1.Side{CIDR: "2001:db8:1234:5678:9abc:def0:1234:0/112"}
		}
		in.Policies = append(in.Policies, p)
	}
	in.Pods = pods
	result := Compile(in)
	text, err := json.Marshal(result.Plans["node"])
	if err != nil {
		t.Fatal(err)
	}
	if len(text) > 600<<10 {
		t.Errorf("the plan has %d bytes", len(text))
	}
	first, last := result.Plans["node"].Endpoints[0], result.Plans["node"].Endpoints[59]
	if first.Chain == "" || last.Chain != "" {
		t.Errorf("the chains of the first and the last pod are %q and %q", first.Chain, last.Chain)
	}
	if got := result.Policies[59].RulesLeftOut; len(got) != 1 || got[0].Reason != "the different rules of the pods of namespace shop take more than 128 KiB on node node" {
		t.Errorf("the last policy says %+v", got)
	}
}

// TestRulesOfSomeTenantsLeaveRoomForThoseOfOthersAndOfTheCluster: the first by name
// take as much as they get.
func TestRulesOfSomeTenantsLeaveRoomForThoseOfOthersAndOfTheCluster(t *testing.T) {
	in := oneNode()
	in.Policies, in.Namespaces = nil, nil
	for i := range 100 {
		namespace, name := fmt.Sprintf("greedy-%d", i/50), fmt.Sprintf("pod-%02d", i)
		if i == 99 {
			namespace = "modest"
		}
		pod := runningPod(name, "10.0.0.1")
		pod.Namespace, pod.Labels = namespace, map[string]string{"app": name}
		in.Pods = append(in.Pods, pod)
		p := v1alpha1.MPTCPPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
		p.Spec.PodSelector.MatchLabels = pod.Labels
		p.Spec.Rules = manyRules(50, 2)
		in.Policies = append(in.Policies, p)
	}
	for _, name := range []string{"greedy-0", "greedy-1", "modest"} {
		in.Namespaces = append(in.Namespaces, corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"tenant": "yes"}}})
	}
	ground := v1alpha1.ClusterMPTCPPolicy{ObjectMeta: metav1.ObjectMeta{Name: "ground"}}
	ground.Spec.Priority, ground.Spec.NamespaceSelector.MatchLabels = -1, map[string]string{"tenant": "yes"}
	ground.Spec.Rules = parseRules(t, `[{name: ground, actions: [{type: Record}]}]`)
	in.ClusterPolicies = []v1alpha1.ClusterMPTCPPolicy{ground}
	result := Compile(in)
	plan := result.Plans["node"]
	own := map[string]int{}
	for _, e := range plan.Endpoints {
		chain := findChain(plan, e.Chain)
		if chain == nil || chain.Rules[0].Name != "ground" {
			t.Errorf("%s does without the cluster's rules", e.Name)
		} else if len(chain.Rules) > 1 {
			own[e.Namespace]++
		}
	}
	if own["modest"] != 1 || own["greedy-0"] == 0 || own["greedy-0"] == 50 || own["greedy-1"] == 0 {
		t.Errorf("pods with their own rules: %v", own)
	}
	if got := result.Policies[0]; len(got.RulesLeftOut) != 0 || len(got.RulesOnly) != 100 {
		t.Errorf("the cluster's policy does without %d pods, and its rules run for %d", len(got.RulesLeftOut), len(got.RulesOnly))
	}
	last := result.Decisions[49].String()
	if !strings.Contains(last, "rules of MPTCPPolicy greedy-0/pod-49: ") || !strings.Contains(last, "none of them is applied: the different rules of the pods of namespace greedy-0 take more than 128 KiB") {
		t.Errorf("the decision does not say so: %s", last)
	}
}

func TestRulesOfANamespaceHaveNoPrograms(t *testing.T) {
	in := oneNode(runningPod("pod", "10.0.0.1"))
	in.Policies[0].Spec.Rules = parseRules(t, `[{name: a, actions: [{type: RunProgram, runProgram: {program: x}}]}, {name: b, actions: [{type: Schedule, schedule: {strategy: x}}]}]`)
	result := Compile(in)
	if got := result.Policies[0].RuleProblems; len(got) != 2 || got[0].Reason != v1alpha1.ReasonProgramNotFound || got[1].Reason != v1alpha1.ReasonProgramNotFound {
		t.Errorf("got %v", got)
	}
	if got := result.Plans["node"]; len(got.Chains) > 0 || got.Endpoints[0].Chain != "" {
		t.Errorf("the rules are applied: %+v", got)
	}
}

func TestAChainIsNamedByWhatItDoes(t *testing.T) {
	name := func(rules string) string {
		in := oneNode(runningPod("pod", "10.0.0.1"))
		in.Policies[0].Spec.Rules = parseRules(t, rules)
		return Compile(in).Plans["node"].Endpoints[0].Chain
	}
	first := name(`[{name: a, actions: [{type: RateLimit, rateLimit: {rate: 1M}}]}]`)
	for _, tc := range []struct {
		name, rules string
		equal       bool
	}{
		{"another way to write the same rate", `[{name: a, actions: [{type: RateLimit, rateLimit: {rate: 1000k}}]}]`, true},
		{"defaults that are given", `[{name: a, actions: [{type: RateLimit, rateLimit: {rate: 1M, per: Subflow, mechanism: Auto}}]}]`, true},
		{"another rate", `[{name: a, actions: [{type: RateLimit, rateLimit: {rate: 2M}}]}]`, false},
		{"another name", `[{name: b, actions: [{type: RateLimit, rateLimit: {rate: 1M}}]}]`, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := name(tc.rules); (got == first) != tc.equal {
				t.Errorf("got %s and %s, equal: want %v", first, got, tc.equal)
			}
		})
	}
}

func TestAProgramThatOnlyAMatchAsksIsInThePlan(t *testing.T) {
	var match v1alpha1.Match
	if err := yaml.UnmarshalStrict([]byte("all: [{any: [{program: {name: deep, value: 7}}]}]\nnot: {program: {name: second}}"), &match); err != nil {
		t.Fatal(err)
	}
	rules := []v1alpha1.PlanRule{{Policy: "ClusterMPTCPPolicy/edge", Rule: v1alpha1.Rule{Name: "a", Match: &match, Actions: []v1alpha1.Action{{Type: v1alpha1.ActionDrop}}}}}
	for _, program := range []string{"deep", "second"} {
		if !refers(rules, "ClusterMPTCPPolicy/edge", program) {
			t.Errorf("no rule refers to %s", program)
		}
	}
	if refers(rules, "ClusterMPTCPPolicy/other", "deep") || refers(rules, "ClusterMPTCPPolicy/edge", "third") {
		t.Error("they refer to programs that nobody names")
	}
	if excess := overLimit(append(rules, make([]v1alpha1.PlanRule, 63)...)); excess != "" {
		t.Errorf("64 rules have %s", excess)
	}
	rules[0].Actions = slices.Repeat(rules[0].Actions, v1alpha1.MaxActions-1)
	if excess := overLimit(rules); excess != "129 actions, and a chain can have 128" {
		t.Errorf("127 actions and two programs in a match have %q", excess)
	}
}
