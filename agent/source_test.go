// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/testr"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"braid.dev/braid/agent/saved"
	"braid.dev/braid/api/v1alpha1"
)

// server is an API server that answers after a while.
type server struct {
	cache.Cache
	client.Reader
	after time.Duration
}

func (s *server) Get(ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
	return s.Reader.Get(ctx, key, object, options...)
}

func (s *server) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	return s.Reader.List(ctx, list, options...)
}

func (s *server) WaitForCacheSync(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(s.after):
		return true
	}
}

func planOf(generation int64) *v1alpha1.MPTCPNodePlan {
	return &v1alpha1.MPTCPNodePlan{ObjectMeta: metav1.ObjectMeta{Name: "node1", Generation: generation}}
}

// sourceOf has a plan of generation 1 saved, if any, and the API server has generation 2.
func sourceOf(t *testing.T, after time.Duration, anySaved bool) (*source, *saved.State) {
	t.Helper()
	scheme, err := newScheme()
	require.NoError(t, err)
	kept := &saved.State{}
	s := newSource(Options{NodeName: "node1", Log: testr.New(t)}, &server{
		Reader: fake.NewClientBuilder().WithScheme(scheme).WithObjects(planOf(2)).Build(), after: after,
	}, func(state saved.State) { *kept = state })
	if anySaved {
		s.last = &saved.File{Time: time.Now().Add(-time.Hour), State: saved.State{Plan: planOf(1)}}
	}
	return s, kept
}

func TestWhatWasSavedStandsInForAnAPIServerThatDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, kept := sourceOf(t, time.Minute, true)
		wakes := 0
		go func() { _ = s.wait(t.Context(), func() { wakes++ }) }()
		synctest.Wait()
		if _, fromSaved, err := s.read(t.Context()); err != nil || !fromSaved || !s.patient.Load() {
			t.Errorf("at once: saved %v, patient %v, %v", fromSaved, s.patient.Load(), err)
		}
		time.Sleep(serverPatience)
		synctest.Wait()
		state, fromSaved, err := s.read(t.Context())
		require.NoError(t, err)
		if !fromSaved || s.patient.Load() || state.Plan.Generation != 1 || wakes != 1 || kept.Plan != nil || s.condition() != nil {
			t.Errorf("without the API server: saved %v, plan %+v, %d wakes, kept %+v", fromSaved, state.Plan, wakes, kept.Plan)
		}
		if err := s.ready(); !errors.Is(err, errNothingKnown) || !strings.Contains(err.Error(), "saved") {
			t.Errorf("readiness: %v", err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		state, fromSaved, err = s.read(t.Context())
		require.NoError(t, err)
		if fromSaved || state.Plan.Generation != 2 || wakes != 2 || kept.Plan.Generation != 2 || s.ready() != nil {
			t.Errorf("with the API server: saved %v, plan %+v, %d wakes, kept %+v", fromSaved, state.Plan, wakes, kept.Plan)
		}
		condition := s.condition()
		if condition == nil || condition.Type != v1alpha1.ConditionStartedFromSavedPlan || condition.Status != metav1.ConditionTrue {
			t.Fatalf("the condition is %+v", condition)
		}
		for _, at := range []time.Time{s.last.Time, s.started, *s.answered.Load()} {
			if !strings.Contains(condition.Message, inUTC(at)) {
				t.Errorf("%q does not tell %v", condition.Message, at)
			}
		}
	})
}

func TestAnAPIServerThatAnswersAtOnceIsBelievedAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, kept := sourceOf(t, serverPatience/2, true)
		go func() { _ = s.wait(t.Context(), func() {}) }()
		time.Sleep(serverPatience / 2)
		synctest.Wait()
		state, fromSaved, err := s.read(t.Context())
		require.NoError(t, err)
		if fromSaved || state.Plan.Generation != 2 || kept.Plan.Generation != 2 || s.condition() != nil {
			t.Errorf("saved %v, plan %+v, kept %+v, %+v", fromSaved, state.Plan, kept.Plan, s.condition())
		}
	})
}

func TestWithoutAnythingSavedAnAgentWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := sourceOf(t, time.Minute, false)
		go func() { _ = s.wait(t.Context(), func() {}) }()
		time.Sleep(30 * time.Second)
		if _, _, err := s.read(t.Context()); !errors.Is(err, errNothingKnown) || s.ready() == nil {
			t.Errorf("without the API server: %v", err)
		}
		time.Sleep(time.Minute)
		if _, fromSaved, err := s.read(t.Context()); err != nil || fromSaved || s.condition() != nil {
			t.Errorf("with it: saved %v, %v", fromSaved, err)
		}
	})
}

// Each kind that the agent reads or writes must be known without the API server.
func TestTheMapperKnowsTheAgentsKinds(t *testing.T) {
	scheme, err := newScheme()
	require.NoError(t, err)
	mapper := newMapper()
	for kind, resource := range map[string]string{
		"MPTCPNode": "mptcpnodes", "MPTCPNodePlan": "mptcpnodeplans", "Node": "nodes", "ConfigMap": "configmaps", "Lease": "leases",
	} {
		for of := range scheme.AllKnownTypes() {
			if of.Kind != kind {
				continue
			}
			mapping, err := mapper.RESTMapping(of.GroupKind(), of.Version)
			if err != nil || mapping.Resource.Resource != resource {
				t.Errorf("%v: %+v, %v", of, mapping, err)
			}
		}
	}
}
