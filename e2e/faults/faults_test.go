// SPDX-License-Identifier: Apache-2.0

package faults_test

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/e2e/testlab"
	"braid.dev/braid/internal/testutil"
)

const (
	// patience is how long it may take until a fault is told.
	patience = 60 * time.Second
	// least is by how many channels.
	least = 2
)

// fault is something that goes wrong. docs/troubleshooting.md has a line for each.
type fault struct {
	// name is a sentence.
	name string
	// unless says why it cannot be made here; empty where it can. nil: it can everywhere.
	unless func(s *scene) string
	// make breaks it, and has the scene mend it.
	make func(t *testing.T, s *scene)
	// told are regular expressions of what is said of it, and of nothing else.
	told map[channel]string
	// pod is whom explain is asked about; client if empty.
	pod string
	// lasting says that it is told for a while after it is mended.
	lasting bool
	// remedy is a regular expression of what to do, as one of these texts says, or the
	// runbook of its alert, or a section that the runbook leads to.
	remedy string
	// do is that in the words of docs/troubleshooting.md.
	do string
}

func (f *fault) asks() string {
	if f.pod == "" {
		return "client"
	}
	return f.pod
}

// scene is a lab whose pods spread over all paths.
type scene struct {
	*testlab.Cluster
	prometheus *prometheus
	controller string // where its metrics are
	policy     *v1alpha1.MPTCPPolicy
	known      map[types.UID]int32 // Events, and how often each was told
	mending    []func()
}

// mend is called in the other order, and at the latest when the test ends.
func (s *scene) mend(undo func()) { s.mending = append(s.mending, undo) }

func (s *scene) mendAll() {
	for _, undo := range slices.Backward(s.mending) {
		undo()
	}
	s.mending = nil
}

func TestEveryFaultIsTold(t *testing.T) {
	s := newScene(t, shared, controllerMetrics)
	s.spread(t, "client", "server", "third")
	tried, told := 0, 0
	for _, group := range groups {
		t.Run(group.name, func(t *testing.T) {
			s := s
			if group.overlay {
				s = overlaidScene(t)
			}
			possible := slices.DeleteFunc(slices.Clone(group.faults), func(f fault) bool { return s.impossible(t, &f) })
			tried += len(possible)
			told += s.try(t, possible)
		})
	}
	testutil.Figure(t, "ux.faults", "", float64(tried))
	testutil.Figure(t, "ux.faults_told", "", float64(told))
}

func newScene(t *testing.T, of *testlab.Shared, controller string) *scene {
	t.Helper()
	s := &scene{Cluster: of.Use(t), prometheus: newPrometheus(t), controller: controller}
	t.Cleanup(s.mendAll)
	return s
}

func overlaidScene(t *testing.T) *scene {
	t.Helper()
	t.Cleanup(func() { check(t, overlaid.Down()) })
	s := newScene(t, overlaid, "")
	s.spread(t, "server")
	return s
}

// spread has a policy spread the traffic of pods over all paths.
func (s *scene) spread(t *testing.T, pods ...string) {
	t.Helper()
	s.policy = testlab.NewPolicy(shop, pods...)
	s.CreatePaths(t)
	s.Create(t, s.policy)
	s.WaitProgrammed(t, s.policy, len(pods))
}

func (s *scene) impossible(t *testing.T, f *fault) bool {
	t.Helper()
	if f.unless == nil {
		return false
	}
	why := f.unless(s)
	if why != "" {
		t.Logf("%s: not made here: %s", f.name, why)
	}
	return why != ""
}

// try makes some faults at once, and counts those that are told as they should be.
func (s *scene) try(t *testing.T, faults []fault) (told int) {
	t.Helper()
	begun := time.Now()
	pods := map[string]bool{}
	for i := range faults {
		pods[faults[i].asks()] = true
	}
	s.waitForSilence(t, faults, pods)
	s.forgetEvents(t)
	ready := time.Now()
	for i := range faults {
		faults[i].make(t, s)
	}
	watched := s.watch(t, faults, pods)
	for i := range watched {
		if watched[i].report(t) {
			told++
		}
	}
	mended := time.Now()
	s.mendAll()
	s.waitForSilence(t, slices.DeleteFunc(slices.Clone(faults), func(f fault) bool { return f.lasting }), pods)
	t.Logf("%v to be ready, %v to be told, %v to be mended", ready.Sub(begun), mended.Sub(ready), time.Since(mended))
	return told
}

