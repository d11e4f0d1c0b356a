// SPDX-License-Identifier: Apache-2.0

package spreading_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/e2e/testlab"
	"braid.dev/braid/internal/lab/network"
)

// Programmed says that all is in place from the beginning; Spreading says that nothing is
// sent, and then what the traffic does.
func TestTrafficThatIsSpreadIsTold(t *testing.T) {
	c := use(t, nil, "client", "server")
	c.expect(t, metav1.ConditionUnknown, v1alpha1.ReasonNothingSent)
	c.send(t, "server", network.MPTCP)
	c.expect(t, metav1.ConditionTrue, v1alpha1.ReasonSpread)
	c.WaitFor(t, "the agent tells of three paths", patience, func(context.Context) error {
		now := c.traffic(t) // how much each carries is the scheduler's choice
		if len(now.Paths) != 3 || len(paths(now)) == 0 || now.Connections != 1 || now.PlainConnections != 0 {
			return fmt.Errorf("it tells of %+v", now)
		}
		return nil
	})
	// The policy's condition may be of the server alone until then.
	c.WaitFor(t, "the plan says the same of the client", patience, func(context.Context) error {
		if state := c.endpoint(t).State; state != v1alpha1.SpreadingSpread {
			return fmt.Errorf("it is %s", state)
		}
		return nil
	})
}

func TestTrafficOfPlainSocketsIsTold(t *testing.T) {
	c := use(t, nil, "client", "server")
	c.send(t, "server", network.TCP)
	c.expect(t, metav1.ConditionFalse, v1alpha1.ReasonPlainTCP)
	require.Equal(t, v1alpha1.ReasonPlainTCP, c.endpoint(t).Reason)
	require.Equal(t, []string{""}, paths(c.traffic(t)), "plain TCP goes by the cluster network's route")

	status := c.plugin(t, "status", "--no-workloads")
	require.True(t, strings.HasPrefix(status, "traffic    spread for 0 of 1 policies, not for 1"), status)
	require.Contains(t, status, "policy shop/spread: PlainTCP")
	require.Contains(t, status, "docs/sockets.md")
	explained := c.plugin(t, "explain", "client", "--namespace", "shop")
	require.True(t, strings.HasPrefix(explained, "traffic: not spread: PlainTCP"), explained)
	require.Contains(t, explained, "what to do: have both ends open MPTCP sockets")
	t.Log(c.columns(t))
}

func TestSocketsThatTheKernelCannotUpgradeAreTold(t *testing.T) {
	c := use(t, func(p *v1alpha1.MPTCPPolicy) { p.Spec.Sockets.Upgrade = true }, "client", "server")
	plan := &v1alpha1.MPTCPNodePlan{ObjectMeta: metav1.ObjectMeta{Name: "node1"}}
	require.NoError(t, c.Get(t.Context(), plan))
	if plan.Status.Endpoints[0].SocketUpgrade == v1alpha1.SocketUpgradeActive {
		t.Skip("this kernel can upgrade sockets")
	}
	c.send(t, "server", network.TCP)
	c.expect(t, metav1.ConditionFalse, v1alpha1.ReasonUpgradeUnsupported)
}

// A pod that no policy selects announces nothing, and this one takes no further subflows.
func TestTrafficToAPodThatNoPolicySelectsIsTold(t *testing.T) {
	c := use(t, nil, "client")
	stranger := c.Network.Pod("stranger")
	testlab.RunIn(t, stranger, "ip", "mptcp", "limits", "set", "subflows", "0", "add_addr_accepted", "0")
	t.Cleanup(func() {
		testlab.RunIn(t, stranger, "ip", "mptcp", "limits", "set", "subflows", "2", "add_addr_accepted", "0")
	})
	c.send(t, "stranger", network.MPTCP)
	c.expect(t, metav1.ConditionFalse, v1alpha1.ReasonPeerNotSelected)
}

func TestTrafficOfAPodThatMayUseOnePathIsTold(t *testing.T) {
	c := use(t, func(p *v1alpha1.MPTCPPolicy) { p.Spec.Paths.Allowed = []v1alpha1.PathName{"green"} }, "client", "server")
	stop := c.send(t, "server", network.MPTCP)
	require.Contains(t, c.expect(t, metav1.ConditionFalse, v1alpha1.ReasonNoSecondPath), "path green alone is left")
	stop()
	c.Update(t, c.policy, func() { c.policy.Spec.Paths.Allowed = nil })
	c.WaitProgrammed(t, c.policy, 2)
	c.send(t, "server", network.MPTCP)
	c.expect(t, metav1.ConditionTrue, v1alpha1.ReasonSpread)
}

