// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"slices"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/policy"
)

// verdicts keep what is to be told of each policy from one run to the next: of a
// change that concerns few pods most policies hear nothing.
type verdicts map[v1alpha1.PolicyReference]verdict

type verdict struct {
	of     merge
	status *v1alpha1.PolicyStatus
	// traffic counts the policy's pods by what their traffic does.
	traffic map[string]int
}

// merge tells one result of a policy from another one. The lists of pods are made
// anew whenever the result is, so that their places tell. Nothing can be told of
// results without pods.
type merge struct {
	decides, guards *policy.PodRef
	overridden      *policy.Override
}

func mergeOf(p *policy.PolicyResult) merge {
	return merge{first(p.Decides), first(p.Guards), first(p.Overridden)}
}

func first[T any](list []T) *T {
	if len(list) == 0 {
		return nil
	}
	return &list[0]
}

// next are the verdicts of a run: those that still hold, and new ones.
func (v verdicts) next(o *observation) verdicts {
	next := make(verdicts, len(o.result.Policies))
	for i := range o.result.Policies {
		p := &o.result.Policies[i]
		before, of := v[p.Policy], mergeOf(p)
		if before.status != nil && of != (merge{}) && before.of == of && !o.concerns(p) {
			next[p.Policy] = before
		} else {
			next[p.Policy] = newVerdict(o, p)
		}
	}
	return next
}

// concerns says whether pods that carry a policy out have another state than in the
// run before.
func (o *observation) concerns(p *policy.PolicyResult) bool {
	if len(o.rejudged) == 0 {
		return false
	}
	judged := func(pod policy.PodRef) bool { return o.rejudged[pod.UID] }
	return slices.ContainsFunc(p.Decides, judged) || slices.ContainsFunc(p.RulesOnly, judged) || slices.ContainsFunc(p.Guards, judged)
}

// status is a copy of what is to be told of a policy, in which the writer puts its
// times.
func (v verdicts) status(p *policy.PolicyResult) *v1alpha1.PolicyStatus {
	return v[p.Policy].status.DeepCopy()
}
