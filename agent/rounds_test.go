// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/testr"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"braid.dev/braid/agent/endpoints"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/api/v1alpha1"
)

// numbered is a round that can be told from others.
func numbered(text string) round { return round{attachMode: text} }

// seen runs forEach with a function that fails as often as wanted, and returns
// what it was called with, and when. The queued rounds are there before it begins.
func seen(t *testing.T, fails int, with error, put func(latest[round]), queued ...string) (calls []string, times []time.Duration) {
	rounds := make(latest[round], 1)
	for _, text := range queued {
		rounds.put(numbered(text))
	}
	ctx, cancel := context.WithCancel(t.Context())
	start := time.Now()
	done := make(chan struct{})
	go func() {
		defer close(done)
		forEach(ctx, testr.New(t), rounds, func(_ context.Context, r round) error {
			calls, times = append(calls, r.attachMode), append(times, time.Since(start))
			if fails--; fails >= 0 {
				return with
			}
			return nil
		}, nil, nil)
	}()
	put(rounds)
	cancel()
	<-done
	return calls, times
}

func TestOfSeveralRoundsTheLatestIsTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls, _ := seen(t, 0, nil, func(rounds latest[round]) {
			synctest.Wait()
			rounds.put(numbered("4"))
			time.Sleep(time.Minute)
		}, "1", "2", "3")
		if len(calls) != 2 || calls[0] != "3" || calls[1] != "4" {
			t.Errorf("the rounds were %v", calls)
		}
	})
}

func TestWhatFailsIsTriedAgainLessAndLessOften(t *testing.T) {
	for _, failure := range []error{errors.New("no"), errUnfinished} {
		synctest.Test(t, func(t *testing.T) {
			calls, times := seen(t, 6, failure, func(rounds latest[round]) {
				rounds.put(numbered("1"))
				time.Sleep(time.Minute)
			})
			if len(calls) != 7 {
				t.Fatalf("it was tried %d times: %v", len(calls), times)
			}
			before := time.Duration(0)
			for i := 1; i < len(times); i++ {
				wait := times[i] - times[i-1]
				if wait < before || wait < firstRetry || wait > lastRetry {
					t.Errorf("it was tried after %v", times)
				}
				before = wait
			}
		})
	}
}

func TestANewRoundIsTriedAtOnceAndSoonAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var at time.Duration
		calls, times := seen(t, 7, errors.New("no"), func(rounds latest[round]) {
			start := time.Now()
			rounds.put(numbered("1"))
			time.Sleep(12 * time.Second) // by now it waits for long
			at = time.Since(start)
			rounds.put(numbered("2"))
			time.Sleep(firstRetry)
			synctest.Wait()
		})
		last := len(calls) - 1
		if calls[last] != "2" || calls[last-1] != "2" || calls[last-2] != "1" {
			t.Fatalf("the rounds were %v", calls)
		}
		if times[last-1] != at || times[last] != at+firstRetry {
			t.Errorf("a round from %v was tried at %v and %v", at, times[last-1], times[last])
		}
	})
}

func TestNothingIsDoneBeforeTheFirstRound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls, _ := seen(t, 0, nil, func(latest[round]) { time.Sleep(time.Minute) })
		if len(calls) != 0 {
			t.Errorf("the rounds were %v", calls)
		}
	})
}

func TestWhatBecomesKnownIsToldAtOnceAndNothingDoneAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rounds, known := make(latest[round], 1), make(chan struct{}, 1)
		done, told := 0, 0
		ctx, cancel := context.WithCancel(t.Context())
		go forEach(ctx, testr.New(t), rounds, func(context.Context, round) error { done++; return errUnfinished }, known, func(context.Context) error { told++; return nil })
		rounds.put(numbered("1"))
		synctest.Wait()
		signal(known)
		synctest.Wait()
		if done != 1 || told != 1 {
			t.Errorf("it was done %d times and told %d times", done, told)
		}
		time.Sleep(time.Minute)
		if done != 1 {
			t.Errorf("it was done %d times, though all was well in the end", done)
		}
		cancel()
		synctest.Wait()
	})
}

