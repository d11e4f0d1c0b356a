// SPDX-License-Identifier: Apache-2.0

package spreading_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"braid.dev/braid/api/v1alpha1"
)

// expectPath waits until the condition Ready of the path green has this reason.
func (c *cluster) expectPath(t *testing.T, reason string) {
	t.Helper()
	path := &v1alpha1.MPTCPPath{ObjectMeta: metav1.ObjectMeta{Name: "green"}}
	took := c.WaitFor(t, "the path is "+reason, patience, func(context.Context) error {
		if err := c.Get(t.Context(), path); err != nil {
			return err
		}
		if ready := meta.FindStatusCondition(path.Status.Conditions, v1alpha1.ConditionReady); ready == nil || ready.Reason != reason {
			return fmt.Errorf("the conditions are %+v", path.Status.Conditions)
		}
		return nil
	})
	t.Logf("after %v", took)
}

// expectMeasured waits until the agent of the client's node measures this of the path green:
// it shares what it gathered among those who ask within a moment.
func (c *cluster) expectMeasured(t *testing.T, up int) {
	t.Helper()
	want := fmt.Sprintf(`braid_path_up{path="green"} %d`, up)
	c.WaitFor(t, want, patience, func(context.Context) error {
		told, err := c.AgentMetrics(t.Context(), c.Network.Pod("client").Node)
		if err != nil {
			return err
		}
		if !strings.Contains(told, want+"\n") {
			return errors.New("it does not")
		}
		return nil
	})
}

// expectExplained waits until kubectl braid explain says so of the client.
func (c *cluster) expectExplained(t *testing.T, want string) {
	t.Helper()
	c.WaitFor(t, want, patience, func(context.Context) error {
		if out := c.plugin(t, "explain", "client", "--namespace", "shop"); !strings.Contains(out, want) {
			return fmt.Errorf("it is not in %q", out)
		}
		return nil
	})
}

// What is wrong with a path is told by its condition, by kubectl braid, and by a metric that
// stays: that of the NIC where this is down, and the condition where all NICs are up.
func TestAPathThatFailsIsTold(t *testing.T) {
	c := use(t, nil, "client", "server")
	node := c.Network.Pod("client").Node
	c.expectPath(t, v1alpha1.ReasonReady)
	c.expectMeasured(t, 1)

	t.Cleanup(func() { require.NoError(t, c.Network.SetNIC(node, "green", true)) })
	require.NoError(t, c.Network.SetNIC(node, "green", false))
	c.expectPath(t, v1alpha1.ReasonInterfaceDown)
	c.expectMeasured(t, 0) // the series stays
	c.expectExplained(t, "they share 2 of 3 paths now")
	require.NoError(t, c.Network.SetNIC(node, "green", true))
	c.expectPath(t, v1alpha1.ReasonReady)

	setMTU := func(bytes string) {
		t.Helper()
		require.NoError(t, node.Command(context.Background(), "ip", "link", "set", "green", "mtu", bytes).Run())
	}
	t.Cleanup(func() { setMTU("1500") })
	setMTU("1400")
	c.expectPath(t, v1alpha1.ReasonInterfaceNotUsable)
	c.expectMeasured(t, 0)
	c.expectExplained(t, "has an MTU of 1400 bytes")
	setMTU("1500")
	c.expectPath(t, v1alpha1.ReasonReady)

	t.Cleanup(func() { require.NoError(t, c.Network.Block(node, "green", false)) })
	require.NoError(t, c.Network.Block(node, "green", true))
	c.expectPath(t, v1alpha1.ReasonPeersUnreachable)
	c.expectMeasured(t, 1) // the NIC is up
	// The other node's agent may have told first.
	c.expectExplained(t, "no other node answers probes over it")
	require.NoError(t, c.Network.Block(node, "green", false))
	c.expectPath(t, v1alpha1.ReasonReady)
}
