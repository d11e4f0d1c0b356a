// SPDX-License-Identifier: Apache-2.0

// Package newpods_test shows what pods send before anybody has told their node of them, with and
// without an API server. It is apart because it counts milliseconds: nothing that computes may
// run beside it.
package newpods_test

import (
	"testing"

	"braid.dev/braid/e2e/shop"
)

var shared = shop.NewShared("e2enewpods")

func TestMain(m *testing.M) { shared.Main(m) }

// cluster is the lab of the test.
type cluster struct{ *shop.Cluster }

// use gives the test its lab. When it ends, nothing of Braid may be left on any node
// or pod.
func use(t *testing.T) *cluster {
	t.Helper()
	return &cluster{shop.Use(t, shared)}
}
