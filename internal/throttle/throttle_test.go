// SPDX-License-Identifier: Apache-2.0

package throttle

import (
	"testing"
	"time"
)

func TestAKeyThatChangesAllTheTimeWaitsAndNoOtherDoes(t *testing.T) {
	throttle, now := New[string](4, 250*time.Millisecond), time.Now()
	taken := 0
	for range 40 { // in a second
		now = now.Add(25 * time.Millisecond)
		switch wait := throttle.Take("busy", now); {
		case wait == 0:
			taken++
		case wait > 250*time.Millisecond:
			t.Errorf("a change waits for %v", wait)
		}
	}
	if taken < 7 || taken > 8 {
		t.Errorf("%d changes of 40 in a second count, instead of 7 or 8", taken)
	}
	if wait := throttle.Take("quiet", now); wait != 0 {
		t.Errorf("the first change of another waits for %v", wait)
	}
}

func TestChangesThatWaitTogetherHaveOneTurn(t *testing.T) {
	throttle, now := New[string](4, 250*time.Millisecond), time.Now()
	runs, due := 0, map[time.Time]bool{}
	for range 400 { // in ten seconds
		now = now.Add(25 * time.Millisecond)
		if wait := throttle.Delay("busy", now); wait == 0 {
			runs++
		} else {
			due[now.Add(wait).Round(time.Millisecond)] = true
		}
	}
	if runs += len(due); runs < 42 || runs > 46 {
		t.Errorf("400 changes in ten seconds are %d runs, instead of 44", runs)
	}
	if wait := throttle.Delay("quiet", now); wait != 0 {
		t.Errorf("the first change of another waits for %v", wait)
	}
}

func TestAKeyIsForgottenOnlyWhenItGainsNothingByThat(t *testing.T) {
	throttle, now := New[string](1, time.Second), time.Now()
	throttle.Take("one", now)
	if throttle.Forget("one", now) {
		t.Error("it is forgotten right after its change")
	}
	if throttle.Take("one", now) == 0 {
		t.Error("its next change does not wait")
	}
	if now = now.Add(time.Second); !throttle.Forget("one", now) || len(throttle.limiters) != 0 {
		t.Errorf("a second later it is still known: %v", throttle.limiters)
	}
	if !throttle.Forget("another", now) {
		t.Error("one that was never seen is known")
	}
}

func TestKeysThatCameOnceAreNotKept(t *testing.T) {
	throttle, now := New[int](4, 250*time.Millisecond), time.Now()
	for key := range 20 * leastPruned {
		throttle.Take(key, now)
		now = now.Add(time.Millisecond)
	}
	if kept := len(throttle.limiters); kept > 2*leastPruned {
		t.Errorf("%d keys are kept", kept)
	}
}
