// SPDX-License-Identifier: Apache-2.0

package crowd

import (
	"errors"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	"github.com/stretchr/testify/require"

	"braid.dev/braid/agent/datapath"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/api/v1alpha1"
)

// fakeHolder has places of tenants as they were said last.
type fakeHolder map[string]int

func (f fakeHolder) SetRoom(tenant string, left int, validity time.Duration) error {
	if validity < 10*time.Second {
		return errors.New("an agent needs longer to restart")
	}
	f[tenant] = left
	return nil
}

func (f fakeHolder) RoomLeft(tenant string) (int, bool, error) {
	left, bound := f[tenant]
	return left, bound, nil
}

func (f fakeHolder) FreeRoom(tenant string) error {
	delete(f, tenant)
	return nil
}

// scene is a node where tenants' endpoints move bytes.
type scene struct {
	*Crowd
	holder fakeHolder
	now    time.Time
	loads  datapath.Loads
	each   []datapath.Load
	failed error
}

func newScene(t *testing.T, tenants ...string) *scene {
	s := &scene{holder: fakeHolder{}, now: time.Now(), each: make([]datapath.Load, len(tenants)+1)}
	s.Crowd = New(Options{
		Loads:     func() (datapath.Loads, error) { return s.loads, s.failed },
		Endpoints: func() ([]datapath.Load, error) { return s.each, nil },
		Holder:    s.holder, Log: testr.New(t),
	})
	model := &node.Model{}
	for i, tenant := range tenants {
		endpoint := node.Endpoint{PlanEndpoint: &v1alpha1.PlanEndpoint{Namespace: tenant}, Number: uint32(i + 1)}
		endpoint.Subflows.Count, endpoint.Subflows.AnnounceAfterMillis = 3, 500
		model.Endpoints = append(model.Endpoints, endpoint)
	}
	require.NoError(t, s.Apply(t.Context(), model).Err)
	return s
}

// passes has each tenant, in their order, send with so many flows on each of three paths.
func (s *scene) passes(t *testing.T, passed time.Duration, counts ...uint64) {
	t.Helper()
	for range int(passed / interval) {
		s.now = s.now.Add(interval)
		for i, count := range counts {
			moved := each(flows{count: count, each: 100})
			s.loads = moved.after(s.loads)
			for range 3 {
				s.each[i+1] = flows{count: count, each: 100}.moved(s.each[i+1])
			}
		}
		if err := s.look(s.now); s.failed == nil {
			require.NoError(t, err)
		}
	}
}

func (s *scene) expect(t *testing.T, tenant string, places int) {
	t.Helper()
	left, bound := s.holder[tenant]
	require.True(t, bound, "there is no bound for %s", tenant)
	require.Equal(t, places, left)
	require.Equal(t, places, s.Of(tenant).Left())
}

func (s *scene) expectFree(t *testing.T, tenants ...string) {
	t.Helper()
	for _, tenant := range tenants {
		require.NotContains(t, s.holder, tenant)
		require.False(t, s.Of(tenant).IsBound(), "%s", tenant)
	}
}

// settled is a scene whose agent has been there for a while.
func settled(t *testing.T, tenants ...string) *scene {
	s := newScene(t, tenants...)
	s.passes(t, 5*time.Second, make([]uint64, len(tenants))...)
	s.expectFree(t, tenants...)
	return s
}

func TestOnlyWhoFillsThePathsWaits(t *testing.T) {
	s := settled(t, "many", "few")
	s.passes(t, interval, 100, 1)
	s.expect(t, "many", 0)
	s.passes(t, interval, 100, 1)
	s.expect(t, "many", 0)
	s.expectFree(t, "few")
	for range 100 {
		s.passes(t, interval, 100, 1)
		s.expect(t, "many", 0)
		s.expectFree(t, "few")
	}
}

func TestThoseThatWaitAreLetGoAsThePathsHaveRoomAndNeverAllAtOnce(t *testing.T) {
	s := settled(t, "many")
	s.passes(t, 3*time.Second, 100)
	s.passes(t, 4*interval, 0) // they only pause
	s.expect(t, "many", 0)
	waiting, seconds := 100, 0
	for ; waiting > 0; seconds++ {
		before := waiting
		for s.Of("many").Take() && waiting > 0 {
			waiting--
		}
		require.LessOrEqual(t, before-waiting, most)
		require.Less(t, seconds, 60)
		s.passes(t, settling, 0)
	}
	require.Greater(t, seconds, waiting/most)
	s.passes(t, 3*settling, 0)
	s.expectFree(t, "many")
}

func TestTheyWaitAgainWhereThoseThatWereLetGoFillThePaths(t *testing.T) {
	s := settled(t, "many")
	s.passes(t, 3*time.Second, 100)
	s.passes(t, 4*time.Second, 2)
	require.True(t, s.Of("many").Take())
	s.passes(t, interval, 30)
	s.expect(t, "many", 0)
}

// Connections wait since an earlier agent, and nobody knows yet for what.
func TestANewAgentLetsNobodyGoBeforeItKnowsHowFullThePathsAre(t *testing.T) {
	s := newScene(t, "many", "few")
	require.False(t, s.Of("many").Take())
	s.passes(t, 2*interval, 100, 1)
	s.expect(t, "many", 0)
	s.passes(t, 10*time.Second, 100, 1)
	s.expect(t, "many", 0)
	s.expectFree(t, "few")
}

// What is pinned outlives an agent that ends right after its start.
func TestANewAgentTellsTheProgramsOnlyWhatItSaw(t *testing.T) {
	s := newScene(t, "few", "many", "waiting")
	s.holder["waiting"] = 3 // since an earlier agent
	for range 20 {
		s.passes(t, interval, 1, 0, 0)
		require.NotContains(t, s.holder, "few")
		require.NotContains(t, s.holder, "many")
	}
	s.expectFree(t, "few", "many", "waiting")
	s.passes(t, 2*interval, 0, 100, 0)
	s.expect(t, "many", 0)
}

func TestAnAgentThatCannotLookLetsNobodyGo(t *testing.T) {
	s := settled(t, "many")
	s.passes(t, time.Second, 100)
	s.failed = errors.New("no map")
	s.passes(t, 10*time.Second, 0)
	s.expect(t, "many", 0)
}

func TestWhoHasFewFlowsLeftGoesOnThoughOthersFillThePaths(t *testing.T) {
	s := settled(t, "one", "another")
	s.passes(t, 3*time.Second, 100, 100)
	s.passes(t, 8*time.Second, 1, 100)
	s.expectFree(t, "one")
	s.expect(t, "another", 0)
}