func TestPodsThatAreHeldAreLookedForAgainSooner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, times := seen(t, 20, errAwaitsPods, func(rounds latest[round]) {
			rounds.put(numbered("1"))
			time.Sleep(time.Minute)
		})
		if len(times) < 8 || times[1] != firstLook || times[2] != 3*firstLook || times[3] != 7*firstLook {
			t.Fatalf("they were looked for after %v", times)
		}
		if last := times[len(times)-1] - times[len(times)-2]; last != lastRetry {
			t.Errorf("in the end they are looked for each %v", last)
		}
	})
}

func TestOnlyWhatBringsNewsIsToldAtOnce(t *testing.T) {
	const pending, programmed, failed = v1alpha1.EndpointPending, v1alpha1.EndpointProgrammed, v1alpha1.EndpointFailed
	of := func(generation int64, states ...v1alpha1.EndpointState) outcome {
		o := outcome{snapshot: &snapshot{plan: &v1alpha1.MPTCPNodePlan{ObjectMeta: metav1.ObjectMeta{Generation: generation}}}}
		for i, state := range states {
			o.endpoints = append(o.endpoints, v1alpha1.EndpointStatus{UID: types.UID(fmt.Sprint(i)), State: state})
		}
		return o
	}
	for name, test := range map[string]struct {
		before, now outcome
		at          time.Duration
	}{
		"a pod is programmed":                            {of(1, programmed), of(2, programmed, programmed), 0},
		"a pod is programmed and another one is not yet": {of(1, programmed), of(2, programmed, programmed, pending), 0},
		"a pod has failed":                               {of(1, programmed), of(1, failed), 0},
		"a plan is carried out":                          {of(1, programmed), of(2, programmed), 0},
		"the datapath has failed":                        {of(1, programmed), outcome{snapshot: of(1).snapshot, failed: errors.New("no"), endpoints: of(1, programmed).endpoints}, 0},
		"a pod is under way":                             {of(1, programmed), of(2, programmed, pending), gathering},
		"a pod is not found any more":                    {of(1, programmed), of(1, pending), gathering},
		"something is said of a pod that is as it was":   {of(1, programmed), of(1, programmed), gathering},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				outcomes, told := make(latest[outcome], 1), make(latest[outcome], 1)
				go gather(ctx, outcomes, told)
				outcomes.put(test.before)
				<-told
				begin := time.Now()
				outcomes.put(test.now)
				if <-told; time.Since(begin) != test.at {
					t.Errorf("it is told after %v, instead of %v", time.Since(begin), test.at)
				}
			})
		})
	}
}

func TestPodsWithoutRulesDoNotWaitForRulesOfAnEarlierAgent(t *testing.T) {
	model := &node.Model{Plan: &v1alpha1.MPTCPNodePlan{Status: v1alpha1.MPTCPNodePlanStatus{Endpoints: []v1alpha1.EndpointStatus{
		{UID: "has", Chain: "rules", State: v1alpha1.EndpointProgrammed}, {UID: "had", Chain: "rules", State: v1alpha1.EndpointFailed},
	}}}}
	report := node.Report{Unknown: true}
	for uid, chain := range map[types.UID]string{"has": "rules", "had": "", "new": "rules", "none": ""} {
		model.Endpoints = append(model.Endpoints, node.Endpoint{PlanEndpoint: &v1alpha1.PlanEndpoint{UID: uid, Chain: chain}, Found: &endpoints.Endpoint{}})
		if uid != "none" {
			report.Await(uid, errors.New("not known yet"))
		}
	}
	m := managed{model: model}
	states := map[types.UID]v1alpha1.EndpointState{}
	for _, status := range m.knownAlready(&report) {
		states[status.UID] = status.State
	}
	require.Equal(t, map[types.UID]v1alpha1.EndpointState{
		"has": v1alpha1.EndpointProgrammed, "had": v1alpha1.EndpointFailed, "new": v1alpha1.EndpointPending, "none": v1alpha1.EndpointProgrammed,
	}, states)
}
