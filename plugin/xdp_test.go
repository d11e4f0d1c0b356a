// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"testing"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/api/v1alpha1"
)

func TestPathsShowAtWhichHookRulesDrop(t *testing.T) {
	nodes := []NodePaths{{Node: "node1", Paths: []v1alpha1.NodePath{
		{Name: "blue", Interface: "eth1", State: v1alpha1.LinkUp, XDP: &v1alpha1.NodePathXDP{State: v1alpha1.XDPNative}},
		{Name: "green", Interface: "eth2", State: v1alpha1.LinkUp, XDP: &v1alpha1.NodePathXDP{State: v1alpha1.XDPOccupied, Message: "another program is at the XDP hook: another (id 71)"}},
		{Name: "red", Interface: "eth3", State: v1alpha1.LinkUp},
	}}}
	text := pathsText(nodes)
	require.Regexp(t, `(?m)^NODE +PATH +NIC +DROPS AT +REASON +MESSAGE\nnode1 +blue +eth1 +XDP +- *\nnode1 +green +eth2 +TC +XDPOccupied +another program is at the XDP hook: another \(id 71\)$`, text)
	nodes[0].Paths = nodes[0].Paths[2:]
	require.NotContains(t, pathsText(nodes), "DROPS AT", "with agent.xdp: Off")
}
