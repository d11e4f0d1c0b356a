// SPDX-License-Identifier: Apache-2.0

// Package outages_test shows what becomes of connections, and of what is told, when agents are
// killed, the API server is away, and policies and pins are deleted meanwhile.
//
// All tests share one lab. Each begins and ends with a lab that no policy and no path was
// applied to, so each can be run alone.
package outages_test

import (
	"testing"

	"braid.dev/braid/e2e/shop"
)

var (
	paths  = shop.Paths
	shared = shop.NewShared("e2eoutages")
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
