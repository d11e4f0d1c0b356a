// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/agentapi"
)

// StatusOf says for each rule with a rate limit how it is enforced on these
// subflows, which are those of one endpoint, and of those at: Peer that peers are asked. A rule that limits no subflow now
// keeps what before says of it, so that a status does not change with each
// connection that ends. The texts say all, most or some and no numbers, for the
// same reason.
func StatusOf(rules []v1alpha1.PlanRule, subflows []agentapi.Subflow, before []v1alpha1.RuleStatus) []v1alpha1.RuleStatus {
	uses := usesByRule(subflows, false)
	maps.Copy(uses, usesByRule(subflows, true))
	var statuses []v1alpha1.RuleStatus
	for i := range rules {
		key := ruleKey{rules[i].Policy, rules[i].Name}
		if rules[i].ActsAtPeer() && !limits(&rules[i].Rule) {
			statuses = append(statuses, v1alpha1.RuleStatus{Policy: key.policy, Name: key.name, Mechanism: mechanismAsk, Message: askedOfPeers})
		}
		if !limits(&rules[i].Rule) {
			continue
		}
		if used := uses[key]; len(used) > 0 {
			statuses = append(statuses, v1alpha1.RuleStatus{
				Policy: key.policy, Name: key.name, Mechanism: mechanisms(used), Message: message(used),
			})
		} else if at := slices.IndexFunc(before, key.is); at >= 0 {
			statuses = append(statuses, before[at])
		}
	}
	return statuses
}

type ruleKey struct{ policy, name string }

func (k ruleKey) is(status v1alpha1.RuleStatus) bool {
	return status.Policy == k.policy && status.Name == k.name
}

// Limits is true when one of the rules limits rates.
func Limits(rules []v1alpha1.PlanRule) bool {
	return slices.ContainsFunc(rules, func(rule v1alpha1.PlanRule) bool { return limits(&rule.Rule) })
}

func limits(rule *v1alpha1.Rule) bool {
	return slices.ContainsFunc(rule.Actions, func(action v1alpha1.Action) bool {
		return action.Type == v1alpha1.ActionRateLimit && action.At != v1alpha1.ActionAtPeer
	})
}

// What is said of rules that ask peers: these do not answer.
const (
	mechanismAsk = "Ask"
	askedOfPeers = "Ask: peers are asked and do not answer; one without Braid, or whose policy does not accept it, goes on as it is"
)

// use is a way in which a limit is enforced, and on how many subflows.
type use struct {
	mechanism v1alpha1.RateLimitMechanism
	why       agentapi.Why
	count     int
}

// usesByRule counts the ways of each rule, the most exact mechanism first. Subflows
// that are over count where only they tell of a rule.
func usesByRule(subflows []agentapi.Subflow, living bool) map[ruleKey][]use {
	uses := map[ruleKey][]use{}
	for i := range subflows {
		if living && subflows[i].Ended {
			continue
		}
		for _, limit := range subflows[i].Limits {
			key := ruleKey{limit.Policy, limit.Rule}
			uses[key] = count(uses[key], limit)
		}
	}
	for _, used := range uses {
		slices.SortFunc(used, func(a, b use) int {
			return cmp.Or(cmp.Compare(rank(a.mechanism), rank(b.mechanism)), cmp.Compare(a.why, b.why))
		})
	}
	return uses
}

func count(used []use, limit agentapi.Limit) []use {
	at := slices.IndexFunc(used, func(u use) bool { return u.mechanism == limit.InUse && u.why == limit.Why })
	if at < 0 {
		return append(used, use{limit.InUse, limit.Why, 1})
	}
	used[at].count++
	return used
}

// rank orders mechanisms by how exact they are; none comes last.
func rank(mechanism v1alpha1.RateLimitMechanism) int {
	order := []v1alpha1.RateLimitMechanism{v1alpha1.RateLimitPace, v1alpha1.RateLimitWindow, v1alpha1.RateLimitPolice}
	if at := slices.Index(order, mechanism); at >= 0 {
		return at
	}
	return len(order)
}

// mechanisms lists those in use, each once.
func mechanisms(used []use) string {
	var names []string
	for _, u := range used {
		if u.mechanism != "" {
			names = append(names, string(u.mechanism))
		}
	}
	return strings.Join(slices.Compact(names), ", ")
}

// message says each way and, where there are several, on what share of subflows.
func message(used []use) string {
	total := 0
	for _, u := range used {
		total += u.count
	}
	texts := make([]string, 0, len(used))
	for _, u := range used {
		text := describe(u.mechanism, u.why)
		if len(used) > 1 {
			text += fmt.Sprintf(" (%s subflows)", share(u.count, total))
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, "; ")
}

func share(count, total int) string {
	if 2*count > total {
		return "most"
	}
	return "some"
}

// describe names a mechanism and the reason for it.
func describe(mechanism v1alpha1.RateLimitMechanism, why agentapi.Why) string {
	name := string(mechanism)
	switch {
	case mechanism == "" && why == agentapi.WhyNoSocket: // nor ever
		return "not enforced: " + why.Text() + ", and Pace governs a pod's own sockets alone"
	case mechanism == "":
		name = "not enforced yet"
	}
	if why.Text() == "" {
		return name
	}
	return name + ": " + why.Text()
}
