// SPDX-License-Identifier: Apache-2.0

package networks_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/e2e/shop"
	"braid.dev/braid/e2e/testlab"
	"braid.dev/braid/hack/lab"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

// Three racks, each with a subnet of its own on every path, and a VXLAN between the nodes'
// addresses. A router for each path joins its subnets and knows no others.
func TestPodsOfSeveralRacksAreSpread(t *testing.T) {
	c, single := racks(t, lab.Options{Network: network.Spec{Overlay: network.Overlay{Outer: 4}}})
	c.WaitFor(t, "probes get over all routers", 30*time.Second, func(ctx context.Context) error {
		return c.Reaches(ctx, "node1", "blue", "green", "red")
	})
	t.Run("over all NICs, both ways", func(t *testing.T) { c.ExpectSpread(t, 4, single) })
	t.Run("when a router dies", c.expectRouterToDie)
	c.expectOtherToTakeOver(t)
}

// The same without an overlay: only the first path's router knows the pods, and over the others
// the nodes encapsulate their packets between their own addresses.
func TestNativelyRoutedPodsOfSeveralRacksAreSpread(t *testing.T) {
	expectNativeSpread(t, lab.Options{}).expectOtherToTakeOver(t)
}

// Pods have addresses of other Nodes' podCIDRs, as cluster networks give them that go by blocks of
// their own.
func TestNativelyRoutedPodsOfSeveralRacksAreSpreadWhereverTheirAddressesAreFrom(t *testing.T) {
	expectNativeSpread(t, lab.Options{StrayPods: true})
}

func expectNativeSpread(t *testing.T, options lab.Options) *cluster {
	t.Helper()
	c, single := racks(t, options)
	others := int32(2)
	if c.Network.Spec.Overlay != (network.Overlay{}) { // by BRAID_E2E_NETWORK
		others = 0
	}
	c.WaitFor(t, "probes get over all routers, and both other nodes decapsulate", 30*time.Second, func(ctx context.Context) error {
		return errors.Join(c.Reaches(ctx, "node1", "blue", "green", "red"), c.encapsulates(ctx, "node1", others), c.encapsulates(ctx, "node2", others))
	})
	t.Run("over all NICs, both ways", func(t *testing.T) { c.ExpectSpread(t, 4, single) })
	t.Run("over IPv6", func(t *testing.T) { c.ExpectSpread(t, 6, single) })
	return c
}

// expectOtherToTakeOver is the last of a test: its policy allows two paths from then on.
func (c *cluster) expectOtherToTakeOver(t *testing.T) {
	policy := shop.Policy(v1alpha1.SubflowManagerAgent)
	group := shop.Group{First: "green", Second: "red", From: "client", To: "server"}
	c.ShareBottleneck(t, policy, group, "client", "server")
	t.Run("the router of a bottleneck group's first path dies", func(t *testing.T) {
		c.ExpectOtherToTakeOver(t, group, shop.RouterDies("green"), traffic.Up)
	})
	t.Run("its NIC loses its carrier", func(t *testing.T) {
		c.ExpectOtherToTakeOver(t, group, shop.LosesCarrier("green", "server"), traffic.Down)
	})
}

// racks are three, with Routed paths and a policy, and what a connection carried without these,
// in Mbit/s.
func racks(t *testing.T, options lab.Options) (c *cluster, single float64) {
	t.Helper()
	options.Name, options.Pods = "e2eracks", pods
	options.Network.Nodes, options.Network.Racks, options.Network.Paths, options.Network.LinkMbit = 3, 3, paths, linkMbit
	racks := testlab.NewShared(options)
	t.Cleanup(func() { require.NoError(t, racks.Down()) })
	c = use(t, racks)
	single = c.Run(t, testlab.NewTransfer("client", "server", 4, traffic.Up, testlab.SpreadTime)).Result.Mbit
	c.createRoutedPaths(t)
	policy := shop.Policy(v1alpha1.SubflowManagerAgent)
	c.Create(t, policy)
	c.WaitProgrammed(t, policy, 2)
	return c, single
}

// encapsulates: on each path of a node packets to so many others are encapsulated, and nothing is odd
// about it.
func (c *cluster) encapsulates(ctx context.Context, name string, others int32) error {
	var node v1alpha1.MPTCPNode
	if err := c.Client.Get(ctx, client.ObjectKey{Name: name}, &node); err != nil {
		return err
	}
	for _, path := range node.Status.Paths {
		if path.Encapsulated != others || path.Message != "" {
			return fmt.Errorf("%s of %s encapsulates to %d: %s", path.Name, name, path.Encapsulated, path.Message)
		}
	}
	return nil
}

func (c *cluster) createRoutedPaths(t *testing.T) {
	t.Helper()
	for i, path := range paths {
		object := &v1alpha1.MPTCPPath{ObjectMeta: metav1.ObjectMeta{Name: path}}
		object.Spec.Interfaces = []v1alpha1.InterfacePattern{v1alpha1.InterfacePattern(path)}
		object.Spec.Underlay = v1alpha1.UnderlayRouted
		for _, version := range c.Network.Versions() {
			object.Spec.AddressRanges = append(object.Spec.AddressRanges, v1alpha1.CIDR(c.Network.Spec.PathRange(i, version)))
		}
		c.Create(t, object)
	}
}

// expectRouterToDie takes away the router that the overlay's own packets pass. Connections go
// on. When nothing tells the kernel any more that the router works, it gives it up: after that no
// packet would get as far as a NIC without another route.
func (c *cluster) expectRouterToDie(t *testing.T) {
	c.ForgetNeighboursSoon(t, "blue")
	const end = 4 * time.Second
	r := c.Begin(t, testlab.NewTransfer("client", "server", 4, traffic.Up, end))
	r.SleepUntil(shop.DownAt)
	require.NoError(t, c.Network.SetRouter("blue", false))
	t.Cleanup(func() { require.NoError(t, c.Network.SetRouter("blue", true)) })
	r.Finish(t)
	longest := r.LongestStop(shop.DownAt, end)
	t.Logf("longest stop %v", longest)
	if longest > testlab.LongestStop {
		t.Errorf("nothing arrived for %v", longest)
	}
	c.WaitFor(t, "the status shows it", 30*time.Second, func(ctx context.Context) error {
		return c.Reaches(ctx, "node1", "green", "red")
	})
	c.WaitFor(t, "the overlay has another way", 30*time.Second, func(context.Context) error {
		out, err := c.Network.Nodes[0].Run("ip", "route", "get", c.Network.Nodes[1].Address(0, 4))
		if err != nil || !strings.Contains(out, "via 10.21.1.254 ") && !strings.Contains(out, "via 10.22.1.254 ") {
			return fmt.Errorf("it leads %s (%w)", out, err)
		}
		return nil
	})
	if used := c.Run(t, testlab.NewTransfer("client", "server", 4, traffic.Up, testlab.SpreadTime)).Steady().Used(); !slices.Equal(used, paths[1:]) {
		t.Errorf("a new connection uses %v", used)
	}
	require.NoError(t, c.Network.SetRouter("blue", true))
	c.WaitFor(t, "the way is as before", 30*time.Second, c.HasNoDetours)
}
