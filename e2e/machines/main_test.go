// SPDX-License-Identifier: Apache-2.0

// Package machines_test shows what Braid promises for virtual machines, on a real API server
// with the real controller and agents: guests of QEMU with kernels of their own, and network
// namespaces in the place of guests where their own kernel does not matter.
//
// All tests share one lab. Each begins and ends with a lab that no policy and no path was
// applied to, so each can be run alone.
package machines_test

import (
	"testing"

	"braid.dev/braid/e2e/testlab"
	"braid.dev/braid/hack/lab"
	"braid.dev/braid/internal/lab/network"
)

// paths of the lab; the routes between the nodes' pods use the first one alone.
var paths = []string{"blue", "green", "red"}

var shared = testlab.NewShared(lab.Options{
	Name:    "e2evm",
	Network: network.Spec{Nodes: 3, Paths: paths, LinkMbit: testlab.LinkMbit},
	Pods: []lab.Pod{
		{Namespace: "tenant", Name: "tenant-client", Node: 1, Labels: map[string]string{"app": "client"}},
		{Namespace: "tenant", Name: "tenant-server", Node: 2, Labels: map[string]string{"app": "server"}, Serves: true},
		stranger,
	},
})

// stranger is a pod that no policy selects.
var stranger = lab.Pod{Namespace: "shop", Name: "client", Node: 1, Labels: map[string]string{"app": "client"}}

func TestMain(m *testing.M) { shared.Main(m) }

// cluster is the lab that the tests share.
type cluster struct{ *testlab.Cluster }

// use gives a test the lab. When the test ends, nothing of Braid may be left on any node
// or pod.
func use(t *testing.T) *cluster {
	t.Helper()
	return &cluster{shared.Use(t)}
}
