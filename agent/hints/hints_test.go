// SPDX-License-Identifier: Apache-2.0

package hints

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"braid.dev/braid/agent/datapath"
	"braid.dev/braid/agent/health"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/agent/paths"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/testutil"
)

// usual is a preference with the API's defaults.
var usual = v1alpha1.PlanPreference{
	Weight: 100, MaxRTTPercent: 200, MinRTTDifferenceMicros: 5000, MaxLossPercent: 10, LeaveAfterMillis: 100, ReturnAfterMillis: 500,
}

// factor is the usual preference with another factor.
func factor(percent int32) *v1alpha1.PlanPreference {
	preference := usual
	preference.MaxRTTPercent = percent
	return &preference
}

// preferring is an endpoint that prefers paths by its annotation.
func preferring(uid string, preference *v1alpha1.PlanPreference, paths ...v1alpha1.PathName) v1alpha1.PlanEndpoint {
	return v1alpha1.PlanEndpoint{
		UID: types.UID(uid), Preferred: paths, Preference: preference, Hinted: []string{v1alpha1.AnnotationPreferredPaths},
	}
}

// rig is a Hints with a clock, probes and a datapath of the test's own.
type rig struct {
	*Hints
	mu       sync.Mutex
	time     time.Time
	view     health.View
	changed  chan struct{}
	told     []map[string]datapath.PeerHealth
	refuse   error
	notified int
	model    *node.Model
	report   node.Report
}

func (r *rig) View() health.View {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.view
}

func (r *rig) Changed() <-chan struct{} { return r.changed }

func newRig(t *testing.T) *rig {
	r := &rig{time: time.Now(), changed: make(chan struct{}, 1)}
	r.Hints = New(Options{
		Log: testr.New(t), Prober: r, Notify: func() { r.notified++ },
		SetHealth: func(health map[string]datapath.PeerHealth) error {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.told = append(r.told, health)
			return r.refuse
		},
	})
	r.settled, r.now = true, func() time.Time { return r.time }
	return r
}

// planFor applies a model of these endpoints, with paths of this node, all usable, and
// of three peers. change changes it before.
func (r *rig) planFor(t *testing.T, endpoints []v1alpha1.PlanEndpoint, change ...func(*node.Model)) {
	t.Helper()
	r.model = modelOf(endpoints)
	for _, change := range change {
		change(r.model)
	}
	if r.report = r.Apply(t.Context(), r.model); !r.report.Done() {
		t.Fatal(r.report.Err)
	}
}

