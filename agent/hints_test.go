// SPDX-License-Identifier: Apache-2.0

package agent

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
	"pgregory.net/rapid"

	"braid.dev/braid/agent/datapath"
	"braid.dev/braid/agent/health"
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

// rig is a hints with a clock, probes and a datapath of the test's own.
type rig struct {
	*hints
	mu      sync.Mutex
	time    time.Time
	view    health.View
	changed chan struct{}
	told    []map[string]datapath.PeerHealth
	refuse  error
}

func (r *rig) View() health.View {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.view
}

func (r *rig) Changed() <-chan struct{} { return r.changed }

func newRig(t *testing.T) *rig {
	r := &rig{time: time.Now(), changed: make(chan struct{}, 1)}
	r.hints = &hints{
		log: testr.New(t), prober: r, settled: true,
		now:  func() time.Time { return r.time },
		wake: func() {},
		setHealth: func(health map[string]datapath.PeerHealth) error {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.told = append(r.told, health)
			return r.refuse
		},
	}
	return r
}

// paths of this node, all usable, and of three peers.
func (r *rig) planFor(t *testing.T, endpoints ...v1alpha1.PlanEndpoint) {
	t.Helper()
	found := []paths.Path{onNIC("blue", 2, true), onNIC("green", 3, true), onNIC("red", 4, true)}
	n := &news{plan: &v1alpha1.MPTCPNodePlan{Spec: v1alpha1.MPTCPNodePlanSpec{Endpoints: endpoints}}}
	for i := range 3 {
		peer := paths.Peer{Name: fmt.Sprint("node", 2+i), Paths: map[string]paths.PeerPath{}}
		for _, path := range found {
			peer.Paths[path.Name] = paths.PeerPath{Up: true, Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.2")}}
		}
		n.peers = append(n.peers, peer)
	}
	if err := r.plan(n, found); err != nil {
		t.Fatal(err)
	}
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

func (r *rig) status(endpoints ...v1alpha1.PlanEndpoint) []v1alpha1.HintStatus {
	results := make([]v1alpha1.EndpointStatus, len(endpoints))
	for i := range endpoints {
		results[i].UID = endpoints[i].UID
	}
	r.report(endpoints, results)
	return results[len(results)-1].Hints
}

func TestDeadPathsReachTheDatapathAtOnce(t *testing.T) {
	r := newRig(t)
	r.planFor(t)
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

func TestAPathIsGivenUpForTheClassesThatFindItBad(t *testing.T) {
	r := newRig(t)
	strict, patient := preferring("1", factor(2000), "green"), preferring("2", factor(10_000), "green")
	r.planFor(t, strict, patient)
	r.measured("node2", map[string]int{"blue": 40, "green": 200})
	r.measured("node3", map[string]int{"blue": 40, "green": 60})
	r.pass(200 * time.Millisecond)
	class := r.endpoint(&strict).Class
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
	if status := r.status(strict); !cmp.Equal(status, []v1alpha1.HintStatus{expected}) {
		t.Errorf("the status is %+v", status)
	}
	if status := r.status(patient); status[0].State != v1alpha1.HintFollowed || status[0].Message != "" {
		t.Errorf("the patient one's is %+v", status)
	}
	r.measured("node2", map[string]int{"green": 45})
	r.pass(700 * time.Millisecond)
	if good := r.last()["node2"].Good; !good[class]["green"] {
		t.Errorf("after its recovery, good to node2: %v", good)
	}
	if status := r.status(strict); status[0].State != v1alpha1.HintFollowed || status[0].Message != "" {
		t.Errorf("after its recovery the status is %+v", status)
	}
}

func TestAStatusIsPublishedWhenItIsNoLongerRight(t *testing.T) {
	r := newRig(t)
	endpoint := preferring("1", &usual, "green")
	r.planFor(t, endpoint)
	published := 0
	r.wake = func() { published++; r.hints.told = r.lost }
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
		published = 0
		r.measured("node2", step.measured)
		r.pass(5 * time.Second)
		if published != step.expected {
			t.Errorf("when %s, it was published %d times instead of %d", step.name, published, step.expected)
		}
	}
}

func TestAPathThatFlapsIsNotPublishedOftenAndNotForgotten(t *testing.T) {
	r := newRig(t)
	r.planFor(t, preferring("1", &usual, "green"))
	published := 0
	r.wake = func() { published++; r.hints.told = r.lost }
	const flaps = 20
	for i := range flaps {
		r.measured("node2", map[string]int{"blue": 1, "green": i % 2})
		r.pass(time.Second)
	}
	if most := int(flaps*time.Second/tellAgain) + 1; published == 0 || published > most {
		t.Errorf("published %d times in %d seconds", published, flaps)
	}
	r.pass(tellAgain)
	if !sameVerdicts(r.lost, r.hints.told) {
		t.Errorf("%v was published last, and it is %v", r.hints.told, r.lost)
	}
}

// A wake may be lost, or what it led to may fail.
func TestWhatWasNotPublishedIsTriedAgain(t *testing.T) {
	r := newRig(t)
	r.planFor(t, preferring("1", &usual, "green"))
	published := 0
	r.wake = func() { published++ }
	r.measured("node2", map[string]int{"blue": 1, "green": 0})
	r.pass(2*tellAgain + tellAgain/2)
	if published != 3 {
		t.Errorf("tried %d times", published)
	}
}

func TestHintStatuses(t *testing.T) {
	const preferred, backup, rate = v1alpha1.AnnotationPreferredPaths, v1alpha1.AnnotationBackupPaths, v1alpha1.AnnotationMaxRate
	down := func(r *rig) { r.scene.paths[1].Usable, r.scene.paths[1].Message = false, "green has no carrier" }
	downThere := func(peers ...int) func(r *rig) {
		return func(r *rig) {
			for _, i := range peers {
				r.scene.peers[i].Paths["green"] = paths.PeerPath{}
			}
		}
	}
	dead := func(r *rig) { r.measured("node3", map[string]int{"green": 0, "blue": 1, "red": 1}); r.again() }
	cases := map[string]struct {
		endpoint v1alpha1.PlanEndpoint
		change   func(*rig)
		expected []v1alpha1.HintStatus
	}{
		"no hints": {v1alpha1.PlanEndpoint{}, nil, nil},
		"all annotations": {
			v1alpha1.PlanEndpoint{Preferred: []v1alpha1.PathName{"green"}, Backup: []v1alpha1.PathName{"red"}, Preference: &usual, Hinted: []string{preferred, backup, rate}}, nil,
			[]v1alpha1.HintStatus{{Annotation: preferred, State: v1alpha1.HintFollowed}, {Annotation: backup, State: v1alpha1.HintFollowed}, {Annotation: rate, State: v1alpha1.HintFollowed}},
		},
		"the policy's own paths": {
			v1alpha1.PlanEndpoint{Preferred: []v1alpha1.PathName{"green"}, Backup: []v1alpha1.PathName{"red"}, Preference: &usual}, nil,
			[]v1alpha1.HintStatus{{Annotation: fromPolicy, State: v1alpha1.HintFollowed}},
		},
		"refused": {
			v1alpha1.PlanEndpoint{RefusedHints: []v1alpha1.RefusedHint{{Annotation: rate, Reason: "HintMalformed", Message: "no rate"}}}, nil,
			[]v1alpha1.HintStatus{{Annotation: rate, State: v1alpha1.HintRefused, Message: "no rate"}},
		},
		"refused twice": {
			v1alpha1.PlanEndpoint{RefusedHints: []v1alpha1.RefusedHint{{Annotation: preferred, Message: "no such path"}, {Annotation: preferred, Message: "not allowed"}}}, nil,
			[]v1alpha1.HintStatus{{Annotation: preferred, State: v1alpha1.HintRefused, Message: "no such path; not allowed"}},
		},
		"followed in part": {
			v1alpha1.PlanEndpoint{
				Preferred: []v1alpha1.PathName{"green"}, Preference: &usual, Hinted: []string{preferred},
				RefusedHints: []v1alpha1.RefusedHint{{Annotation: preferred, Message: "red: not allowed"}},
			}, nil,
			[]v1alpha1.HintStatus{{Annotation: preferred, State: v1alpha1.HintFollowed, Message: "red: not allowed"}},
		},
		"the path is down here": {
			preferring("1", &usual, "green"), down,
			[]v1alpha1.HintStatus{{Annotation: preferred, State: v1alpha1.HintGivenUp, Message: "green is not used to any of 3 nodes (on this node, green has no carrier)"}},
		},
		"the path is not here": {
			preferring("1", &usual, "green"), func(r *rig) { r.scene.paths = r.scene.paths[:1] },
			[]v1alpha1.HintStatus{{Annotation: preferred, State: v1alpha1.HintGivenUp, Message: "green is not used to any of 3 nodes (this node does not have it)"}},
		},
		"the path is down at two peers": {
			preferring("1", &usual, "green"), downThere(0, 2),
			[]v1alpha1.HintStatus{{Annotation: preferred, State: v1alpha1.HintGivenUp, Message: "green is not used to node2, node4 (it is down there)"}},
		},
		"one of two is down, and the other takes it all": {
			preferring("1", &usual, "green", "blue"), down,
			[]v1alpha1.HintStatus{{Annotation: preferred, State: v1alpha1.HintFollowed, Message: "green is not used to any of 3 nodes (on this node, green has no carrier)"}},
		},
		"dead to one, and down at another": {
			preferring("1", &usual, "green"), func(r *rig) { dead(r); downThere(0)(r) },
			[]v1alpha1.HintStatus{{Annotation: preferred, State: v1alpha1.HintGivenUp, Message: "green is not used to node2 (it is down there), to node3 (it does not answer probes)"}},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.planFor(t, c.endpoint)
			if c.change != nil {
				c.change(r)
			}
			if status := r.status(c.endpoint); !cmp.Equal(status, c.expected) {
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
	r.planFor(t, endpoint)
	for i := range r.scene.paths {
		r.scene.paths[i].Usable, r.scene.paths[i].Message = false, long
	}
	if message := r.status(endpoint)[0].Message; len(message) > 512 || len(message) < 400 {
		t.Errorf("a message of %d bytes", len(message))
	}
}

// Endpoints in the kernel refer to classes by their indexes.
func TestClassesKeepTheirIndexes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var c classes
		before := map[int32]int{}
		for range 6 {
			var endpoints []v1alpha1.PlanEndpoint
			wanted := rapid.SliceOfN(rapid.Int32Range(1, 12), 0, 14).Draw(t, "factors")
			for i, percent := range wanted {
				endpoint := preferring(fmt.Sprint(i), factor(percent), "green")
				endpoint.Preference.Weight = rapid.Int32Range(1, 100).Draw(t, "weight")
				endpoints = append(endpoints, endpoint)
			}
			c = c.assign(endpoints)
			after, owner := map[int32]int{}, map[int]int32{}
			for i := range endpoints {
				percent := wanted[i]
				class, exact := c.of(&endpoints[i])
				if c[class] == nil || !c[class].paths["green"] {
					t.Fatalf("factor %d has the class %d, of which nothing is known", percent, class)
				}
				if !exact {
					if class != datapath.MaxClasses-1 || slices.Contains(c[:], nil) {
						t.Fatalf("factor %d shares the class %d of %v", percent, class, c)
					}
					continue
				}
				if other, taken := owner[class]; taken && other != percent || c[class].preference.MaxRTTPercent != percent {
					t.Fatalf("factor %d has the class %d of %v", percent, class, c[class].preference)
				}
				if was, had := before[percent]; had && was != class {
					t.Fatalf("factor %d moved from class %d to %d", percent, was, class)
				}
				owner[class], after[percent] = percent, class
			}
			before = after
		}
	})
}

func TestPreferencesThatShareAClassSaySo(t *testing.T) {
	r := newRig(t)
	var endpoints []v1alpha1.PlanEndpoint
	for i := range int32(datapath.MaxClasses + 1) {
		endpoints = append(endpoints, preferring(fmt.Sprint(i), factor(2000+i), "green"))
	}
	r.planFor(t, endpoints...)
	for i := range endpoints {
		status := r.status(endpoints[i])
		if says := strings.Contains(status[0].Message, "8 preferences"); says != (i == datapath.MaxClasses) {
			t.Errorf("endpoint %d: %+v", i, status)
		}
	}
}

func TestAnEndpointIsAsItsPlanSays(t *testing.T) {
	r := newRig(t)
	plain := v1alpha1.PlanEndpoint{Addresses: []string{"10.0.0.1"}, Paths: []v1alpha1.PathWeight{{Path: "blue", Weight: 3}}}
	half := preferring("2", factor(3000), "green")
	half.Preference.Weight, half.Backup, half.Subflows.Mode = 50, []v1alpha1.PathName{"red"}, v1alpha1.SubflowModeNDiffPorts
	r.planFor(t, preferring("1", factor(2000), "blue"), half, plain)
	if endpoint := r.endpoint(&plain); !cmp.Equal(endpoint, datapath.Endpoint{Addresses: endpoint.Addresses, Paths: plain.Paths}, cmp.Comparer(sameAddress)) {
		t.Errorf("the plain one is %+v", endpoint)
	}
	expected := datapath.Endpoint{Preferred: half.Preferred, Backup: half.Backup, Class: 1, Share: 50, SamePath: true}
	if endpoint := r.endpoint(&half); !cmp.Equal(endpoint, expected, cmp.Comparer(sameAddress)) {
		t.Errorf("the other one is %+v", endpoint)
	}
}

func sameAddress(a, b netip.Addr) bool { return a == b }

// Before the probes of a new agent can know anything, what the last one knew holds.
func TestNothingIsSaidBeforeItIsKnown(t *testing.T) {
	r := newRig(t)
	r.settled = false
	r.planFor(t, preferring("1", &usual, "green"))
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
	r.prober = nil
	endpoint := preferring("1", &usual, "green")
	r.planFor(t, endpoint)
	r.again()
	if status := r.status(endpoint); len(r.last()) > 0 || status[0].State != v1alpha1.HintFollowed {
		t.Errorf("told %v, and the status %+v", r.last(), status)
	}
}

func TestWhatTheDatapathRefusedIsToldAgain(t *testing.T) {
	r := newRig(t)
	r.planFor(t)
	r.refuse = errors.New("no")
	if wait := r.again(); wait != firstRetry {
		t.Errorf("again after %s", wait)
	}
}

// The goroutine hears of changes by itself: the agent's loop may be busy.
func TestNewsOfProbesDoNotWaitForTheLoop(t *testing.T) {
	r := newRig(t)
	r.now = time.Now
	r.planFor(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.run(ctx) }()
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
