// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"fmt"
	"hash/fnv"
	"os"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"braid.dev/braid/api/v1alpha1"
)

const (
	// maxWaitingEvents bounds the Events about hints that wait to be written.
	maxWaitingEvents = 4096
	// hintAction is what Events about hints say was to be done.
	hintAction = "FollowHint"
)

// hintTeller makes an Event on a pod for each of its annotations that is refused.
// What counts as news is what a plan says and the plan before it did not, so that
// neither another run nor a new controller says it again. Events are written one
// after the other beside the plans, which do not wait for them.
//
// They are not left to an event recorder, because that counts what has the same
// reason as a repetition, and drops what the second one says.
type hintTeller struct {
	client   client.Client
	instance string
	waiting  chan *eventsv1.Event
}

func newHintTeller(c client.Client) *hintTeller {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return &hintTeller{client: c, instance: FieldOwner + "-" + host, waiting: make(chan *eventsv1.Event, maxWaitingEvents)}
}

// Start writes the Events until the context ends.
func (t *hintTeller) Start(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case event := <-t.waiting:
			t.write(ctx, event)
		}
	}
}

// tell has an Event made for everything that a plan refuses and that the
// endpoints of the plan before it do not mention.
func (t *hintTeller) tell(ctx context.Context, before []v1alpha1.PlanEndpoint, plan *v1alpha1.MPTCPNodePlan) {
	known := map[types.UID][]v1alpha1.RefusedHint{}
	for i := range before {
		if len(before[i].RefusedHints) > 0 {
			known[before[i].UID] = before[i].RefusedHints
		}
	}
	for i := range plan.Spec.Endpoints {
		e := &plan.Spec.Endpoints[i]
		for _, refused := range newRefusals(known[e.UID], e.RefusedHints) {
			t.queue(ctx, t.event(e, refused, plan))
		}
	}
}

func newRefusals(before, after []v1alpha1.RefusedHint) []v1alpha1.RefusedHint {
	var news []v1alpha1.RefusedHint
	for _, refused := range after {
		if !slices.Contains(before, refused) {
			news = append(news, refused)
		}
	}
	return news
}

func (t *hintTeller) queue(ctx context.Context, event *eventsv1.Event) {
	select {
	case t.waiting <- event:
	default:
		hintEvents.WithLabelValues("dropped").Inc()
		log.FromContext(ctx).Info("Too many Events about hints wait to be written; this one is dropped",
			"pod", event.Namespace+"/"+event.Regarding.Name, "reason", event.Reason)
	}
}

// event says what is wrong with a hint. Its name is the same for the same plan,
// so that it is not there twice if the plan's write is tried again.
func (t *hintTeller) event(e *v1alpha1.PlanEndpoint, refused v1alpha1.RefusedHint, plan *v1alpha1.MPTCPNodePlan) *eventsv1.Event {
	sum := fnv.New64a()
	fmt.Fprint(sum, e.UID, plan.UID, plan.Generation, refused)
	return &eventsv1.Event{
		ObjectMeta:          metav1.ObjectMeta{Namespace: e.Namespace, Name: fmt.Sprintf("%s.%x", strings.TrimRight(e.Name[:min(len(e.Name), 200)], ".-"), sum.Sum64())},
		EventTime:           metav1.NewMicroTime(time.Now()),
		ReportingController: FieldOwner,
		ReportingInstance:   shorten(t.instance, 128),
		Action:              hintAction,
		Reason:              refused.Reason,
		Regarding:           corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: e.Namespace, Name: e.Name, UID: e.UID},
		Note:                shorten(refused.Annotation+": "+refused.Message, maxEventNote),
		Type:                corev1.EventTypeWarning,
	}
}

func (t *hintTeller) write(ctx context.Context, event *eventsv1.Event) {
	err := t.client.Create(ctx, event, client.FieldOwner(FieldOwner))
	switch {
	case err == nil || apierrors.IsAlreadyExists(err):
		hintEvents.WithLabelValues("written").Inc()
	case ctx.Err() != nil:
	default:
		hintEvents.WithLabelValues("failed").Inc()
		log.FromContext(ctx).Error(err, "Cannot write an Event about a refused hint", "pod", event.Namespace+"/"+event.Regarding.Name)
	}
}
