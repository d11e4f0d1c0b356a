// SPDX-License-Identifier: Apache-2.0

// Package changes compares what the controller compiles before and after manifests are
// applied. It is pure.
package changes

import (
	"fmt"
	"slices"
	"strings"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/policy"
)

// Change is what becomes of a pod.
type Change struct {
	Pod  string `json:"pod"`
	Node string `json:"node,omitempty"`
	// Before and After say in words what is decided for it.
	Before string `json:"before"`
	After  string `json:"after"`
}

// Pods are those for which something else is decided afterwards, by their names.
func Pods(before, after *policy.Result) (changes []Change) {
	known := map[string]string{}
	for i := range before.Decisions {
		known[before.Decisions[i].Pod.String()] = words(&before.Decisions[i])
	}
	for i := range after.Decisions {
		decision := &after.Decisions[i]
		now := words(decision)
		if then := known[decision.Pod.String()]; then != now {
			changes = append(changes, Change{decision.Pod.String(), decision.Pod.Node, then, now})
		}
	}
	slices.SortFunc(changes, func(a, b Change) int { return strings.Compare(a.Pod, b.Pod) })
	return changes
}

// words say what a decision comes to.
func words(d *policy.Decision) string {
	switch {
	case d.Ignored != "":
		return "ignored: " + d.Ignored
	case d.Winner == nil:
		return "left alone"
	case d.LeftOut != "":
		return policy.PolicyString(*d.Winner) + ", left out: " + d.LeftOut
	}
	parts := []string{policy.PolicyString(*d.Winner)}
	if paths := used(d); len(paths) > 0 {
		parts = append(parts, "over "+strings.Join(paths, ", "), fmt.Sprintf("subflows: %d", d.Subflows.Count))
	} else {
		parts = append(parts, "over no path")
	}
	for _, wish := range []struct {
		word  string
		paths []v1alpha1.PathName
	}{{"preferring", d.Preferred}, {"backup", d.Backup}} {
		if len(wish.paths) > 0 {
			parts = append(parts, wish.word+" "+joined(wish.paths))
		}
	}
	if d.Guard != nil {
		parts = append(parts, "within guardrails")
	}
	if d.Chain != "" {
		parts = append(parts, "rules "+d.Chain)
	}
	return strings.Join(parts, "; ")
}

func used(d *policy.Decision) (paths []string) {
	for _, choice := range d.Paths {
		if choice.Used {
			paths = append(paths, fmt.Sprintf("%s (%d)", choice.Path, choice.Weight))
		}
	}
	return paths
}

func joined(paths []v1alpha1.PathName) string {
	names := make([]string, 0, len(paths))
	for _, path := range paths {
		names = append(names, string(path))
	}
	return strings.Join(names, ", ")
}

// Policy is what becomes of a policy or guardrail.
type Policy struct {
	Policy string `json:"policy"`
	// Decides and Overridden count the pods that it selects, Guards those that it guards.
	Decides    int `json:"decides"`
	Overridden int `json:"overridden"`
	Guards     int `json:"guards,omitempty"`
	// Remarks say what of it has no effect, and why.
	Remarks []string `json:"remarks,omitempty"`
}

// Of is what becomes of one policy; nil where it is none.
func Of(after *policy.Result, kind, namespace, name string) *Policy {
	for i := range after.Policies {
		found := &after.Policies[i]
		if of := found.Policy; of.Kind == kind && of.Namespace == namespace && of.Name == name {
			return &Policy{policy.PolicyString(of), len(found.Decides), len(found.Overridden), len(found.Guards), remarks(found)}
		}
	}
	return nil
}

func remarks(p *policy.PolicyResult) (texts []string) {
	say := func(format string, arguments ...any) { texts = append(texts, fmt.Sprintf(format, arguments...)) }
	if p.Error != "" {
		say("it selects nothing: %s", p.Error)
	}
	if len(p.Decides)+len(p.Overridden)+len(p.Guards) == 0 && p.Error == "" {
		say("%s", p.NothingSelected())
	}
	for _, path := range p.UnknownPaths {
		say("there is no path %s", path)
	}
	for _, path := range p.CutPaths {
		say("some node has too many paths to use %s", path)
	}
	for _, path := range p.ForbiddenPaths {
		say("guardrails do not allow %s to some of its pods", path.Path)
	}
	for _, problem := range p.RuleProblems {
		say("none of its rules is applied: %s", problem.Message)
	}
	for _, path := range p.WeightsWithoutCapacity {
		say("the weight of %s cannot be kept: the path has no capacity", path)
	}
	for i := range p.Overridden[:min(len(p.Overridden), shown)] {
		say("%s decides for %s", policy.PolicyString(p.Overridden[i].By), p.Overridden[i].Pod)
	}
	return texts
}

// shown keeps lists short.
const shown = 5