func modelOf(endpoints []v1alpha1.PlanEndpoint) *node.Model {
	model := &node.Model{}
	for i := range endpoints {
		model.Endpoints = append(model.Endpoints, node.Endpoint{PlanEndpoint: &endpoints[i], Class: classIn(&model.Preferences, &endpoints[i])})
	}
	for i, name := range []string{"blue", "green", "red"} {
		model.Paths = append(model.Paths, node.Path{Name: name, Interface: 2 + i, Up: true})
	}
	for i := range 3 {
		peer := paths.Peer{Name: fmt.Sprint("node", 2+i), Paths: map[string]paths.PeerPath{}}
		for _, path := range model.Paths {
			peer.Paths[path.Name] = paths.PeerPath{Up: true, Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.2")}}
		}
		model.Peers = append(model.Peers, node.Peer{Peer: peer})
	}
	return model
}

// classIn is the endpoint's class, a new one where there is room.
func classIn(classes *node.Preferences, endpoint *v1alpha1.PlanEndpoint) int {
	class, exact := classes.Class(endpoint)
	if free := slices.Index(classes[:], nil); !exact && free >= 0 {
		class, classes[free] = free, &node.Preference{PlanPreference: *endpoint.Preference, Paths: map[v1alpha1.PathName]bool{}}
	}
	for _, path := range endpoint.Preferred {
		classes[class].Paths[path] = true
	}
	return class
}

// measured are round trips in milliseconds; 0 for a dead path.
func (r *rig) measured(peer string, millis map[string]int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for path, ms := range millis {
		sample := health.Sample{State: health.Alive, RTT: time.Duration(ms) * time.Millisecond, Probed: true, Answers: true}
		if ms == 0 {
			sample = health.Sample{State: health.Dead, Probed: true}
		}
		r.view.Set(peer, path, sample)
	}
}

// pass lets time pass, in the steps in which it is judged.
func (r *rig) pass(duration time.Duration) {
	for end := r.time.Add(duration); r.time.Before(end); r.time = r.time.Add(25 * time.Millisecond) {
		r.again()
	}
	r.again()
}

func (r *rig) last() map[string]datapath.PeerHealth { return r.told[len(r.told)-1] }

// status is what is said of an endpoint's hints.
func (r *rig) status(uid types.UID) []v1alpha1.HintStatus {
	statuses := r.report.Statuses(r.model)
	at := slices.IndexFunc(statuses, func(status v1alpha1.EndpointStatus) bool { return status.UID == uid })
	return statuses[at].Hints
}

func TestDeadPathsReachTheDatapathAtOnce(t *testing.T) {
	r := newRig(t)
	r.planFor(t, nil)
	r.measured("node2", map[string]int{"blue": 40, "green": 0})
	r.again()
	if dead := r.last()["node2"].Dead; !maps.Equal(dead, map[string]bool{"green": true}) {
		t.Errorf("dead: %v", dead)
	}
	r.measured("node2", map[string]int{"green": 40})
	r.again()
	if dead := r.last()["node2"].Dead; len(dead) > 0 {
		t.Errorf("after its return, dead: %v", dead)
	}
}

func TestDistantPathsReachTheDatapath(t *testing.T) {
	r := newRig(t)
	r.planFor(t, []v1alpha1.PlanEndpoint{preferring("1", factor(200), "green")})
	r.measured("node2", map[string]int{"blue": 40, "green": 200})
	for _, distant := range []bool{true, false} {
		sample := r.view.Sample("node2", "green")
		sample.Distant, sample.DistanceKnown = distant, true
		r.view.Set("node2", "green", sample)
		r.again()
		require.Equal(t, map[string]bool{"green": distant}, r.last()["node2"].Distant)
		require.Empty(t, r.last()["node3"].Distant)
	}
}

func TestAPathIsGivenUpForTheClassesThatFindItBad(t *testing.T) {
	r := newRig(t)
	strict, patient := preferring("1", factor(200), "green"), preferring("2", factor(1000), "green")
	r.planFor(t, []v1alpha1.PlanEndpoint{strict, patient})
	r.measured("node2", map[string]int{"blue": 40, "green": 200})
	r.measured("node3", map[string]int{"blue": 40, "green": 60})
	r.pass(200 * time.Millisecond)
	class := r.model.Endpoints[0].Class
	if good := r.last()["node2"].Good; good[class]["green"] || !good[class]["blue"] || !good[1-class]["green"] {
		t.Errorf("good to node2: %v", good)
	}
	if good := r.last()["node3"].Good; !good[class]["green"] {
		t.Errorf("good to node3: %v", good)
	}
	expected := v1alpha1.HintStatus{
		Annotation: v1alpha1.AnnotationPreferredPaths, State: v1alpha1.HintGivenUp,
		Message: "green is not used to node2 (its round trip took 200ms, and the best path's 40ms)",
	}
	if status := r.status("1"); !cmp.Equal(status, []v1alpha1.HintStatus{expected}) {
		t.Errorf("the status is %+v", status)
	}
	if status := r.status("2"); status[0].State != v1alpha1.HintFollowed || status[0].Message != "" {
		t.Errorf("the patient one's is %+v", status)
	}
	r.measured("node2", map[string]int{"green": 45})
	r.pass(700 * time.Millisecond)
	if good := r.last()["node2"].Good; !good[class]["green"] {
		t.Errorf("after its recovery, good to node2: %v", good)
	}
	if status := r.status("1"); status[0].State != v1alpha1.HintFollowed || status[0].Message != "" {
		t.Errorf("after its recovery the status is %+v", status)
	}
}

func TestAStatusIsPublishedWhenItIsNoLongerRight(t *testing.T) {
	r := newRig(t)
	r.planFor(t, []v1alpha1.PlanEndpoint{preferring("1", &usual, "green")})
	r.options.Notify = func() { r.notified++; r.published = r.avoided }
	steps := []struct {
		name     string
		measured map[string]int
		expected int
	}{
		{"nothing", nil, 0},
		{"a path that nobody prefers dies", map[string]int{"red": 0, "blue": 1}, 0},
		{"the preferred one dies", map[string]int{"green": 0}, 1},
		{"it stays dead", nil, 0},
		{"it is alive", map[string]int{"green": 1}, 1},
		{"another becomes slow", map[string]int{"blue": 50}, 0},
		{"it becomes slow", map[string]int{"blue": 1, "green": 50}, 1},
		{"it becomes slower", map[string]int{"green": 70}, 0},
	}
	for _, step := range steps {
		r.notified = 0
		r.measured("node2", step.measured)
		r.pass(5 * time.Second)
		if r.notified != step.expected {
			t.Errorf("when %s, it was published %d times instead of %d", step.name, r.notified, step.expected)
		}
	}
}

func TestAPathThatFlapsIsNotPublishedOftenAndNotForgotten(t *testing.T) {
	r := newRig(t)
	r.planFor(t, []v1alpha1.PlanEndpoint{preferring("1", &usual, "green")})
	r.options.Notify = func() { r.notified++; r.published = r.avoided }
	const flaps = 20
	for i := range flaps {
		r.measured("node2", map[string]int{"blue": 1, "green": i % 2})
		r.pass(time.Second)
	}
	if most := int(flaps*time.Second/notifyAgain) + 1; r.notified == 0 || r.notified > most {
		t.Errorf("published %d times in %d seconds", r.notified, flaps)
	}
	r.pass(notifyAgain)
	if !maps.Equal(r.avoided, r.published) {
		t.Errorf("%v was published last, and it is %v", r.published, r.avoided)
	}
}

// A notification may be lost, or what it led to may fail.
func TestWhatWasNotPublishedIsTriedAgain(t *testing.T) {
	r := newRig(t)
	r.planFor(t, []v1alpha1.PlanEndpoint{preferring("1", &usual, "green")})
	r.measured("node2", map[string]int{"blue": 1, "green": 0})
	r.pass(2*notifyAgain + notifyAgain/2)
	if r.notified != 3 {
		t.Errorf("tried %d times", r.notified)
	}
}

func TestHintStatuses(t *testing.T) {
	const preferred, backup, rate = v1alpha1.AnnotationPreferredPaths, v1alpha1.AnnotationBackupPaths, v1alpha1.AnnotationMaxRate
	down := func(m *node.Model) { m.Paths[1].Up, m.Paths[1].Found.Message = false, "green has no carrier" }
	downThere := func(peers ...int) func(*node.Model) {
		return func(m *node.Model) {
			for _, i := range peers {
				m.Peers[i].Paths["green"] = paths.PeerPath{}
			}
		}
	}
	dead := map[string]int{"green": 0, "blue": 1, "red": 1}
	cases := map[string]struct {
		endpoint v1alpha1.PlanEndpoint
		change   func(*node.Model)
		toNode3  map[string]int
		expected []v1alpha1.HintStatus
	}{
		"no hints": {v1alpha1.PlanEndpoint{}, nil, nil, nil},
		"all annotations": {
			v1alpha1.PlanEndpoint{Preferred: []v1alpha1.PathName{"green"}, Backup: []v1alpha1.PathName{"red"}, Preference: &usual, Hinted: []string{preferred, backup, rate}}, nil, nil,
			[]v1alpha1.HintStatus{{Annotation: preferred, State: v1alpha1.HintFollowed}, {Annotation: backup, State: v1alpha1.HintFollowed}, {Annotation: rate, State: v1alpha1.HintFollowed}},
		},
		"the policy's own paths": {
			v1alpha1.PlanEndpoint{Preferred: []v1alpha1.PathName{"green"}, Backup: []v1alpha1.PathName{"red"}, Preference: &usual}, nil, nil,
			[]v1alpha1.HintStatus{{Annotation: fromPolicy, State: v1alpha1.HintFollowed}},
		},
		"refused": {
			v1alpha1.PlanEndpoint{RefusedHints: []v1alpha1.RefusedHint{{Annotation: rate, Reason: "HintMalformed", Message: "no rate"}}}, nil, nil,
			[]v1alpha1.HintStatus{{Annotation: rate, State: v1alpha1.HintRefused, Message: "no rate"}},
		},
		"refused twice": {
			v1alpha1.PlanEndpoint{RefusedHints: []v1alpha1.RefusedHint{{Annotation: preferred, Message: "no such path"}, {Annotation: preferred, Message: "not allowed"}}}, nil, nil,
			[]v1alpha1.HintStatus{{Annotation: preferred, State: v1alpha1.HintRefused, Message: "no such path; not allowed"}},
		},
		"followed in part": {
			v1alpha1.PlanEndpoint{
				Preferred: []v1alpha1.PathName{"green"}, Preference: &usual, Hinted: []string{preferred},
				RefusedHints: []v1alpha1.RefusedHint{{Annotation: preferred, Message: "red: not allowed"}},
			}, nil, nil,
			[]v1alpha1.HintStatus{{Annotation: preferred, State: v1alpha1.HintFollowed, Message: "red: not allowed"}},
		},
		"the path is down here": {
			preferring("1", &usual, "green"), down, nil,
			[]v1alpha1.HintStatus{{Annotation: preferred, State: v1alpha1.HintGivenUp, Message: "green is not used to any of 3 nodes (on this node, green has no carrier)"}},
		},
		"the path is not here": {
			preferring("1", &usual, "green"), func(m *node.Model) { m.Paths = m.Paths[:1] }, nil,
			[]v1alpha1.HintStatus{{Annotation: preferred, State: v1alpha1.HintGivenUp, Message: "green is not used to any of 3 nodes (this node does not have it)"}},
		},
		"the path is down at two peers": {
			preferring("1", &usual, "green"), downThere(0, 2), nil,
			[]v1alpha1.HintStatus{{Annotation: preferred, State: v1alpha1.HintGivenUp, Message: "green is not used to node2, node4 (it is down there)"}},
		},
		"one of two is down, and the other takes it all": {
			preferring("1", &usual, "green", "blue"), down, nil,
			[]v1alpha1.HintStatus{{Annotation: preferred, State: v1alpha1.HintFollowed, Message: "green is not used to any of 3 nodes (on this node, green has no carrier)"}},
		},
		"the node has no NICs, so that no peers are known": {
			preferring("1", &usual, "green"), func(m *node.Model) { m.Paths, m.Peers = nil, nil }, nil,
			[]v1alpha1.HintStatus{{Annotation: preferred, State: v1alpha1.HintGivenUp, Message: "green is not used to any node (this node does not have it)"}},
		},
		"dead to one, and down at another": {
			preferring("1", &usual, "green"), downThere(0), dead,
			[]v1alpha1.HintStatus{{Annotation: preferred, State: v1alpha1.HintGivenUp, Message: "green is not used to node2 (it is down there), to node3 (it does not answer probes)"}},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.measured("node3", c.toNode3)
			change := []func(*node.Model){c.change}
			if c.change == nil {
				change = nil
			}
			r.planFor(t, []v1alpha1.PlanEndpoint{c.endpoint}, change...)
			if status := r.status(c.endpoint.UID); !cmp.Equal(status, c.expected) {
				t.Errorf("the statuses are wrong:\n%s", cmp.Diff(c.expected, status))
			}
		})
	}
}

