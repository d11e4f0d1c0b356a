// SPDX-License-Identifier: Apache-2.0

package faults_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"

	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/types"

	"braid.dev/braid/plugin"
)

// channel is a way in which users are told.
type channel string

const (
	byStatus  channel = "status"
	byExplain channel = "explain"
	byEvent   channel = "Event"
	byAlert   channel = "alert"
)

var channels = []channel{byStatus, byExplain, byEvent, byAlert}

// said is what all channels say at a time; explain by the pod that it is asked about.
type said struct {
	status, events, alerts string
	explained              map[string]string
}

func (s *said) by(c channel, pod string) string {
	switch c {
	case byStatus:
		return s.status
	case byExplain:
		return s.explained[pod]
	case byEvent:
		return s.events
	}
	return s.alerts
}

// listen asks all channels. Errors are told to whoever asks, so they are what is said.
func (s *scene) listen(t *testing.T, pods map[string]bool) *said {
	t.Helper()
	now := &said{status: s.plugin("status", "--no-workloads"), alerts: s.firing(t), explained: map[string]string{}}
	for pod := range pods {
		now.explained[pod] = s.plugin("explain", pod, "--namespace", shop)
	}
	now.events = s.newEvents()
	return now
}

// plugin is what `kubectl braid` prints, its error included.
func (s *scene) plugin(arguments ...string) string {
	var out, warnings bytes.Buffer
	command := plugin.Command(&out, "test")
	command.SetErr(&warnings) // no agent is a pod here, to be asked
	command.SetArgs(append(arguments, "--kubeconfig", s.Server.KubeconfigPath()))
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := command.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(&out, "error:", err)
	}
	return out.String()
}

// newEvents are those that were not there, or not so often, when the scene forgot what was.
// Nothing is there to read while the API server is away.
func (s *scene) newEvents() string {
	var list eventsv1.EventList
	if err := s.Client.List(context.Background(), &list); err != nil {
		return ""
	}
	var text strings.Builder
	for i := range list.Items {
		if e := &list.Items[i]; timesOf(e) > s.known[e.UID] {
			fmt.Fprintf(&text, "%s %s %s/%s: %s\n", e.Type, e.Reason, e.Regarding.Kind, e.Regarding.Name, e.Note)
		}
	}
	return text.String()
}

// forgetEvents takes all Events for old ones.
func (s *scene) forgetEvents(t *testing.T) {
	t.Helper()
	var list eventsv1.EventList
	if err := s.Client.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	s.known = map[types.UID]int32{}
	for i := range list.Items {
		s.known[list.Items[i].UID] = timesOf(&list.Items[i])
	}
}

func timesOf(e *eventsv1.Event) int32 {
	if e.Series != nil {
		return e.Series.Count
	}
	return 1
}
