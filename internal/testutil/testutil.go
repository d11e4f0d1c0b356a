// SPDX-License-Identifier: Apache-2.0

// Package testutil holds what tests of several packages need: waiting until
// something is so, a BPF file system of a test's own, and TCP segments.
package testutil

import (
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TB is what tests, benchmarks and properties have in common.
type TB interface {
	Helper()
	Cleanup(func())
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	FailNow()
}

// Until calls try, often at first and then less often, until it returns nil, at
// most for the given time, as Patience counts it. It returns the last error and how long it took.
func Until(limit time.Duration, try func() error) (time.Duration, error) {
	patience := NewPatience()
	for begin := time.Now(); ; {
		err := try()
		took := time.Since(begin)
		if err == nil || took > limit && patience.Spent() > limit {
			return took, err
		}
		time.Sleep(min(max(took/20, time.Millisecond), 100*time.Millisecond))
	}
}

// Retry is Until, and fails the test with the last error.
func Retry(t TB, limit time.Duration, try func() error) time.Duration {
	t.Helper()
	took, err := Until(limit, try)
	if err != nil {
		t.Fatalf("not within %s: %v", limit, err)
	}
	return took
}

// Eventually waits until holds returns true, and fails the test if it does not
// within the given time.
func Eventually(t TB, limit time.Duration, what string, holds func() bool) {
	t.Helper()
	notYet := errors.New(what)
	Retry(t, limit, func() error {
		if holds() {
			return nil
		}
		return notYet
	})
}

// BPFFS mounts a BPF file system for the test alone.
func BPFFS(t testing.TB) (directory string) {
	t.Helper()
	directory = t.TempDir()
	if err := unix.Mount("bpf", directory, "bpf", 0, ""); err != nil {
		t.Fatalf("failed to mount a BPF file system: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(directory, 0); err != nil {
			t.Errorf("failed to unmount the BPF file system: %v", err)
		}
	})
	return directory
}
