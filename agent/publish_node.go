// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/agent/node"
	"braid.dev/braid/api/v1alpha1"
)

// fieldOwner owns what the agent writes; the controller writes conditions of
// the same objects under a name of its own.
const fieldOwner = client.FieldOwner("braid-agent")

// writeTimeout keeps an API server that does not answer from holding up what
// has to be done on the node.
const writeTimeout = 5 * time.Second

// publishNode tells the other agents who this node is.
func (a *Agent) publishNode(ctx context.Context, r round) error {
	return a.publishNodeStatus(ctx, r.snapshot, a.nodeStatus(r))
}

func (a *Agent) nodeStatus(r round) v1alpha1.MPTCPNodeStatus {
	status := v1alpha1.MPTCPNodeStatus{
		KernelRelease: kernelRelease(),
		AgentVersion:  a.options.Version,
		Addresses:     r.resolution.Addresses(r.snapshot.nodeAddresses),
		Overlays:      r.resolution.Overlays(), EncapsulationKey: shownKey(r.key),
		Features: append(features(r.attachMode, a.parts.sockets.Feature(), a.parts.held.Feature()), a.parts.rules.Features()...),
	}
	for _, condition := range []*metav1.Condition{a.source.condition(), a.peersCondition(r.model.Unsteered), a.savedCondition()} {
		if condition != nil {
			status.Conditions = append(status.Conditions, *condition)
		}
	}
	for _, path := range r.resolution.Paths {
		shown := path.Status()
		a.parts.health.Describe(&shown)
		a.parts.rules.AtNIC().DescribePath(&shown)
		status.Paths = append(status.Paths, shown)
		status.PathsTotal++
		if path.Usable {
			status.PathsUp++
		}
	}
	return status
}

// publishNodeStatus writes no more often than the other agents look: all of them get each
// change, and a NIC can lose and regain its carrier many times a second.
func (a *Agent) publishNodeStatus(ctx context.Context, s *snapshot, status v1alpha1.MPTCPNodeStatus) error {
	if s.own != nil && a.published.node.stands(&status, new(ownPart(*s.own)), s.at) {
		return nil
	}
	if a.reports.Take(a.options.NodeName, time.Now()) > 0 {
		return errUnfinished
	}
	node := &v1alpha1.MPTCPNode{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "MPTCPNode"},
		ObjectMeta: metav1.ObjectMeta{Name: a.options.NodeName},
		Status:     status,
	}
	answer, err := a.applyNodeStatus(ctx, node)
	if apierrors.IsNotFound(err) {
		if err = a.createNode(ctx, s); err == nil {
			answer, err = a.applyNodeStatus(ctx, node)
		}
	}
	if err != nil {
		return fmt.Errorf("failed to publish the node: %w", err)
	}
	a.published.node = written[v1alpha1.MPTCPNodeStatus]{&status, ownPart(answer), time.Now()}
	return nil
}

// ownPart leaves out the conditions of a node that its agent does not write.
func ownPart(status v1alpha1.MPTCPNodeStatus) v1alpha1.MPTCPNodeStatus {
	own := []string{v1alpha1.ConditionStartedFromSavedPlan, v1alpha1.ConditionPeersLimited, v1alpha1.ConditionPlanNotSaved}
	status.Conditions = slices.DeleteFunc(slices.Clone(status.Conditions), func(c metav1.Condition) bool { return !slices.Contains(own, c.Type) })
	return status
}

// shownKey is empty for none.
func shownKey(key uint64) string {
	if key == 0 {
		return ""
	}
	return fmt.Sprintf("%016x", key)
}

// applyNodeStatus returns the status as the API server has it then. It leaves out what the
// definition of nodes does not know, as while a rollback has put an earlier one in its place:
// then nobody encapsulates.
func (a *Agent) applyNodeStatus(ctx context.Context, node *v1alpha1.MPTCPNode) (v1alpha1.MPTCPNodeStatus, error) {
	applied := node.DeepCopy()
	err := a.applyStatus(ctx, applied)
	if err == nil || !isUndeclared(err, "encapsulationKey") && !isUndeclared(err, "encapsulated") {
		return applied.Status, err
	}
	applied = node.DeepCopy()
	applied.Status.EncapsulationKey = ""
	for i := range applied.Status.Paths {
		applied.Status.Paths[i].Encapsulated = 0
	}
	err = a.applyStatus(ctx, applied)
	return applied.Status, err
}

// isUndeclared is true where a field of what was applied is not in its definition.
func isUndeclared(err error, field string) bool {
	return strings.Contains(err.Error(), field+": field not declared in schema")
}

// peersCondition says that there are more nodes than this one can steer to; nil: there
// are not. It changes its time only when the condition begins.
func (a *Agent) peersCondition(unsteered int) *metav1.Condition {
	if unsteered == 0 {
		return nil
	}
	return a.sinceBefore(&metav1.Condition{
		Type: v1alpha1.ConditionPeersLimited, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonTooManyNodes,
		Message: fmt.Sprintf("a node steers to %d others: what is sent to %d more goes by the cluster network's route", node.MaxPeers, unsteered),
	})
}

// savedCondition is nil while what the API server says is saved.
func (a *Agent) savedCondition() *metav1.Condition {
	failure := a.store.Failure()
	if failure == "" {
		return nil
	}
	return a.sinceBefore(&metav1.Condition{
		Type: v1alpha1.ConditionPlanNotSaved, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonSaveFailed,
		Message: "an agent that starts while the API server cannot be reached would know nothing of now: " + failure,
	})
}

// sinceBefore keeps the time of a condition that was published already.
func (a *Agent) sinceBefore(condition *metav1.Condition) *metav1.Condition {
	condition.LastTransitionTime = metav1.Now().Rfc3339Copy()
	if a.published.node.status != nil {
		if before := meta.FindStatusCondition(a.published.node.status.Conditions, condition.Type); before != nil {
			condition.LastTransitionTime = before.LastTransitionTime
		}
	}
	return condition
}

// createNode makes the node's object, to be removed together with its Node.
func (a *Agent) createNode(ctx context.Context, s *snapshot) error {
	node := &v1alpha1.MPTCPNode{ObjectMeta: metav1.ObjectMeta{Name: a.options.NodeName}}
	if s.nodeUID != "" {
		node.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: "v1", Kind: "Node", Name: a.options.NodeName, UID: types.UID(s.nodeUID),
		}}
	}
	if err := a.client.Create(ctx, node); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	return nil
}

func (a *Agent) applyStatus(ctx context.Context, object client.Object) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	//nolint:staticcheck // the typed objects are the configuration: the agent sets every field it owns
	return a.client.Status().Patch(ctx, object, client.Apply, fieldOwner, client.ForceOwnership)
}
