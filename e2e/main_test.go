// SPDX-License-Identifier: Apache-2.0

// Package e2e_test shows on a real API server, with the real controller and one
// real agent for each of three nodes, what Braid promises its users. What is shown of
// failures, of rules, and of other networks is in packages below, each with labs of its own.
//
// All tests of a package share one lab. Each begins and ends with a lab that no policy and no
// path was applied to, so each can be run alone.
package e2e_test

import (
	"testing"

	"braid.dev/braid/e2e/shop"
	"braid.dev/braid/e2e/testlab"
)

const linkMbit = testlab.LinkMbit

var (
	paths  = shop.Paths
	shared = shop.NewShared("e2e")
)

func TestMain(m *testing.M) { shared.Main(m) }

// cluster is the lab that the tests share.
type cluster struct{ *shop.Cluster }

// use gives a test the lab. When the test ends, nothing of Braid may be left on any node
// or pod.
func use(t *testing.T) *cluster {
	t.Helper()
	return &cluster{shop.Use(t, shared)}
}
