// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"reflect"
	"slices"
	"strings"
)

// nodeShare is what the pods of one node add to a policy's result.
type nodeShare struct {
	decides        []PodRef
	overridden     []Override
	rulesOnly      []PodRef
	rulesLeftOut   []RulesLeftOut
	rulesShadowed  []RulesShadowed
	forbiddenPaths []ForbiddenPath
	guards         []PodRef
	hintedPods     int
	refusedHints   []PodHint
}

// forbid notes paths that the policy names and guardrails do not allow.
func (s *nodeShare) forbid(paths []ForbiddenPath) {
	s.forbiddenPaths = withForbidden(s.forbiddenPaths, paths)
}

func withForbidden(known, paths []ForbiddenPath) []ForbiddenPath {
	for _, p := range paths {
		if !slices.Contains(known, p) {
			known = append(known, p)
		}
	}
	return known
}

// same says whether two shares add the same.
func (s *nodeShare) same(other *nodeShare) bool {
	return other != nil && reflect.DeepEqual(s, other)
}

// add puts a node's share behind what others added.
func (r *PolicyResult) add(share *nodeShare) {
	r.Decides = append(r.Decides, share.decides...)
	r.Overridden = append(r.Overridden, share.overridden...)
	r.RulesOnly = append(r.RulesOnly, share.rulesOnly...)
	r.RulesLeftOut = append(r.RulesLeftOut, share.rulesLeftOut...)
	r.RulesShadowed = append(r.RulesShadowed, share.rulesShadowed...)
	r.ForbiddenPaths = withForbidden(r.ForbiddenPaths, share.forbiddenPaths)
	r.Guards = append(r.Guards, share.guards...)
	r.HintedPods += share.hintedPods
	r.RefusedHints = append(r.RefusedHints, share.refusedHints...)
}

// sort orders the lists as if all nodes' pods had been looked at by namespace and
// name.
func (r *PolicyResult) sort() {
	slices.SortFunc(r.Decides, comparePods)
	slices.SortFunc(r.RulesOnly, comparePods)
	slices.SortFunc(r.Guards, comparePods)
	slices.SortFunc(r.Overridden, func(a, b Override) int { return comparePods(a.Pod, b.Pod) })
	slices.SortFunc(r.RulesShadowed, func(a, b RulesShadowed) int { return comparePods(a.Pod, b.Pod) })
	slices.SortFunc(r.RulesLeftOut, func(a, b RulesLeftOut) int { return comparePods(a.Pod, b.Pod) })
	// One pod can have several, in their own order.
	slices.SortStableFunc(r.RefusedHints, func(a, b PodHint) int { return comparePods(a.Pod, b.Pod) })
	slices.SortFunc(r.ForbiddenPaths, func(a, b ForbiddenPath) int {
		return cmp.Or(strings.Compare(string(a.Path), string(b.Path)), comparePolicies(a.By, b.By))
	})
}