func TestMessagesOfHintsFitTheSchema(t *testing.T) {
	r := newRig(t)
	long := strings.Repeat("x", 500)
	endpoint := preferring("1", &usual, "green", "blue", "red")
	endpoint.RefusedHints = []v1alpha1.RefusedHint{{Annotation: v1alpha1.AnnotationPreferredPaths, Message: long}}
	r.planFor(t, []v1alpha1.PlanEndpoint{endpoint}, func(m *node.Model) {
		for i := range m.Paths {
			m.Paths[i].Up, m.Paths[i].Found.Message = false, long
		}
	})
	if message := r.status(endpoint.UID)[0].Message; len(message) > 512 || len(message) < 400 {
		t.Errorf("a message of %d bytes", len(message))
	}
}

func TestPreferencesThatShareAClassSaySo(t *testing.T) {
	r := newRig(t)
	var endpoints []v1alpha1.PlanEndpoint
	for i := range int32(node.MaxClasses + 1) {
		endpoints = append(endpoints, preferring(fmt.Sprint(i), factor(2000+i), "green"))
	}
	r.planFor(t, endpoints)
	for i := range endpoints {
		status := r.status(endpoints[i].UID)
		if says := strings.Contains(status[0].Message, "8 preferences"); says != (i == node.MaxClasses) {
			t.Errorf("endpoint %d: %+v", i, status)
		}
	}
}

