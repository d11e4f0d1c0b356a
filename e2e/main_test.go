// SPDX-License-Identifier: Apache-2.0

// Package e2e_test shows on a real API server, with the real controller and one
// real agent for each of three nodes, what Braid promises its users.
//
// All tests share one lab. Each begins and ends with a lab that no policy and no
// path was applied to, so each can be run alone.
package e2e_test

import (
	"testing"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/e2e/testlab"
	"braid.dev/braid/hack/lab"
	"braid.dev/braid/internal/lab/network"
)

const (
	labName  = "e2e"
	linkMbit = testlab.LinkMbit
)

// paths of the lab; the routes between the nodes' pods use the first one alone.
var paths = []string{"blue", "green", "red"}

// The pods of the lab, in namespaces of their own kinds: shop is where most
// policies are, tenant has pods with the same labels that none of them selects,
// and the pod in quiet is on a node of its own.
var pods = []lab.Pod{
	pod("shop", "client", 1, "client"),
	pod("shop", "server", 2, "server"),
	pod("tenant", "tenant-client", 1, "client"),
	pod("tenant", "tenant-server", 2, "server"),
	pod("quiet", "third", 3, "third"),
}

func pod(namespace, name string, node int, app string) lab.Pod {
	return lab.Pod{
		Namespace: namespace, Name: name, Node: node,
		Labels: map[string]string{"app": app}, Serves: app == "server",
	}
}

var shared = testlab.NewShared(lab.Options{
	Name:    labName,
	Network: network.Spec{Nodes: 3, Paths: paths, LinkMbit: linkMbit},
	Pods:    pods,
})

func TestMain(m *testing.M) { shared.Main(m) }

// cluster is the lab that the tests share.
type cluster struct{ *testlab.Cluster }

// use gives a test the lab. When the test ends, nothing of Braid may be left on any node
// or pod.
func use(t *testing.T) *cluster {
	t.Helper()
	return &cluster{shared.Use(t)}
}

// shopPolicy selects client and server of the shop.
func shopPolicy(manager v1alpha1.SubflowManager) *v1alpha1.MPTCPPolicy {
	p := testlab.NewPolicy("shop", "client", "server")
	p.Spec.Subflows.Manager = manager
	return p
}

// spread creates the paths and a policy, and waits until it is programmed for so
// many pods.
func (c *cluster) spread(t *testing.T, policy *v1alpha1.MPTCPPolicy, pods int) {
	t.Helper()
	c.CreatePaths(t)
	c.Create(t, policy)
	c.WaitProgrammed(t, policy, pods)
}
