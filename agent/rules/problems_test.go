// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"errors"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"k8s.io/apimachinery/pkg/api/resource"

	"braid.dev/braid/agent/chains"
	"braid.dev/braid/api/v1alpha1"
)

// askingAndNot are a rule that asks peers and one that does not.
func askingAndNot() []v1alpha1.PlanRule {
	limit := v1alpha1.Action{Type: v1alpha1.ActionRateLimit, RateLimit: &v1alpha1.RateLimit{Rate: resource.MustParse("20M")}}
	asked := limit
	asked.At = v1alpha1.ActionAtPeer
	named := func(name string, action v1alpha1.Action) v1alpha1.PlanRule {
		return v1alpha1.PlanRule{Policy: "MPTCPPolicy/team/web", Rule: v1alpha1.Rule{Name: name, Actions: []v1alpha1.Action{action}}}
	}
	return []v1alpha1.PlanRule{named("ask", asked), named("limit", limit)}
}

func expectOneProblem(t *testing.T, statuses []v1alpha1.RuleStatus, message string) {
	t.Helper()
	if len(statuses) != 1 || statuses[0].Name != "ask" || !statuses[0].Failed || !strings.Contains(statuses[0].Message, message) {
		t.Errorf("the statuses are %+v", statuses)
	}
}

func TestARuleAtThePeerFailsWhereSocketsCannotBeGoverned(t *testing.T) {
	expectOneProblem(t, addUnasked(nil, askingAndNot(), "no cgroup2 tree"), "peers cannot be asked: no cgroup2 tree")
	if statuses := addUnasked(nil, askingAndNot(), ""); len(statuses) > 0 {
		t.Errorf("without a failure the statuses are %+v", statuses)
	}
}

func TestOfAVMRulesAtThePeerHoldAndThoseAtItsSocketsFail(t *testing.T) {
	rules := askingAndNot()
	if statuses := new(loadedPrograms).addGuestProblems(nil, rules); len(statuses) > 0 {
		t.Errorf("the statuses are %+v", statuses)
	}
	rules[0].Actions[0] = v1alpha1.Action{Type: v1alpha1.ActionCongestion, Congestion: &v1alpha1.Congestion{Algorithm: "cubic"}}
	expectOneProblem(t, new(loadedPrograms).addGuestProblems(nil, rules), "an action Congestion is for sockets of pods")
}

func TestOnlyRulesThatAClusterNetworkHidesThingsFromFail(t *testing.T) {
	rules := askingAndNot()
	rules[0].Match = &v1alpha1.Match{Selectors: v1alpha1.Selectors{Paths: []v1alpha1.PathName{"green"}, Direction: v1alpha1.DirectionToEndpoint}}
	rules[1].Match = &v1alpha1.Match{Selectors: v1alpha1.Selectors{Direction: v1alpha1.DirectionFromEndpoint}}
	expectOneProblem(t, addTo(nil, rules, matchesPaths, pathless), "the rule matches no path")
	expectOneProblem(t, addTo(nil, rules, isForReceived, bypass), "does not pass its interface")
}

// As Cilium's eBPF host routing does, whose programs are told by their names.
func TestAPodWhoseAnswersPassItsInterfaceByIsKnown(t *testing.T) {
	const received, answered = 5000, 2
	for name, c := range map[string]struct {
		counted netlink.LinkStatistics
		want    bool
	}{
		"answers elsewhere": {netlink.LinkStatistics{RxPackets: received, TxPackets: answered}, true},
		"answers here":      {netlink.LinkStatistics{RxPackets: received, TxPackets: received / 2}, false},
		"little sent":       {netlink.LinkStatistics{RxPackets: enoughSent - 1}, false},
	} {
		if got := passItBy(&c.counted); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

func TestARuleFailsWhoseMatchAsksAProgramThatIsRefused(t *testing.T) {
	rules := []v1alpha1.PlanRule{{Policy: "ClusterMPTCPPolicy/edge", Rule: v1alpha1.Rule{
		Name:    "ask",
		Match:   &v1alpha1.Match{Any: []v1alpha1.NestedMatch{{Not: &v1alpha1.Selectors{Program: &v1alpha1.ProgramSelector{Name: "large"}}}}},
		Actions: []v1alpha1.Action{{Type: v1alpha1.ActionDrop}},
	}}}
	loaded := loadedPrograms{refused: map[chains.ProgramName]error{{Policy: "edge", Name: "large"}: errors.New("the verifier refuses it")}}
	expectOneProblem(t, loaded.addProblems(nil, rules, v1alpha1.SubflowManagerAgent), "program large: the verifier refuses it")
	expectOneProblem(t, loaded.addGuestProblems(nil, rules), "program large: the verifier refuses it")
}
