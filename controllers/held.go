// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"slices"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"braid.dev/braid/api/v1alpha1"
)

// Changes of one namespace's policies that are compiled: a few at once, and then one each
// interval. Each can cost a write of many plans, and work on as many nodes, for which
// others would wait.
const (
	changesAtOnce  = 4
	changeInterval = 250 * time.Millisecond
)

// heldPolicies holds back changes of a namespace's policies that come too often: of
// several the last one counts, when its time has come.
type heldPolicies map[string]*taken // by namespace

// taken are the policies of a namespace as they are compiled.
type taken struct {
	policies []v1alpha1.MPTCPPolicy // sorted by name
	limiter  *rate.Limiter
}

// take returns the policies to compile, given all that there are now, and after what
// time there are others; 0 for never.
func (h heldPolicies) take(now time.Time, all []v1alpha1.MPTCPPolicy) (compiled []v1alpha1.MPTCPPolicy, after time.Duration) {
	byNamespace := map[string][]v1alpha1.MPTCPPolicy{}
	for i := range all {
		namespace := all[i].Namespace
		byNamespace[namespace] = append(byNamespace[namespace], all[i])
		if h[namespace] == nil {
			h[namespace] = &taken{limiter: rate.NewLimiter(rate.Every(changeInterval), changesAtOnce)}
		}
	}
	for namespace, of := range h {
		wait := of.change(now, byNamespace[namespace])
		if wait > 0 && (after == 0 || wait < after) {
			after = wait
		}
		if len(of.policies) == 0 && of.limiter.TokensAt(now) >= changesAtOnce {
			delete(h, namespace)
		}
		compiled = append(compiled, of.policies...)
	}
	return compiled, after
}

// change takes what there is now, or says how long that has to wait.
func (t *taken) change(now time.Time, to []v1alpha1.MPTCPPolicy) (wait time.Duration) {
	slices.SortFunc(to, func(a, b v1alpha1.MPTCPPolicy) int { return strings.Compare(a.Name, b.Name) })
	if slices.EqualFunc(t.policies, to, sameGeneration) {
		return 0
	}
	turn := t.limiter.ReserveN(now, 1)
	if wait = turn.DelayFrom(now); wait > 0 {
		turn.CancelAt(now)
		return wait
	}
	t.policies = to
	return 0
}

func sameGeneration(a, b v1alpha1.MPTCPPolicy) bool {
	return a.UID == b.UID && a.Generation == b.Generation
}
