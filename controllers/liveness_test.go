// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// fakeClock is the controller's clock; agents may have another one.
type fakeClock struct{ now time.Time }

func (c *fakeClock) Now() time.Time          { return c.now }
func (c *fakeClock) advance(d time.Duration) { c.now = c.now.Add(d) }

func lease(renewed time.Time, seconds int32) *coordinationv1.Lease {
	l := &coordinationv1.Lease{}
	l.Spec.RenewTime = new(metav1.NewMicroTime(renewed))
	if seconds > 0 {
		l.Spec.LeaseDurationSeconds = &seconds
	}
	return l
}

func TestLiveness(t *testing.T) {
	begin := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	for _, tc := range []struct {
		name   string
		run    func(l *liveness, c *fakeClock)
		silent bool
		next   time.Duration
	}{
		{"an agent that was never seen is silent", func(*liveness, *fakeClock) {}, true, 0},
		{"a fresh renewal counts for its duration", func(l *liveness, c *fakeClock) {
			l.observe("n", lease(begin, 40))
			c.advance(39 * time.Second)
		}, false, time.Second},
		{"after its duration an agent is silent", func(l *liveness, c *fakeClock) {
			l.observe("n", lease(begin, 40))
			c.advance(40 * time.Second)
		}, true, 0},
		{"a Lease without a duration has the default", func(l *liveness, c *fakeClock) {
			l.observe("n", lease(begin, 0))
			c.advance(29 * time.Second)
		}, false, time.Second},
		{"a renewal long before the controller started does not count", func(l *liveness, c *fakeClock) {
			l.observe("n", lease(begin.Add(-time.Minute), 40))
		}, true, 0},
		{"an agent whose clock is late counts from its first renewal that is seen", func(l *liveness, c *fakeClock) {
			l.observe("n", lease(begin.Add(-time.Hour), 40))
			c.advance(10 * time.Second)
			l.observe("n", lease(begin.Add(-time.Hour+10*time.Second), 40))
		}, false, 40 * time.Second},
		{"an agent whose clock is early does not count for longer", func(l *liveness, c *fakeClock) {
			l.observe("n", lease(begin.Add(time.Hour), 40))
			c.advance(40 * time.Second)
		}, true, 0},
		{"a Lease that is seen again unchanged is no renewal", func(l *liveness, c *fakeClock) {
			l.observe("n", lease(begin, 40))
			c.advance(30 * time.Second)
			l.observe("n", lease(begin, 40))
			c.advance(10 * time.Second)
		}, true, 0},
		{"an agent whose Lease is deleted is silent", func(l *liveness, c *fakeClock) {
			l.observe("n", lease(begin, 40))
			l.forget("n")
		}, true, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			clock := &fakeClock{now: begin}
			l := newLiveness(30*time.Second, clock.Now)
			tc.run(l, clock)
			if silence := l.silence("n"); (silence != "") != tc.silent {
				t.Errorf("silence is %q, want silent %t", silence, tc.silent)
			}
			if next := l.nextExpiry(); next != tc.next {
				t.Errorf("the next expiry is in %s, want %s", next, tc.next)
			}
		})
	}
}

func TestOrdinaryRenewalIsNoNews(t *testing.T) {
	clock := &fakeClock{now: time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)}
	l := newLiveness(30*time.Second, clock.Now)
	renew := func() bool { return l.observe("n", lease(clock.now, 40)) }
	if !renew() {
		t.Error("the first renewal is news")
	}
	clock.advance(10 * time.Second)
	if renew() {
		t.Error("a renewal in time is no news")
	}
	if !l.observe("n", lease(clock.now.Add(time.Second), 1)) {
		t.Error("a renewal for a shorter time is news, because silence may come sooner")
	}
	clock.advance(time.Minute)
	if !strings.Contains(l.silence("n"), "2026-01-01T12:00:11Z") {
		t.Errorf("the last renewal is not told: %s", l.silence("n"))
	}
	if !renew() {
		t.Error("a renewal after silence is news")
	}
}
