// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/testr"
)

// numbered is a round that can be told from others.
func numbered(text string) round { return round{attachMode: text} }

// seen runs forEach with a function that fails as often as wanted, and returns
// what it was called with, and when.
func seen(t *testing.T, fails int, with error, put func(latest[round])) (calls []string, times []time.Duration) {
	rounds := make(latest[round], 1)
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
			rounds.put(numbered("1"))
			rounds.put(numbered("2"))
			rounds.put(numbered("3"))
			synctest.Wait()
			rounds.put(numbered("4"))
			time.Sleep(time.Minute)
		})
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
