// SPDX-License-Identifier: Apache-2.0

// Package failures_test shows what becomes of connections, and of what is told, when NICs and
// paths fail and boxes on the way change packets.
//
// All tests share one lab. Each begins and ends with a lab that no policy and no path was
// applied to, so each can be run alone.
package failures_test

import (
	"testing"

	"braid.dev/braid/e2e/shop"
)

var (
	paths  = shop.Paths
	shared = shop.NewShared("e2efailures")
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