func TestTrafficOfANodeWithoutSecondNICIsTold(t *testing.T) {
	c := use(t, nil, "client", "server")
	node := c.Network.Pod("client").Node
	for _, path := range []string{"green", "red"} {
		require.NoError(t, c.Network.SetNIC(node, path, false))
		t.Cleanup(func() { require.NoError(t, c.Network.SetNIC(node, path, true)) })
	}
	c.send(t, "server", network.MPTCP)
	c.expect(t, metav1.ConditionFalse, v1alpha1.ReasonNoSecondPath)
}

// The nodes' routes to each other's pods lead into a tunnel, as those of an overlay do.
func TestTrafficThatATunnelTakesIsSpread(t *testing.T) {
	c := use(t, nil, "client", "server")
	c.tunnel(t)
	c.send(t, "server", network.MPTCP)
	c.expect(t, metav1.ConditionTrue, v1alpha1.ReasonSpread)
}

// tunnel makes it, and puts all back when the test ends.
func (c *cluster) tunnel(t *testing.T) {
	t.Helper()
	client, server := c.Network.Pod("client").Node, c.Network.Pod("server").Node
	run := func(node *network.Node, arguments ...string) {
		out, err := node.Run("ip", arguments...)
		require.NoError(t, err, out)
	}
	for _, ends := range []struct{ from, to *network.Node }{{client, server}, {server, client}} {
		run(ends.from, "link", "add", "vxlan9", "type", "vxlan", "id", "9", "dstport", "4789",
			"local", ends.from.Address(0, 4), "remote", ends.to.Address(0, 4), "dev", "blue")
		t.Cleanup(func() {
			run(ends.from, "route", "replace", ends.to.PodCIDR(4), "via", ends.to.Address(0, 4), "dev", "blue", "onlink")
			run(ends.from, "link", "delete", "vxlan9")
		})
		run(ends.from, "address", "add", fmt.Sprintf("192.168.99.%d/24", ends.from.Number), "dev", "vxlan9")
		run(ends.from, "link", "set", "vxlan9", "up")
		run(ends.from, "route", "replace", ends.to.PodCIDR(4), "via", fmt.Sprintf("192.168.99.%d", ends.to.Number), "dev", "vxlan9")
	}
}

// Its connection gets further subflows after more bytes than it moves.
func TestTrafficThatNeedsNoSecondPathIsTold(t *testing.T) {
	c := use(t, func(p *v1alpha1.MPTCPPolicy) {
		p.Spec.Subflows = v1alpha1.SubflowRules{
			Manager: v1alpha1.SubflowManagerAgent, OpenAfter: &v1alpha1.OpenAfter{Bytes: ptr.To(resource.MustParse("1Gi"))},
		}
	}, "client", "server")
	c.send(t, "server", network.MPTCP)
	c.expect(t, metav1.ConditionUnknown, v1alpha1.ReasonLittleSent)
}

// A rule refuses what would join the connection.
func TestTrafficWhoseFurtherSubflowsAreRefusedIsTold(t *testing.T) {
	c := use(t, func(p *v1alpha1.MPTCPPolicy) {
		p.Spec.Subflows.Manager = v1alpha1.SubflowManagerAgent
		p.Spec.Rules = []v1alpha1.Rule{{
			Name:    "refuse",
			Match:   &v1alpha1.Match{Selectors: v1alpha1.Selectors{Direction: v1alpha1.DirectionFromEndpoint, PacketTypes: []v1alpha1.PacketType{v1alpha1.PacketMPJoin}}},
			Actions: []v1alpha1.Action{{Type: v1alpha1.ActionReset}},
		}}
	}, "client")
	c.send(t, "server", network.MPTCP)
	c.expect(t, metav1.ConditionFalse, v1alpha1.ReasonOnePathUsed)
}

// What stays on the node uses no NIC: it counts as nothing.
func TestTrafficWithinANodeCountsAsNone(t *testing.T) {
	c := use(t, nil, "client")
	c.send(t, "neighbour", network.TCP)
	begun := time.Now()
	c.WaitFor(t, "the agent has looked some times", patience, func(context.Context) error {
		if now := c.traffic(t); now.Time.Sub(begun) < 4*interval {
			return fmt.Errorf("it looked last at %v", now.Time)
		}
		return nil
	})
	c.expect(t, metav1.ConditionUnknown, v1alpha1.ReasonNothingSent)
}
