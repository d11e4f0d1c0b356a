// SPDX-License-Identifier: Apache-2.0

// Package testutil holds what tests of several packages need: waiting for what
// comes about, a BPF file system of a test's own, and the segments of TCP.
package testutil

// TB is what tests, benchmarks and properties have in common.
type TB interface {
	Helper()
	Cleanup(func())
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	FailNow()
}
