// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"braid.dev/braid/api/v1alpha1"
)

// statusWriter applies statuses on the server's side, writes nothing where
// nothing changed, and tells transitions of conditions as Events.
type statusWriter struct {
	client   client.Client
	recorder events.EventRecorder

	mu sync.Mutex
	// latest is what was written to an object whose cached copy is from before
	// the write.
	latest map[types.UID]writtenStatus
}

type writtenStatus struct {
	cachedVersion string // resourceVersion of the copy that was current at the write
	status        any
}

func newStatusWriter(c client.Client, recorder events.EventRecorder) *statusWriter {
	return &statusWriter{client: c, recorder: recorder, latest: map[types.UID]writtenStatus{}}
}

// writeStatus applies a status to an object from the cache, if it differs from
// the current one. Times of transition in want are filled in here.
func writeStatus[S any](ctx context.Context, w *statusWriter, object client.Object, current, want *S, conditions func(*S) *[]metav1.Condition) error {
	if latest, ok := w.behindCache(object).(*S); ok {
		current = latest
	}
	previous := *conditions(current)
	*conditions(want) = withTransitionTimes(previous, *conditions(want))
	if equality.Semantic.DeepEqual(current, want) {
		return nil
	}
	if err := w.apply(ctx, object, want); err != nil {
		if isStale(err) {
			return nil // The object was deleted or replaced: its events will cause a run.
		}
		return fmt.Errorf("apply the status of %T %s: %w", object, client.ObjectKeyFromObject(object), err)
	}
	w.remember(object, want)
	w.tell(object, previous, *conditions(want))
	return nil
}

// behindCache is the status written last, if the cache does not show it yet.
func (w *statusWriter) behindCache(object client.Object) any {
	w.mu.Lock()
	defer w.mu.Unlock()
	if latest := w.latest[object.GetUID()]; latest.cachedVersion == object.GetResourceVersion() {
		return latest.status
	}
	return nil
}

func (w *statusWriter) remember(object client.Object, status any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.latest[object.GetUID()] = writtenStatus{cachedVersion: object.GetResourceVersion(), status: status}
}

// forgetAllBut drops what was remembered of objects that are gone.
func (w *statusWriter) forgetAllBut(o *objects) {
	w.mu.Lock()
	defer w.mu.Unlock()
	kept := make(map[types.UID]writtenStatus, len(w.latest))
	keep := func(uid types.UID) {
		if latest, ok := w.latest[uid]; ok {
			kept[uid] = latest
		}
	}
	for i := range o.policies.Items {
		keep(o.policies.Items[i].UID)
	}
	for i := range o.clusterPolicies.Items {
		keep(o.clusterPolicies.Items[i].UID)
	}
	for i := range o.paths.Items {
		keep(o.paths.Items[i].UID)
	}
	for i := range o.nodes.Items {
		keep(o.nodes.Items[i].UID)
	}
	for i := range o.endpoints.Items {
		keep(o.endpoints.Items[i].UID)
	}
	w.latest = kept
}

// apply sends the status by server-side apply. The UID keeps it from reaching
// another object of the same name.
func (w *statusWriter) apply(ctx context.Context, object client.Object, status any) error {
	gvk, err := apiutil.GVKForObject(object, w.client.Scheme())
	if err != nil {
		return err
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(status)
	if err != nil {
		return err
	}
	u := &unstructured.Unstructured{Object: map[string]any{"status": fields}}
	u.SetGroupVersionKind(gvk)
	u.SetNamespace(object.GetNamespace())
	u.SetName(object.GetName())
	u.SetUID(object.GetUID())
	return w.client.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(FieldOwner), client.ForceOwnership)
}

