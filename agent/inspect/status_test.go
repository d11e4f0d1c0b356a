// SPDX-License-Identifier: Apache-2.0

package inspect_test

import (
	"slices"
	"testing"

	"braid.dev/braid/agent/inspect"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/agentapi"
)

const policy = "MPTCPPolicy/team/web"

func planRule(name string, actions ...v1alpha1.ActionType) v1alpha1.PlanRule {
	rule := v1alpha1.PlanRule{Rule: v1alpha1.Rule{Name: name}, Policy: policy}
	for _, action := range actions {
		rule.Actions = append(rule.Actions, v1alpha1.Action{Type: action})
	}
	return rule
}

// limited are this many subflows that a rule limits.
func limited(count int, rule string, mechanism v1alpha1.RateLimitMechanism, why agentapi.Why) []agentapi.Subflow {
	limit := agentapi.Limit{Policy: policy, Rule: rule, InUse: mechanism, Why: why}
	return slices.Repeat([]agentapi.Subflow{{Limits: []agentapi.Limit{limit}}}, count)
}

func over(subflows []agentapi.Subflow) []agentapi.Subflow {
	for i := range subflows {
		subflows[i].Ended = true
	}
	return subflows
}

func TestTheStatusOfARuleSaysWhatLimitsAndWhy(t *testing.T) {
	const pace, window, police = v1alpha1.RateLimitPace, v1alpha1.RateLimitWindow, v1alpha1.RateLimitPolice
	before := []v1alpha1.RuleStatus{{Policy: policy, Name: "slow", Mechanism: "Pace", Message: "Pace: the pod's own sockets"}}
	tests := map[string]struct {
		subflows           []agentapi.Subflow
		before             []v1alpha1.RuleStatus
		mechanism, message string
	}{
		"the pod's sockets are paced": {
			limited(3, "slow", pace, agentapi.WhyOwnSocket), nil, "Pace", "Pace: the pod's own sockets",
		},
		"the sender is elsewhere": {
			limited(1, "slow", window, agentapi.WhyNoSocket), nil, "Window", "Window: the sender is not on this node",
		},
		"several ways are told in a fixed order": {
			slices.Concat(limited(1, "slow", police, agentapi.WhyNoSYN), limited(4, "slow", window, agentapi.WhyNoSocket)), nil,
			"Window, Police",
			"Window: the sender is not on this node (most subflows); Police: the SYN was not seen (some subflows)",
		},
		"one mechanism for two reasons is named once": {
			slices.Concat(limited(1, "slow", police, agentapi.WhyShortRTT), limited(1, "slow", police, agentapi.WhyNoSYN)), nil,
			"Police",
			"Police: the SYN was not seen (some subflows); Police: the RTT is too short for a window (some subflows)",
		},
		"a stranger's sockets cannot be paced": {
			slices.Concat(limited(3, "slow", pace, agentapi.WhyAsked), limited(1, "slow", "", agentapi.WhyNoSocket)), nil, "Pace",
			"Pace: the rule insists on it (most subflows); not enforced: the sender is not on this node, and Pace governs a pod's own sockets alone (some subflows)",
		},
		"nothing is enforced yet": {
			limited(1, "slow", "", agentapi.WhyNoRTT), nil, "", "not enforced yet: the RTT is not measured yet",
		},
		"a rule without subflows says what it said before": {
			nil, before, "Pace", "Pace: the pod's own sockets",
		},
		"subflows count more than what was before": {
			limited(1, "slow", window, agentapi.WhyNoSocket), before, "Window", "Window: the sender is not on this node",
		},
		"subflows that are over do not count beside others": {
			slices.Concat(limited(1, "slow", window, agentapi.WhyNoSocket), over(limited(5, "slow", "", agentapi.WhyNoRTT))), nil,
			"Window", "Window: the sender is not on this node",
		},
		"subflows that are over count where there are no others": {
			over(limited(5, "slow", pace, agentapi.WhyOwnSocket)), nil, "Pace", "Pace: the pod's own sockets",
		},
		"limits of other rules do not count": {
			slices.Concat(limited(1, "slow", pace, agentapi.WhyAsked), limited(9, "other", police, agentapi.WhyNoSYN)), nil,
			"Pace", "Pace: the rule insists on it",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			rules := []v1alpha1.PlanRule{planRule("refuse", v1alpha1.ActionReset), planRule("slow", v1alpha1.ActionRecord, v1alpha1.ActionRateLimit)}
			want := []v1alpha1.RuleStatus{{Policy: policy, Name: "slow", Mechanism: test.mechanism, Message: test.message}}
			if got := inspect.StatusOf(rules, test.subflows, test.before); !slices.Equal(got, want) {
				t.Errorf("the status is %+v, want %+v", got, want)
			}
		})
	}
}

func TestARuleThatAsksPeersSaysThatTheyDoNotAnswer(t *testing.T) {
	rules := []v1alpha1.PlanRule{planRule("ask", v1alpha1.ActionRateLimit), planRule("choose", v1alpha1.ActionCongestion)}
	rules[0].Actions[0].At, rules[1].Actions[0].At = v1alpha1.ActionAtPeer, v1alpha1.ActionAtPeer
	got := inspect.StatusOf(rules, nil, nil)
	if len(got) != 2 || got[0].Mechanism != "Ask" || got[0].Failed || got[0].Message != got[1].Message {
		t.Errorf("the status is %+v", got)
	}
	if inspect.Limits(rules) {
		t.Error("what peers are asked for limits subflows here")
	}
}

func TestARuleAboutWhichThereIsNothingToSayHasNoStatus(t *testing.T) {
	rules := []v1alpha1.PlanRule{planRule("slow", v1alpha1.ActionRateLimit), planRule("refuse", v1alpha1.ActionReset)}
	if got := inspect.StatusOf(rules, nil, nil); len(got) > 0 {
		t.Errorf("the status is %+v", got)
	}
	gone := []v1alpha1.RuleStatus{{Policy: policy, Name: "refuse", Mechanism: "Pace"}}
	if got := inspect.StatusOf(rules, nil, gone); len(got) > 0 {
		t.Errorf("a rule that no longer limits has the status %+v", got)
	}
}

func TestTheStatusDoesNotChangeWithTheNumberOfSubflows(t *testing.T) {
	rules := []v1alpha1.PlanRule{planRule("slow", v1alpha1.ActionRateLimit)}
	mixed := func(windows, polices int) []v1alpha1.RuleStatus {
		subflows := append(limited(polices, "slow", v1alpha1.RateLimitPolice, agentapi.WhyNoSYN),
			limited(windows, "slow", v1alpha1.RateLimitWindow, agentapi.WhyNoSocket)...)
		return inspect.StatusOf(rules, subflows, nil)
	}
	if few, many := mixed(4, 1), mixed(4000, 37); !slices.Equal(few, many) {
		t.Errorf("%+v became %+v", few, many)
	}
}
