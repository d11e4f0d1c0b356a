// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"time"
	"unicode/utf8"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/api/v1alpha1"
)

// fieldOwner owns what the agent writes; the controller writes conditions of
// the same objects under a name of its own.
const fieldOwner = client.FieldOwner("braid-agent")

// writeTimeout keeps an API server that does not answer from holding up what
// has to be done on the node.
const writeTimeout = 5 * time.Second

// published is what the API server has of this node, so that nothing is written
// where nothing changed.
type published struct {
	node *v1alpha1.MPTCPNodeStatus // publishNode's
	plan *v1alpha1.MPTCPNodePlanStatus
	uid  types.UID // of the plan
}

// publishNode tells the other agents who this node is.
func (a *Agent) publishNode(ctx context.Context, r round) error {
	status := v1alpha1.MPTCPNodeStatus{
		KernelRelease: kernelRelease(),
		AgentVersion:  a.options.Version,
		Addresses:     r.resolution.Addresses(r.news.nodeAddresses),
		Features:      append(features(r.attachMode, a.pods.upgrade.feature()), a.rules.pacer.Features()...),
	}
	for _, path := range r.resolution.Paths {
		shown := path.Status()
		a.health.describe(&shown)
		status.Paths = append(status.Paths, shown)
		status.PathsTotal++
		if path.Usable {
			status.PathsUp++
		}
	}
	unchanged := a.published.node != nil && apiequality.Semantic.DeepEqual(*a.published.node, status)
	if unchanged && !r.news.unpublished {
		return nil
	}
	node := &v1alpha1.MPTCPNode{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "MPTCPNode"},
		ObjectMeta: metav1.ObjectMeta{Name: a.options.NodeName},
		Status:     status,
	}
	err := a.applyStatus(ctx, node)
	if apierrors.IsNotFound(err) {
		if err = a.createNode(ctx, r.news); err == nil {
			err = a.applyStatus(ctx, node)
		}
	}
	if err != nil {
		return fmt.Errorf("publishing the node: %w", err)
	}
	a.published.node = &status
	return nil
}

// createNode makes the node's object, to be removed together with its Node.
func (a *Agent) createNode(ctx context.Context, n *news) error {
	node := &v1alpha1.MPTCPNode{ObjectMeta: metav1.ObjectMeta{Name: a.options.NodeName}}
	if n.nodeUID != "" {
		node.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: "v1", Kind: "Node", Name: a.options.NodeName, UID: types.UID(n.nodeUID),
		}}
	}
	if err := a.client.Create(ctx, node); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	return nil
}

// publishPlan says what became of the plan. failed is what the datapath as a
// whole could not do.
func (a *Agent) publishPlan(ctx context.Context, plan *v1alpha1.MPTCPNodePlan, results []v1alpha1.EndpointStatus, failed error) error {
	if plan == nil {
		a.published.plan = nil
		return nil
	}
	status := planStatus(plan, results, failed)
	unchanged := a.published.plan != nil && a.published.uid == plan.UID
	if unchanged && apiequality.Semantic.DeepEqual(withoutTimes(*a.published.plan), withoutTimes(status)) {
		return nil
	}
	err := a.applyStatus(ctx, &v1alpha1.MPTCPNodePlan{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "MPTCPNodePlan"},
		ObjectMeta: metav1.ObjectMeta{Name: plan.Name},
		Status:     status,
	})
	if err != nil {
		return fmt.Errorf("publishing the result of the plan: %w", err)
	}
	a.published.plan, a.published.uid = &status, plan.UID
	return nil
}

func (a *Agent) applyStatus(ctx context.Context, object client.Object) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	//nolint:staticcheck // the typed objects are the configuration: the agent sets every field it owns
	return a.client.Status().Patch(ctx, object, client.Apply, fieldOwner, client.ForceOwnership)
}

func planStatus(plan *v1alpha1.MPTCPNodePlan, results []v1alpha1.EndpointStatus, failed error) v1alpha1.MPTCPNodePlanStatus {
	status := v1alpha1.MPTCPNodePlanStatus{ObservedGeneration: plan.Generation, Endpoints: results, EndpointsTotal: int32(len(results))}
	for i := range results {
		if failed != nil {
			results[i].State, results[i].Message = v1alpha1.EndpointFailed, shorten(failed.Error())
		}
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
		condition.Status, condition.Reason, condition.Message = metav1.ConditionFalse, v1alpha1.ReasonDatapathFailed, shorten(failed.Error())
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

// shorten keeps a message within what the API accepts.
func shorten(message string) string { return shortenTo(1000, message) }

// shortenTo cuts a message to so many bytes.
func shortenTo(limit int, message string) string {
	if len(message) <= limit {
		return message
	}
	end := limit
	for !utf8.RuneStart(message[end]) {
		end--
	}
	return message[:end] + "…"
}