// quietAtFirst are reasons that are no news when a condition first appears.
var quietAtFirst = []string{
	v1alpha1.ReasonAccepted, v1alpha1.ReasonConfirmed, v1alpha1.ReasonUnproven, v1alpha1.ReasonHintsAccepted, v1alpha1.ReasonEffective, v1alpha1.ReasonPending, v1alpha1.ReasonNoPodsSelected, v1alpha1.ReasonNotSelected,
	v1alpha1.ReasonNotReported, v1alpha1.ReasonNothingSent, v1alpha1.ReasonLittleSent, v1alpha1.ReasonNothingAnnounced, v1alpha1.ReasonGuestAgentNotAsked,
}

// warnings are reasons that somebody should do something about.
var warnings = []string{
	v1alpha1.ReasonInvalidSelector, v1alpha1.ReasonPathNotFound, v1alpha1.ReasonTooManyPaths,
	v1alpha1.ReasonPathNotAllowed, v1alpha1.ReasonCapacityMissing, v1alpha1.ReasonHintsRefused,
	v1alpha1.ReasonEndpointFailed, v1alpha1.ReasonDatapathFailed, v1alpha1.ReasonAgentNotReporting,
	v1alpha1.ReasonInterfaceNotFound, v1alpha1.ReasonInterfaceDown, v1alpha1.ReasonInterfaceNotUsable, v1alpha1.ReasonPeersUnreachable,
	v1alpha1.ReasonInvalidRule, v1alpha1.ReasonImpossibleMatch, v1alpha1.ReasonContradictingRules,
	v1alpha1.ReasonProgramNotFound, v1alpha1.ReasonTooManyRules, v1alpha1.ReasonRuleFailed,
	v1alpha1.ReasonDuplicate, v1alpha1.ReasonOutOfRange, v1alpha1.ReasonPodRange, v1alpha1.ReasonNotUnicast, v1alpha1.ReasonMalformed, v1alpha1.ReasonNotForGuests, v1alpha1.ReasonNodeNotFound, v1alpha1.ReasonGuestAgentUnreachable, v1alpha1.ReasonGuestAgentRefused,
	v1alpha1.ReasonPlainTCP, v1alpha1.ReasonUpgradeUnsupported, v1alpha1.ReasonPeerNotSelected,
	v1alpha1.ReasonOverlayNotSteered, v1alpha1.ReasonEncryptedOverlay, v1alpha1.ReasonNoSecondPath, v1alpha1.ReasonOnePathUsed, v1alpha1.ReasonNotAnswered,
	v1alpha1.ReasonGuestTakesNoAnnouncements,
}

// tell makes an Event of every condition whose status changed, or that is still
// not True for another reason.
func (w *statusWriter) tell(object client.Object, previous, conditions []metav1.Condition) {
	for _, c := range conditions {
		if !isNews(meta.FindStatusCondition(previous, c.Type), c) {
			continue
		}
		eventType := corev1.EventTypeNormal
		if slices.Contains(warnings, c.Reason) {
			eventType = corev1.EventTypeWarning
		}
		w.recorder.Eventf(object, nil, eventType, c.Reason, c.Type, "%s", shorten(c.Message, maxEventNote))
	}
}

func isNews(before *metav1.Condition, c metav1.Condition) bool {
	if before == nil {
		return !slices.Contains(quietAtFirst, c.Reason)
	}
	return before.Status != c.Status || c.Status != metav1.ConditionTrue && before.Reason != c.Reason
}

// maxEventNote is the API's limit to the note of an Event, in bytes.
const maxEventNote = 1024

func shorten(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	const ellipsis = "…"
	cut := limit - len(ellipsis)
	for cut > 0 && text[cut]&0xC0 == 0x80 { // not inside a UTF-8 sequence
		cut--
	}
	return text[:cut] + ellipsis
}

// withTransitionTimes gives each condition the time at which its status changed
// last.
func withTransitionTimes(previous, conditions []metav1.Condition) []metav1.Condition {
	merged := slices.Clone(previous)
	for _, c := range conditions {
		meta.SetStatusCondition(&merged, c)
	}
	return slices.DeleteFunc(merged, func(c metav1.Condition) bool {
		return meta.FindStatusCondition(conditions, c.Type) == nil
	})
}
