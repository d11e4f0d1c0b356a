// SPDX-License-Identifier: Apache-2.0

package actiontest_test

import (
	"bytes"
	"testing"

	"braid.dev/braid/bpf/endpoint/actiontest"
)

// told counts how many of these pure ACKs say something, and checks that it is
// this.
func (h *harness) told(t *testing.T, say []byte, acks ...segment) (times int) {
	t.Helper()
	for _, s := range acks {
		out, verdict := h.run(t, fromEndpoint, s.frame())
		mustPass(t, verdict)
		if len(out) == len(s.frame()) {
			mustBe(t, out, s)
			continue
		}
		mustBe(t, out, s.with(func(s *segment) { s.options = append(bytes.Clone(s.options), say...) }))
		times++
	}
	return times
}

func acksAt(timestamps ...uint32) (acks []segment) {
	for _, timestamp := range timestamps {
		acks = append(acks, pureACK(4).with(func(s *segment) { s.options = append(timestampsOf(timestamp, 1), dataACK...) }))
	}
	return acks
}

// echo is a packet of the other direction that shows what arrived.
func (h *harness) echo(t *testing.T, timestamp uint32) {
	t.Helper()
	s := pureACK(4).flip().with(func(s *segment) {
		s.options, s.payload = append(timestampsOf(5, timestamp), mapping...), []byte("data")
	})
	out, verdict := h.run(t, toEndpoint, s.frame())
	mustPass(t, verdict)
	mustBe(t, out, s)
}

func TestAPriorityIsToldUntilItMustHaveArrived(t *testing.T) {
	h := newHarness(t)
	ask := func() {
		h.begin(t, 4)
		h.ask(t, fromEndpoint, action{kind: setBackup, flag: 1})
	}
	t.Run("three times at once, then in intervals that double", func(t *testing.T) {
		ask()
		if n := h.told(t, sayBackup, acksAt(10, 10, 10, 10, 10)...); n != 3 {
			t.Errorf("told %d times", n)
		}
		if n := h.told(t, sayBackup, acksAt(11, 12, 13, 14, 17, 18, 19, 25)...); n != 4 {
			t.Errorf("told %d times more", n)
		}
	})
	t.Run("not again after an echo of the last time", func(t *testing.T) {
		ask()
		h.told(t, sayBackup, acksAt(10, 11, 12)...)
		h.echo(t, 12)
		if n := h.told(t, sayBackup, acksAt(100, 200, 300)...); n != 0 {
			t.Errorf("told %d times more", n)
		}
	})
	t.Run("again after an echo of less", func(t *testing.T) {
		ask()
		h.told(t, sayBackup, acksAt(10, 11, 12)...)
		h.echo(t, 11)
		if n := h.told(t, sayBackup, acksAt(100)...); n != 1 {
			t.Errorf("told %d times more", n)
		}
	})
	t.Run("sixteen times at most", func(t *testing.T) {
		ask()
		var timestamps []uint32
		for i := range uint32(40) {
			timestamps = append(timestamps, i<<20)
		}
		if n := h.told(t, sayBackup, acksAt(timestamps...)...); n != 16 {
			t.Errorf("told %d times", n)
		}
	})
}

func TestAPriorityOfTheSendersOwnSaysWhatTheRuleWishes(t *testing.T) {
	h := newHarness(t)
	forEach(t, func(t *testing.T, version int, shape func(*segment)) {
		h.begin(t, version)
		h.ask(t, fromEndpoint, action{kind: setBackup, flag: 1})
		s := pureACK(version).with(shape).with(func(s *segment) { s.options = append(bytes.Clone(s.options), sayNormal...) })
		out, verdict := h.run(t, fromEndpoint, s.frame())
		mustPass(t, verdict)
		want := s.with(func(s *segment) { s.options = append(bytes.Clone(s.options[:len(s.options)-4]), sayBackup...) })
		want.trailer = nil
		mustBe(t, out, want)
	})
}

const (
	second       = 1_000_000_000
	afterTheRule = second / 5
)

func TestWhenTheRuleIsGoneEachEndIsToldWhatTheOtherSaidItself(t *testing.T) {
	h := newHarness(t)
	for name, c := range map[string]struct {
		own  uint8
		says []byte
	}{
		"that it is none":   {0, sayNormal},
		"that it is backup": {1 << fromEndpoint, sayBackup},
	} {
		t.Run(name, func(t *testing.T) {
			h.steps(t, stepAct|stepSettle)
			h.begin(t, 4, func(s *actiontest.HarnessSubflow) { s.Backup = c.own })
			h.ask(t, fromEndpoint, action{kind: setBackup, flag: 1})
			h.told(t, sayBackup, acksAt(10, 11, 12)...)
			h.echo(t, 12)
			h.ask(t, fromEndpoint, action{})
			h.ask(t, toEndpoint, action{})
			h.steps(t, stepUnsettle|stepSettle)
			if n := h.told(t, c.says, acksAt(100)...); n != 0 {
				t.Error("it was undone before both directions could be classified anew")
			}
			h.steps(t, stepSettle)
			h.wait(t, afterTheRule)
			n := h.told(t, c.says, acksAt(100, 101, 102)...)
			if want := 3 * int(1-c.own); n != want {
				t.Errorf("told %d times instead of %d", n, want)
			}
			h.echo(t, 102)
			h.echo(t, 102)
			if s := h.subflow(t, 4); s.Engaged != 0 {
				t.Errorf("it is not at an end: %+v", s.BackupState)
			}
		})
	}
}
