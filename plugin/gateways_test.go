// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"testing"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/api/v1alpha1"
)

func TestPathsShowByWhichGatewaysTheyLeadOutside(t *testing.T) {
	nodes := []NodePaths{{Node: "node1", Paths: []v1alpha1.NodePath{
		{Name: "blue", Interface: "eth1", State: v1alpha1.LinkUp, Gateways: []string{"10.1.1.254", "fd00:1::fe"}},
		{Name: "green", Interface: "eth2", State: v1alpha1.LinkUp, Message: "eth2 does not lead outside: its gateway 10.1.2.254 does not answer"},
	}}}
	text := pathsText(nodes)
	require.Regexp(t, `(?m)^NODE +PATH +GATEWAY OUTSIDE\nnode1 +blue +10\.1\.1\.254, fd00:1::fe$`, text)
	require.Contains(t, text, "its gateway 10.1.2.254 does not answer")
	nodes[0].Paths = nodes[0].Paths[1:]
	require.NotContains(t, pathsText(nodes), "GATEWAY")
}

func TestPathsShowToHowManyNodesBraidEncapsulates(t *testing.T) {
	nodes := []NodePaths{{Node: "node1", Paths: []v1alpha1.NodePath{
		{Name: "blue", Interface: "eth1", State: v1alpha1.LinkUp, Encapsulated: 2},
		{Name: "green", Interface: "eth2", State: v1alpha1.LinkUp},
	}}}
	require.Regexp(t, `(?m)^NODE +PATH +ENCAPSULATED TO NODES\nnode1 +blue +2$`, pathsText(nodes))
	nodes[0].Paths = nodes[0].Paths[1:]
	require.NotContains(t, pathsText(nodes), "ENCAPSULATED")
}

func TestASysdumpHasNoKeyOfANode(t *testing.T) {
	node := &v1alpha1.MPTCPNode{Status: v1alpha1.MPTCPNodeStatus{EncapsulationKey: "0123456789abcdef"}}
	require.NoError(t, clean(node))
	require.Equal(t, "(left out)", node.Status.EncapsulationKey)
	node.Status.EncapsulationKey = ""
	require.NoError(t, clean(node))
	require.Empty(t, node.Status.EncapsulationKey)
}
