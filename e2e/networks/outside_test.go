// SPDX-License-Identifier: Apache-2.0

package networks_test

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/e2e/shop"
	"braid.dev/braid/e2e/testlab"
	"braid.dev/braid/hack/lab"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

// A host outside of the cluster, to which each path leads over a gateway of its own.
func TestPodsReachOutsideOverAllGateways(t *testing.T) {
	outside := testlab.NewShared(lab.Options{
		Name:    "e2eoutside",
		Network: network.Spec{Nodes: 2, Paths: paths, LinkMbit: linkMbit, World: true},
		Pods:    pods[:4],
	})
	t.Cleanup(func() { require.NoError(t, outside.Down()) })
	c := use(t, outside)
	world := c.serveOutside(t)
	policy := &v1alpha1.ClusterMPTCPPolicy{ObjectMeta: metav1.ObjectMeta{Name: "outside"}}
	policy.Spec.NamespaceSelector = metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": "shop"}}
	policy.Spec.PodSelector.MatchLabels = map[string]string{"app": "client"}
	policy.Spec.Subflows.Manager = v1alpha1.SubflowManagerAgent
	policy.Spec.Paths.Outside = []v1alpha1.OutsideDestination{{CIDR: network.WorldIPv4}, {CIDR: network.WorldIPv6}}
	c.CreatePaths(t)
	c.Create(t, policy)
	c.WaitFor(t, "the policy is programmed", 20*time.Second, func(ctx context.Context) error {
		if err := c.Get(ctx, policy); err != nil || policy.Status.PodsProgrammed != 1 {
			return fmt.Errorf("%d pods are programmed (%w)", policy.Status.PodsProgrammed, err)
		}
		return nil
	})
	c.WaitFor(t, "all gateways are known", 20*time.Second, c.hasGateways(paths...))
	t.Run("over all NICs, both ways", func(t *testing.T) { c.expectSpreadOutside(t, world) })
	t.Run("when a gateway dies", func(t *testing.T) { c.expectGatewayToDie(t, world) })
}

// serveOutside answers transfers in the world, at the addresses that it returns by version.
func (c *cluster) serveOutside(t *testing.T) map[int]string {
	t.Helper()
	at := map[int]string{}
	for _, version := range c.Network.Versions() {
		at[version] = net.JoinHostPort(c.Network.World.Address(version), strconv.Itoa(lab.TrafficPort))
		ctx, stop := context.WithCancel(context.Background())
		listener, err := c.Network.World.Listen(ctx, "tcp", at[version])
		require.NoError(t, err)
		served := make(chan error, 1)
		go func() { served <- traffic.Serve(ctx, listener) }()
		t.Cleanup(func() {
			stop()
			require.NoError(t, <-served)
		})
	}
	return at
}

// hasGateways asks for node1's paths with gateways that answer.
func (c *cluster) hasGateways(wanted ...string) func(context.Context) error {
	return func(ctx context.Context) error {
		node := &v1alpha1.MPTCPNode{ObjectMeta: metav1.ObjectMeta{Name: "node1"}}
		if err := c.Get(ctx, node); err != nil {
			return err
		}
		var found, messages []string
		for _, path := range node.Status.Paths {
			messages = append(messages, path.Message)
			if len(path.Gateways) == len(c.Network.Versions()) {
				found = append(found, string(path.Name))
			}
		}
		if !slices.Equal(found, wanted) || len(found) < len(paths) && !strings.Contains(strings.Join(messages, ""), "does not answer") {
			return fmt.Errorf("those of %v: %q", found, messages)
		}
		return nil
	}
}

func (c *cluster) expectSpreadOutside(t *testing.T, world map[int]string) {
	for _, x := range []testlab.Transfer{
		testlab.NewTransfer("", "server", 4, traffic.Up, testlab.SpreadTime),
		testlab.NewTransfer("", "server", 6, traffic.Up, testlab.SpreadTime),
		testlab.NewTransfer("", "server", 4, traffic.Down, testlab.SpreadTime),
	} {
		var mbit []float64
		for _, from := range []string{"tenant-client", "client"} {
			x.From = from
			r := c.BeginAt(t, x, world[x.Version])
			r.Finish(t)
			mbit = append(mbit, r.Result.Mbit)
			if used := r.Steady().Used(); x.Direction == traffic.Up && from == "client" && len(used) != len(paths) {
				t.Errorf("%s: the connection uses %v", r, used)
			}
		}
		t.Logf("%s: %.1f Mbit/s, %.2f times as much", x, mbit[1], mbit[1]/mbit[0])
		if mbit[1]/mbit[0] <= 2 {
			t.Errorf("%s: the connection does not fill all NICs", x)
		}
	}
}

// expectGatewayToDie takes away the gateway that the node's own route takes not. No NIC
// loses its carrier.
func (c *cluster) expectGatewayToDie(t *testing.T, world map[int]string) {
	x := testlab.NewTransfer("client", "server", 4, traffic.Up, 4*time.Second)
	r := c.BeginAt(t, x, world[4])
	r.SleepUntil(shop.DownAt)
	require.NoError(t, c.Network.SetGateway("green", false))
	r.Finish(t)
	longest := r.LongestStop(shop.DownAt, x.Duration)
	t.Logf("longest stop %v", longest)
	if longest > testlab.LongestStop {
		t.Errorf("nothing arrived for %v", longest)
	}
	c.WaitFor(t, "the status shows it", 20*time.Second, c.hasGateways("blue", "red"))
	x.Duration = testlab.SpreadTime
	r = c.BeginAt(t, x, world[4])
	r.Finish(t)
	if used := r.Steady().Used(); !slices.Equal(used, []string{"blue", "red"}) {
		t.Errorf("a new connection uses %v", used)
	}
	require.NoError(t, c.Network.SetGateway("green", true))
	c.WaitFor(t, "the gateway is back", 20*time.Second, c.hasGateways(paths...))
}
