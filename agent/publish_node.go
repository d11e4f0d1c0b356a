// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"strings"
	"time"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
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
	unchanged := a.published.node != nil && apiequality.Semantic.DeepEqual(*a.published.node, status)
	if unchanged && !r.snapshot.unpublished {
		return nil
	}
	node := &v1alpha1.MPTCPNode{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "MPTCPNode"},
		ObjectMeta: metav1.ObjectMeta{Name: a.options.NodeName},
		Status:     status,
	}
	err := a.applyNodeStatus(ctx, node)
	if apierrors.IsNotFound(err) {
		if err = a.createNode(ctx, r.snapshot); err == nil {
			err = a.applyNodeStatus(ctx, node)
		}
	}
	if err != nil {
		return fmt.Errorf("failed to publish the node: %w", err)
	}
	a.published.node = &status
	return nil
}

// shownKey is empty for none.
func shownKey(key uint64) string {
	if key == 0 {
		return ""
	}
	return fmt.Sprintf("%016x", key)
}

// applyNodeStatus leaves out what the definition of nodes does not know, as while a rollback
// has put an earlier one in its place: then nobody encapsulates.
func (a *Agent) applyNodeStatus(ctx context.Context, node *v1alpha1.MPTCPNode) error {
	err := a.applyStatus(ctx, node)
	if err == nil || !isUndeclared(err, "encapsulationKey") && !isUndeclared(err, "encapsulated") {
		return err
	}
	less := node.DeepCopy()
	less.Status.EncapsulationKey = ""
	for i := range less.Status.Paths {
		less.Status.Paths[i].Encapsulated = 0
	}
	return a.applyStatus(ctx, less)
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
	if a.published.node != nil {
		if before := meta.FindStatusCondition(a.published.node.Conditions, condition.Type); before != nil {
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
