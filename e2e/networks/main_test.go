// SPDX-License-Identifier: Apache-2.0

// Package networks_test shows what Braid promises on other cluster networks than natively
// routed ones of one subnet: overlays, racks with routers between them, and what lies outside.
// Each test has a lab of its own.
package networks_test

import (
	"os"
	"testing"

	"braid.dev/braid/e2e/shop"
	"braid.dev/braid/e2e/testlab"
	"braid.dev/braid/hack/lab"
)

const linkMbit = testlab.LinkMbit

var (
	paths = shop.Paths
	pods  = shop.Pods
)

func TestMain(m *testing.M) {
	lab.RunRole()
	os.Exit(m.Run())
}

// cluster is the lab of a test.
type cluster struct{ *shop.Cluster }

// use gives a test the lab. When the test ends, nothing of Braid may be left on any node
// or pod.
func use(t *testing.T, shared *testlab.Shared) *cluster {
	t.Helper()
	return &cluster{shop.Use(t, shared)}
}