// hearing is what was heard of a fault, and when.
type hearing struct {
	*fault
	after map[channel]time.Duration
	texts []string
	last  *said
}

// watch listens until all is told, or patience ends.
func (s *scene) watch(t *testing.T, faults []fault, pods map[string]bool) []hearing {
	t.Helper()
	begun, all := time.Now(), make([]hearing, len(faults))
	for i := range faults {
		all[i] = hearing{fault: &faults[i], after: map[channel]time.Duration{}}
	}
	for {
		now, done := s.listen(t, pods), true
		for i := range all {
			all[i].hear(now, time.Since(begun))
			done = done && len(all[i].after) == len(all[i].told)
		}
		if done || time.Since(begun) > patience {
			return all
		}
		time.Sleep(500 * time.Millisecond)
	}
}

func (h *hearing) hear(now *said, after time.Duration) {
	h.last = now
	for by, pattern := range h.told {
		if _, heard := h.after[by]; heard {
			continue
		}
		text := now.by(by, h.asks())
		if at := regexp.MustCompile(pattern).FindStringIndex(text); at != nil {
			h.after[by] = after.Round(100 * time.Millisecond)
			h.texts = append(h.texts, around(text, at[0], at[1]))
		}
	}
}

// around is what was found, to the end of the line after it.
func around(text string, from, to int) string {
	line, rest, _ := strings.Cut(text[to:], "\n")
	next, _, _ := strings.Cut(rest, "\n")
	return text[from:to] + line + "\n" + next
}

// report fails the test where something is not told, or no remedy is named.
func (h *hearing) report(t *testing.T) (told bool) {
	t.Helper()
	for _, by := range channels {
		if after, heard := h.after[by]; h.told[by] != "" && !heard {
			t.Errorf("%s: %s does not say %q within %v, but:\n%s", h.name, by, h.told[by], patience, h.last.by(by, h.asks()))
		} else if heard {
			t.Logf("%s: told by %s after %v", h.name, by, after)
		}
	}
	if !h.namesRemedy(t) {
		t.Errorf("%s: nothing says %q", h.name, h.remedy)
		return false
	}
	return len(h.after) >= least
}

func (h *hearing) namesRemedy(t *testing.T) bool {
	t.Helper()
	remedy := regexp.MustCompile(h.remedy)
	if slices.ContainsFunc(h.texts, remedy.MatchString) {
		return true
	}
	name, _, _ := strings.Cut(h.told[byAlert], " ")
	return name != "" && remedy.MatchString(runbook(t, name))
}

// runbook is the section of an alert, and those of the page of symptoms that it leads to.
func runbook(t *testing.T, alert string) string {
	t.Helper()
	text := section(t, "alerts.md", strings.ToLower(alert))
	for _, link := range regexp.MustCompile(`\((\w+\.md)?#([\w-]+)\)`).FindAllStringSubmatch(text, -1) {
		page := link[1]
		if page == "" {
			page = "alerts.md"
		}
		text += section(t, page, link[2])
	}
	return text
}

// section of a page, by the anchor of its heading.
func section(t *testing.T, page, anchor string) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/" + page)
	if err != nil {
		t.Fatal(err)
	}
	for one := range strings.SplitSeq(string(text), "\n## ") {
		heading, rest, _ := strings.Cut(one, "\n")
		if strings.ReplaceAll(strings.ToLower(heading), " ", "-") == anchor {
			return strings.Join(strings.Fields(rest), " ")
		}
	}
	return ""
}

// waitForSilence waits until nothing says of these faults what it should say of them. What
// an alert says that looks back goes on for minutes, and Events stay.
func (s *scene) waitForSilence(t *testing.T, faults []fault, pods map[string]bool) {
	t.Helper()
	_, err := testutil.Until(patience, func() error {
		now := s.listen(t, pods)
		for i := range faults {
			f := &faults[i]
			for _, by := range []channel{byStatus, byExplain} {
				if pattern := f.told[by]; pattern != "" && regexp.MustCompile(pattern).MatchString(now.by(by, f.asks())) {
					return fmt.Errorf("%s: %s says %q all the same:\n%s", f.name, by, pattern, now.by(by, f.asks()))
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
