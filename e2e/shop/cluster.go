// SPDX-License-Identifier: Apache-2.0

// Package shop has what the packages of tests below e2e have in common: the pods and policies of
// their labs, what tests do to a lab, and what they expect of it. Each package brings up a lab of
// its own. Most policies are in the namespace shop.
package shop

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/e2e/testlab"
	"braid.dev/braid/hack/lab"
	"braid.dev/braid/internal/lab/network"
)

// Paths of a lab; the routes between the nodes' pods use the first one alone.
var Paths = []string{"blue", "green", "red"}

// Pods of a lab, in namespaces of their own kinds: shop is where most policies are, tenant has
// pods with the same labels that none of them selects, and the pod in quiet is on a node of its
// own.
var Pods = []lab.Pod{
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

// NewShared is a lab of that name with these paths and pods, which the tests of a package share.
func NewShared(name string) *testlab.Shared {
	return testlab.NewShared(lab.Options{
		Name:    name,
		Network: network.Spec{Nodes: 3, Paths: Paths, LinkMbit: testlab.LinkMbit},
		Pods:    Pods,
	})
}

// Cluster is a lab with the pods of the shop.
type Cluster struct{ *testlab.Cluster }

// Use gives a test the lab. When the test ends, nothing of Braid may be left on any node
// or pod.
func Use(t *testing.T, shared *testlab.Shared) *Cluster {
	t.Helper()
	return &Cluster{shared.Use(t)}
}

// Policy selects client and server of the shop.
func Policy(manager v1alpha1.SubflowManager) *v1alpha1.MPTCPPolicy {
	p := testlab.NewPolicy("shop", "client", "server")
	p.Spec.Subflows.Manager = manager
	return p
}

// Spread creates the paths and a policy, and waits until it is programmed for so
// many pods, and the nodes may know each other: what begins before that is steered later.
func (c *Cluster) Spread(t *testing.T, policy *v1alpha1.MPTCPPolicy, pods int) {
	t.Helper()
	c.CreatePaths(t)
	c.Create(t, policy)
	c.WaitProgrammed(t, policy, pods)
	c.WaitFor(t, "the nodes' addresses on all paths are confirmed", 30*time.Second, c.confirmed)
}

func (c *Cluster) confirmed(ctx context.Context) error {
	var nodes v1alpha1.MPTCPNodeList
	if err := c.list(ctx, &nodes, len(c.Network.Nodes)); err != nil {
		return err
	}
	for _, node := range nodes.Items {
		for _, path := range c.Paths {
			if node.Spec == nil || !slices.ContainsFunc(node.Spec.Confirmed, func(a v1alpha1.ConfirmedAddress) bool { return string(a.Path) == path }) {
				return fmt.Errorf("%s has no confirmed address on %s: %+v", node.Name, path, node.Spec)
			}
		}
	}
	return nil
}
