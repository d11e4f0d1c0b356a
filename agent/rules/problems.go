// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"fmt"
	"strings"

	"braid.dev/braid/agent/chains"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/agent/pace"
	"braid.dev/braid/api/v1alpha1"
)

// addProblems says in the statuses of rules what they ask in vain: which of their
// programs were refused, and what the node or the pod does not have.
func (l *loadedPrograms) addProblems(statuses []v1alpha1.RuleStatus, rules []v1alpha1.PlanRule, manager v1alpha1.SubflowManager) []v1alpha1.RuleStatus {
	for i := range rules {
		rule := &rules[i]
		for _, name := range programsOf(rule) {
			if reason := l.refused[name]; reason != nil {
				statuses = addProblem(statuses, rule, fmt.Sprintf("program %s: %s", name.Name, reason))
			}
		}
		for _, name := range schedulesOf(rules[i : i+1]) {
			if problem := l.scheduleProblem(name, manager); problem != "" {
				statuses = addProblem(statuses, rule, problem)
			}
		}
		if _, _, err := pace.Of(0, "", rules[i:i+1], l.algorithm); err != nil {
			statuses = addProblem(statuses, rule, err.Error())
		}
	}
	return statuses
}

// addGuestProblems says the same of the rules of a VM: what they ask of sockets is in vain.
func (l *loadedPrograms) addGuestProblems(statuses []v1alpha1.RuleStatus, rules []v1alpha1.PlanRule) []v1alpha1.RuleStatus {
	for i := range rules {
		rule := &rules[i]
		for _, name := range programsOf(rule) {
			if reason := l.refused[name]; reason != nil {
				statuses = addProblem(statuses, rule, fmt.Sprintf("program %s: %s", name.Name, reason))
			}
		}
		for _, action := range rule.Actions {
			if asked := ofSockets(&action); asked != "" {
				statuses = addProblem(statuses, rule, asked+" is for sockets of pods, and a VM's are the guest's")
			}
		}
	}
	return statuses
}

// addUnasked says of rules that ask peers (at: Peer) why nobody is asked: limits of rates
// hold without what is done at sockets, and these do not.
func addUnasked(statuses []v1alpha1.RuleStatus, rules []v1alpha1.PlanRule, failure string) []v1alpha1.RuleStatus {
	for i := range rules {
		if failure != "" && rules[i].ActsAtPeer() {
			statuses = addProblem(statuses, &rules[i], "peers cannot be asked: "+failure)
		}
	}
	return statuses
}

// ofSockets names what an action asks of sockets; empty for nothing.
func ofSockets(action *v1alpha1.Action) string {
	switch {
	case action.At == v1alpha1.ActionAtPeer:
		return "" // the guest's acknowledgements ask: package asking
	case action.Congestion != nil:
		return "an action Congestion"
	case action.Schedule != nil:
		return "an action Schedule"
	case action.RateLimit != nil && action.RateLimit.Mechanism == v1alpha1.RateLimitPace:
		return "mechanism Pace (choose Auto, Window or Police)"
	}
	return ""
}

func (l *loadedPrograms) scheduleProblem(name chains.ProgramName, manager v1alpha1.SubflowManager) string {
	switch {
	case name.Name == v1alpha1.StrategyEarliestCompletionFirst && manager != v1alpha1.SubflowManagerAgent:
		return fmt.Sprintf("%s needs subflows.manager: Agent in the pod's policy", name.Name)
	case name.Name == v1alpha1.StrategyEarliestCompletionFirst || l.schedules[name] || l.refused[name] != nil:
		return ""
	}
	return fmt.Sprintf("no schedule %s is loaded on this node", name.Name)
}

func programsOf(rule *v1alpha1.PlanRule) (names []chains.ProgramName) {
	for _, asked := range rule.Match.Programs() {
		names = append(names, chains.ProgramOf(rule, asked.Name))
	}
	for _, action := range rule.Actions {
		switch {
		case action.RunProgram != nil:
			names = append(names, chains.ProgramOf(rule, action.RunProgram.Program))
		case action.Congestion != nil && action.At != v1alpha1.ActionAtPeer:
			names = append(names, chains.ProgramOf(rule, action.Congestion.Algorithm))
		case action.Schedule != nil && action.At != v1alpha1.ActionAtPeer:
			names = append(names, chains.ProgramOf(rule, action.Schedule.Strategy))
		}
	}
	return names
}

// messageLimit is what the API accepts of a rule's message, less room for the sign of
// a cut.
const messageLimit = 500

// addProblem adds to what a status says of a rule.
func addProblem(statuses []v1alpha1.RuleStatus, rule *v1alpha1.PlanRule, message string) []v1alpha1.RuleStatus {
	for i := range statuses {
		if status := &statuses[i]; status.Policy == rule.Policy && status.Name == rule.Name {
			status.Failed = true
			status.Message = node.Shorten(messageLimit, strings.TrimPrefix(status.Message+"; "+message, "; "))
			return statuses
		}
	}
	return append(statuses, v1alpha1.RuleStatus{Policy: rule.Policy, Name: rule.Name, Failed: true, Message: node.Shorten(messageLimit, message)})
}