// Before the probes of a new agent can know anything, what the last one knew holds.
func TestNothingIsSaidBeforeItIsKnown(t *testing.T) {
	r := newRig(t)
	r.settled = false
	r.planFor(t, []v1alpha1.PlanEndpoint{preferring("1", &usual, "green")})
	r.again()
	if len(r.told) > 0 {
		t.Errorf("told %v", r.told)
	}
	r.settle()
	r.again()
	if len(r.told) != 1 || len(r.last()) > 0 {
		t.Errorf("told %v", r.told)
	}
}

func TestWithoutProbesAllPathsAreGood(t *testing.T) {
	r := newRig(t)
	r.planFor(t, []v1alpha1.PlanEndpoint{preferring("1", &usual, "green")})
	if status := r.status("1"); len(r.last()) > 0 || status[0].State != v1alpha1.HintFollowed {
		t.Errorf("told %v, and the status %+v", r.last(), status)
	}
}

func TestWhatTheDatapathRefusedIsToldAgain(t *testing.T) {
	r := newRig(t)
	r.planFor(t, nil)
	r.refuse = errors.New("no")
	if wait := r.again(); wait != retry {
		t.Errorf("again after %s", wait)
	}
	if report := r.Apply(t.Context(), r.model); report.Done() {
		t.Error("the report does not tell of it")
	}
}

