// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"slices"
	"strings"
	"time"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/throttle"
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
type heldPolicies struct {
	taken    map[string][]v1alpha1.MPTCPPolicy // as they are compiled, by namespace, sorted by name
	throttle *throttle.Throttle[string]
}

func newHeldPolicies() *heldPolicies {
	return &heldPolicies{taken: map[string][]v1alpha1.MPTCPPolicy{}, throttle: throttle.New[string](changesAtOnce, changeInterval)}
}

// take returns the policies to compile, given all that there are now, and after what
// time there are others; 0 for never.
func (h *heldPolicies) take(now time.Time, all []v1alpha1.MPTCPPolicy) (compiled []v1alpha1.MPTCPPolicy, after time.Duration) {
	byNamespace := map[string][]v1alpha1.MPTCPPolicy{}
	for i := range all {
		namespace := all[i].Namespace
		byNamespace[namespace] = append(byNamespace[namespace], all[i])
		if _, known := h.taken[namespace]; !known {
			h.taken[namespace] = nil
		}
	}
	for namespace := range h.taken {
		wait := h.change(now, namespace, byNamespace[namespace])
		if wait > 0 && (after == 0 || wait < after) {
			after = wait
		}
		compiled = append(compiled, h.taken[namespace]...)
		if len(h.taken[namespace]) == 0 && h.throttle.Forget(namespace, now) {
			delete(h.taken, namespace)
		}
	}
	return compiled, after
}

// change takes what there is now, or says how long that has to wait.
func (h *heldPolicies) change(now time.Time, namespace string, to []v1alpha1.MPTCPPolicy) (wait time.Duration) {
	slices.SortFunc(to, func(a, b v1alpha1.MPTCPPolicy) int { return strings.Compare(a.Name, b.Name) })
	if slices.EqualFunc(h.taken[namespace], to, sameGeneration) {
		return 0
	}
	if wait = h.throttle.Take(namespace, now); wait == 0 {
		h.taken[namespace] = to
	}
	return wait
}

func sameGeneration(a, b v1alpha1.MPTCPPolicy) bool {
	return a.UID == b.UID && a.Generation == b.Generation
}
