// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"braid.dev/braid/agent/node"
	"braid.dev/braid/api/v1alpha1"
)

// outcome is what became of a plan.
type outcome struct {
	snapshot  *snapshot
	endpoints []v1alpha1.EndpointStatus
	failed    error // what the datapath as a whole could not do
}

// gathering is how long an outcome that says nothing of what is done waits for the next one:
// a plan that a tenant changes all the time would else be told of twice for each change, and
// every pod of the node waits for these writes.
const gathering = 100 * time.Millisecond

// gather passes outcomes on, those that bring news at once.
func gather(ctx context.Context, outcomes <-chan outcome, told latest[outcome]) {
	var last outcome
	var waiting *outcome
	var due <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case next := <-outcomes:
			if waiting == nil {
				due = time.After(gathering)
			}
			if waiting = &next; !next.bringsNews(&last) {
				continue
			}
		case <-due:
		}
		last, waiting, due = *waiting, nil, nil
		told.put(last)
	}
}

// bringsNews: something became programmed or failed, or a plan is carried out.
func (o *outcome) bringsNews(last *outcome) bool {
	if (o.failed == nil) != (last.failed == nil) || o.snapshot.plan == nil || last.snapshot == nil {
		return true
	}
	if o.generation() != last.generation() && !hasState(o.endpoints, v1alpha1.EndpointPending) {
		return true
	}
	before := make(map[types.UID]*v1alpha1.EndpointStatus, len(last.endpoints))
	for i := range last.endpoints {
		before[last.endpoints[i].UID] = &last.endpoints[i]
	}
	return slices.ContainsFunc(o.endpoints, func(now v1alpha1.EndpointStatus) bool {
		was := before[now.UID]
		return now.State != v1alpha1.EndpointPending && (was == nil || was.State != now.State || was.PolicyGeneration != now.PolicyGeneration)
	})
}

// generation of the plan; 0 where there is none.
func (o *outcome) generation() int64 {
	if o.snapshot.plan == nil {
		return 0
	}
	return o.snapshot.plan.Generation
}

// publishPlan says what became of a plan.
func (a *Agent) publishPlan(ctx context.Context, o outcome) error {
	plan := o.snapshot.plan
	if plan == nil || o.snapshot.saved {
		a.published.plan = written[v1alpha1.MPTCPNodePlanStatus]{}
		return nil
	}
	status := planStatus(plan, o.endpoints, o.failed)
	told, seen := withoutTimes(status), withoutTimes(plan.Status)
	if a.published.uid == plan.UID && a.published.plan.stands(&told, &seen, o.snapshot.at) {
		return nil
	}
	answer, err := a.applyPlanStatus(ctx, plan.Name, status)
	if err != nil {
		return fmt.Errorf("failed to publish the result of the plan: %w", err)
	}
	a.published.plan, a.published.uid = written[v1alpha1.MPTCPNodePlanStatus]{&told, withoutTimes(answer), time.Now()}, plan.UID
	return nil
}

// applyPlanStatus returns the status as the API server has it then. It leaves the counts out
// where the definition of plans does not know them, as while a rollback has put an earlier one
// in its place.
func (a *Agent) applyPlanStatus(ctx context.Context, name string, status v1alpha1.MPTCPNodePlanStatus) (v1alpha1.MPTCPNodePlanStatus, error) {
	apply := func() (v1alpha1.MPTCPNodePlanStatus, error) {
		object := &v1alpha1.MPTCPNodePlan{
			TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "MPTCPNodePlan"},
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Status:     status,
		}
		err := a.applyStatus(ctx, object)
		return object.Status, err
	}
	answer, err := apply()
	if err == nil || !isUndeclared(err, ".status.summary") {
		return answer, err
	}
	status.Summary = nil
	return apply()
}

func planStatus(plan *v1alpha1.MPTCPNodePlan, results []v1alpha1.EndpointStatus, failed error) v1alpha1.MPTCPNodePlanStatus {
	status := v1alpha1.MPTCPNodePlanStatus{
		ObservedGeneration: plan.Generation, Endpoints: results, EndpointsTotal: int32(len(results)),
		Summary: v1alpha1.Summarize(plan.Spec.Endpoints, results),
	}
	for i := range results {
		if results[i].State == v1alpha1.EndpointProgrammed {
			status.EndpointsProgrammed++
		}
	}
	status.Conditions = []metav1.Condition{programmedCondition(plan, status, failed)}
	if before := meta.FindStatusCondition(plan.Status.Conditions, v1alpha1.ConditionProgrammed); before != nil &&
		before.Status == status.Conditions[0].Status {
		status.Conditions[0].LastTransitionTime = before.LastTransitionTime
	}
	return status
}

func programmedCondition(plan *v1alpha1.MPTCPNodePlan, status v1alpha1.MPTCPNodePlanStatus, failed error) metav1.Condition {
	condition := metav1.Condition{
		Type: v1alpha1.ConditionProgrammed, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonProgrammed,
		ObservedGeneration: plan.Generation, LastTransitionTime: metav1.Now(),
		Message: fmt.Sprintf("%d of %d endpoints are programmed", status.EndpointsProgrammed, len(status.Endpoints)),
	}
	switch {
	case failed != nil:
		condition.Status, condition.Reason, condition.Message = metav1.ConditionFalse, v1alpha1.ReasonDatapathFailed, node.Shorten(node.MessageLimit, failed.Error())
	case hasState(status.Endpoints, v1alpha1.EndpointFailed):
		condition.Status, condition.Reason = metav1.ConditionFalse, v1alpha1.ReasonEndpointFailed
	case hasState(status.Endpoints, v1alpha1.EndpointPending):
		condition.Status, condition.Reason = metav1.ConditionFalse, v1alpha1.ReasonPending
	}
	return condition
}

func hasState(endpoints []v1alpha1.EndpointStatus, state v1alpha1.EndpointState) bool {
	for _, endpoint := range endpoints {
		if endpoint.State == state {
			return true
		}
	}
	return false
}

func withoutTimes(status v1alpha1.MPTCPNodePlanStatus) v1alpha1.MPTCPNodePlanStatus {
	copied := *status.DeepCopy()
	for i := range copied.Conditions {
		copied.Conditions[i].LastTransitionTime = metav1.Time{}
	}
	return copied
}