// The goroutine hears of changes by itself: the agent's loop may be busy.
func TestChangesOfProbesDoNotWaitForTheLoop(t *testing.T) {
	r := newRig(t)
	r.now = time.Now
	r.planFor(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	r.measured("node2", map[string]int{"blue": 1, "green": 0})
	r.changed <- struct{}{}
	testutil.Eventually(t, 5*time.Second, "node2 is told", func() bool { return r.hasTold("node2", "green") })
	cancel()
	require.NoError(t, <-done)
}

func (r *rig) hasTold(peer, dead string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(r.told, func(told map[string]datapath.PeerHealth) bool { return told[peer].Dead[dead] })
}

// A notification is of use only as long as some status tells of what is avoided.
func TestNothingIsPublishedForEndpointsThatAreGone(t *testing.T) {
	r := newRig(t)
	r.measured("node2", map[string]int{"blue": 1, "green": 0})
	r.planFor(t, []v1alpha1.PlanEndpoint{preferring("1", &usual, "green")})
	if status := r.status("1"); status[0].State != v1alpha1.HintGivenUp || len(r.published) != 1 {
		t.Fatalf("the status is %+v, and published is %v", status, r.published)
	}
	r.planFor(t, nil)
	r.pass(3 * notifyAgain)
	if r.notified != 0 {
		t.Errorf("notified %d times", r.notified)
	}
}
