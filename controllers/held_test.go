// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/api/v1alpha1"
)

// generations are those of policies, by namespace and name.
func generations(policies []v1alpha1.MPTCPPolicy) map[string]int64 {
	of := map[string]int64{}
	for i := range policies {
		of[policies[i].Namespace+"/"+policies[i].Name] = policies[i].Generation
	}
	return of
}

func generation(namespace, name string, generation int64) v1alpha1.MPTCPPolicy {
	return v1alpha1.MPTCPPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(namespace + name), Generation: generation}}
}

func TestANamespaceWhosePoliciesChangeAllTheTimeWaitsAndNoOtherDoes(t *testing.T) {
	held, now := newHeldPolicies(), time.Now()
	held.take(now, []v1alpha1.MPTCPPolicy{generation("busy", "a", 1), generation("quiet", "a", 1)})
	changes, last := 0, int64(1)
	for i := int64(2); i <= 41; i++ { // in a second
		now = now.Add(25 * time.Millisecond)
		quiet := generation("quiet", "a", 1+i/20)
		taken, after := held.take(now, []v1alpha1.MPTCPPolicy{quiet, generation("busy", "a", i)})
		of := generations(taken)
		if of["quiet/a"] != quiet.Generation {
			t.Errorf("a change of the quiet namespace waits: %v", of)
		}
		if of["busy/a"] != last {
			changes, last = changes+1, of["busy/a"]
		}
		if waits := last < i; waits != (after > 0) || after > changeInterval {
			t.Errorf("generation %d of %d counts, and others do after %v", last, i, after)
		}
	}
	if most := changesAtOnce + 4; changes < 4 || changes > most {
		t.Errorf("%d changes of the busy namespace count in a second, instead of 4 to %d", changes, most)
	}
	now = now.Add(changeInterval)
	if taken, after := held.take(now, []v1alpha1.MPTCPPolicy{generation("busy", "a", 41)}); generations(taken)["busy/a"] != 41 || after != 0 {
		t.Errorf("in the end %v count, and others do after %v", generations(taken), after)
	}
}

func TestTheOrderInWhichPoliciesAreListedIsNoChange(t *testing.T) {
	held, now := newHeldPolicies(), time.Now()
	a, b := generation("team", "a", 1), generation("team", "b", 1)
	for range 20 {
		held.take(now, []v1alpha1.MPTCPPolicy{a, b})
		a, b = b, a
	}
	a.Generation = 2
	if taken, after := held.take(now, []v1alpha1.MPTCPPolicy{a, b}); generations(taken)["team/"+a.Name] != 2 || after != 0 {
		t.Errorf("after a first change %v count, and others do after %v", generations(taken), after)
	}
}

func TestPoliciesThatAreGoneAreForgotten(t *testing.T) {
	held, now := newHeldPolicies(), time.Now()
	for i := range 10 {
		held.take(now, []v1alpha1.MPTCPPolicy{generation("team", fmt.Sprint(i), 1)})
	}
	if taken, after := held.take(now, nil); len(taken) != 1 || after == 0 {
		t.Errorf("a policy that was deleted after many others changes: %v count, and others do after %v", generations(taken), after)
	}
	now = now.Add(changeInterval)
	if taken, after := held.take(now, nil); len(taken) != 0 || after != 0 {
		t.Errorf("%v count after all are gone, and others do after %v", generations(taken), after)
	}
	now = now.Add(changesAtOnce * changeInterval)
	held.take(now, nil)
	if len(held.taken) != 0 {
		t.Errorf("it remembers %v", held.taken)
	}
}

// TestPlansAreNotWrittenForEachOfManyChanges has a policy change much more often than its
// namespace may, and a pod that comes meanwhile.
func TestPlansAreNotWrittenForEachOfManyChanges(t *testing.T) {
	k, own, _ := newRules(t)
	k.startController(apiServer)
	before := k.waitForPods("node-a", "pod").Generation
	const changes = 80
	begin := time.Now()
	for i := range changes {
		patch := fmt.Sprintf(`[{"op":"replace","path":"/spec/rules/0/name","value":"again-%d"}]`, i)
		if err := k.Patch(t.Context(), own, client.RawPatch("application/json-patch+json", []byte(patch))); err != nil {
			t.Fatal(err)
		}
		time.Sleep(15 * time.Millisecond)
	}
	k.eventually(func() error {
		plan, err := k.plan("node-a")
		if err != nil || len(plan.Spec.Chains) != 1 || plan.Spec.Chains[0].Rules[0].Name != fmt.Sprint("again-", changes-1) {
			return fmt.Errorf("the last change is not in the plan %+v: %w", plan, err)
		}
		return nil
	})
	took := time.Since(begin)
	plan, err := k.plan("node-a")
	if err != nil {
		t.Fatal(err)
	}
	writes, most := plan.Generation-before, int64(changesAtOnce+took/changeInterval+1)
	t.Logf("%d changes in %v: %d writes", changes, took, writes)
	if writes > most {
		t.Errorf("the plan was written %d times in %v for %d changes of one policy, instead of %d times at most", writes, took, changes, most)
	}
	k.pod("late", "node-a", "10.0.0.3", nil)
	k.waitForPods("node-a", "late", "pod")
}
