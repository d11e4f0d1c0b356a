// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"fmt"
	"hash/fnv"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/room"
	"braid.dev/braid/policy"
)

const (
	// maxWaitingEvents bounds the Events about hints that wait to be written.
	maxWaitingEvents = 4096
	// Each pod gets so many Events about its hints at once, and then one in so long, as
	// the kubelet's recorder does it: who changes an annotation all the time is told often
	// enough. maxTalkative is of how many pods that is known at a time.
	podEventsBurst = 25
	podEventsEvery = 5 * time.Minute
	maxTalkative   = 4096
	// hintAction is what Events about hints say was to be done.
	hintAction = "FollowHint"
)

// hintTeller makes an Event on a pod for each of its annotations that is refused,
// and one on an annotated pod that no policy selects. What counts as news is what a
// plan says and the plan before it did not, so that neither another run nor a new
// controller says it again; pods that no policy selects are in no plan, and are
// remembered. Events are written one after the other beside the plans, which do not
// wait for them.
//
// They are not left to an event recorder, because that counts what has the same
// reason as a repetition, and drops what the second one says.
type hintTeller struct {
	client   client.Client
	instance string
	waiting  chan *eventsv1.Event
	rates    *room.Rates[types.UID] // of pods
	// unselected holds what the pods of each node that no policy selected in the last
	// run were told.
	unselected map[string]map[types.UID]string
}

func newHintTeller(c client.Client) *hintTeller {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return &hintTeller{
		client: c, instance: FieldOwner + "-" + host, waiting: make(chan *eventsv1.Event, maxWaitingEvents),
		rates: room.NewRates[types.UID](rate.Every(podEventsEvery), podEventsBurst, maxTalkative), unselected: map[string]map[types.UID]string{},
	}
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
			t.queue(ctx, t.refusal(e, refused, plan))
		}
	}
}

// tellUnselected has an Event made for each annotated pod of a node that no policy
// selects, unless the run before found the same.
func (t *hintTeller) tellUnselected(ctx context.Context, node string, decisions []policy.Decision) {
	before, now := t.unselected[node], map[types.UID]string{}
	for i := range decisions {
		d := &decisions[i]
		if d.Ignored != "" || d.Winner != nil || len(d.Hints) == 0 {
			continue
		}
		note := unselectedNote(d.Hints)
		now[d.Pod.UID] = note
		if before[d.Pod.UID] != note {
			t.queue(ctx, t.unselectedEvent(d.Pod, note))
		}
	}
	if len(now) == 0 {
		delete(t.unselected, node)
		return
	}
	t.unselected[node] = now
}

// forgetAllBut drops what pods of nodes were told that are gone.
func (t *hintTeller) forgetAllBut(nodes map[string]bool) {
	maps.DeleteFunc(t.unselected, func(node string, _ map[types.UID]string) bool { return !nodes[node] })
}

func unselectedNote(hints []policy.HintChoice) string {
	given := make([]string, 0, len(hints))
	for _, hint := range hints {
		given = append(given, fmt.Sprintf("%s=%q", hint.Annotation, hint.Value))
	}
	return strings.Join(given, ", ") + ": no policy selects the pod, so its annotations have no effect. " +
		"An MPTCPPolicy of its namespace or a ClusterMPTCPPolicy selects pods by their labels"
}

// unselectedEvent has the same name for the same note, so that a new controller does
// not make it again as long as it is there.
func (t *hintTeller) unselectedEvent(pod policy.PodRef, note string) *eventsv1.Event {
	sum := fnv.New64a()
	fmt.Fprint(sum, pod.UID, note)
	return t.event(pod, sum.Sum64(), v1alpha1.ReasonHintWithoutPolicy, note)
}

func newRefusals(before, after []v1alpha1.RefusedHint) []v1alpha1.RefusedHint {
	var fresh []v1alpha1.RefusedHint
	for _, refused := range after {
		if !slices.Contains(before, refused) {
			fresh = append(fresh, refused)
		}
	}
	return fresh
}

func (t *hintTeller) queue(ctx context.Context, event *eventsv1.Event) {
	if !t.rates.Allow(event.Regarding.UID) {
		hintEvents.WithLabelValues("withheld").Inc()
		return
	}
	select {
	case t.waiting <- event:
	default:
		hintEvents.WithLabelValues("dropped").Inc()
		log.FromContext(ctx).Info("Too many Events about hints wait to be written; this one is dropped",
			"pod", event.Namespace+"/"+event.Regarding.Name, "reason", event.Reason)
	}
}

// refusal says what is wrong with a hint. Its name is the same for the same plan,
// so that it is not there twice if the plan's write is tried again.
func (t *hintTeller) refusal(e *v1alpha1.PlanEndpoint, refused v1alpha1.RefusedHint, plan *v1alpha1.MPTCPNodePlan) *eventsv1.Event {
	sum := fnv.New64a()
	fmt.Fprint(sum, e.UID, plan.UID, plan.Generation, refused)
	pod := policy.PodRef{Namespace: e.Namespace, Name: e.Name, UID: e.UID}
	if e.Guest != nil {
		pod.Kind = policy.KindEndpoint
	}
	return t.event(pod, sum.Sum64(), refused.Reason, refused.Annotation+": "+refused.Message)
}

// event is a warning about a pod; sum makes its name its own.
func (t *hintTeller) event(pod policy.PodRef, sum uint64, reason, note string) *eventsv1.Event {
	version, kind := "v1", "Pod"
	if pod.Kind != "" {
		version, kind = v1alpha1.GroupVersion.String(), pod.Kind
	}
	return &eventsv1.Event{
		ObjectMeta:          metav1.ObjectMeta{Namespace: pod.Namespace, Name: fmt.Sprintf("%s.%x", strings.TrimRight(pod.Name[:min(len(pod.Name), 200)], ".-"), sum)},
		EventTime:           metav1.NewMicroTime(time.Now()),
		ReportingController: FieldOwner,
		ReportingInstance:   shorten(t.instance, 128),
		Action:              hintAction,
		Reason:              reason,
		Regarding:           corev1.ObjectReference{APIVersion: version, Kind: kind, Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		Note:                shorten(note, maxEventNote),
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
		log.FromContext(ctx).Error(err, "Failed to write an Event about a hint", "pod", event.Namespace+"/"+event.Regarding.Name)
	}
}
