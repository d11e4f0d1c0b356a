// SPDX-License-Identifier: Apache-2.0

package paths

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/network"
)

// inWorld is a lab of a node whose paths lead out of it over gateways, and the node's network.
func inWorld(t *testing.T) (*network.Network, *Node) {
	t.Helper()
	lab := network.ForTest(t, network.Spec{Nodes: 1, Paths: []string{"blue", "green"}, World: true})
	return lab, openNode(t, lab.Nodes[0].Namespace)
}

// leadOutside resolves paths, of which some have a gateway of their own, and their ways out.
func leadOutside(t *testing.T, node *Node, own map[string]string, ranges ...v1alpha1.CIDR) ([]Path, []Outside) {
	t.Helper()
	query := Query{Outside: Prefixes(ranges)}
	for _, path := range []string{"blue", "green"} {
		query.Paths = append(query.Paths, v1alpha1.PlanPath{
			Name: v1alpha1.PathName(path), Interfaces: []v1alpha1.InterfacePattern{v1alpha1.InterfacePattern(path)}, Gateway: own[path],
		})
	}
	resolution, err := node.Resolve(query)
	require.NoError(t, err)
	led, err := node.LeadOutside(resolution.Paths, query.Outside)
	require.NoError(t, err)
	return resolution.Paths, led
}

// configure runs `ip` on the lab's node with each of these lines.
func configure(t *testing.T, lab *network.Network, lines ...string) {
	t.Helper()
	for _, line := range lines {
		out, err := lab.Nodes[0].Run("ip", strings.Fields(line)...)
		require.NoError(t, err, out)
	}
}

func TestGatewaysOutsideAreThoseOfTheNICsOwnRoutes(t *testing.T) {
	_, node := inWorld(t)
	found, led := leadOutside(t, node, nil, network.WorldIPv4, network.WorldIPv6, "0.0.0.0/0", "::/0")
	require.Len(t, led, 4)
	for _, outside := range led {
		want := map[bool]map[string]string{true: {"blue": "10.20.0.254", "green": "10.21.0.254"}, false: {"blue": "fd00:20::fe", "green": "fd00:21::fe"}}
		for path, gateway := range want[outside.Destination.Addr().Is4()] {
			require.Equal(t, Gateway{netip.MustParseAddr(gateway), true}, outside.Gateways[path], "%s by %s", outside.Destination, path)
		}
	}
	for _, path := range found {
		require.Len(t, path.Gateways, 2)
		require.Empty(t, path.Message)
	}
	require.Equal(t, []string{"10.20.0.254", "fd00:20::fe"}, found[0].Status().Gateways)
}

func TestAPathsOwnGatewayComesFirst(t *testing.T) {
	_, node := inWorld(t)
	found, led := leadOutside(t, node, map[string]string{"green": "10.21.0.77"}, network.WorldIPv4, network.WorldIPv6)
	require.Equal(t, netip.MustParseAddr("10.21.0.77"), led[0].Gateways["green"].Address)
	require.Equal(t, netip.MustParseAddr("fd00:21::fe"), led[1].Gateways["green"].Address, "of the other version of IP")
	require.Equal(t, netip.MustParseAddr("10.20.0.254"), led[0].Gateways["blue"].Address)
	require.Empty(t, found[1].Message)
}

func TestAGatewayThatIsNotOnThePathsLinkIsNotUsed(t *testing.T) {
	_, node := inWorld(t)
	found, led := leadOutside(t, node, map[string]string{"green": "10.99.0.1"}, network.WorldIPv4)
	require.NotContains(t, led[0].Gateways, "green")
	require.Contains(t, found[1].Message, "spec.gateway 10.99.0.1 is not on its link")
	require.True(t, found[1].Usable, "within the cluster it is as before")
}

func TestAPathWithoutAWayOutSaysSo(t *testing.T) {
	lab, node := inWorld(t)
	configure(t, lab, "route del default dev green")
	found, led := leadOutside(t, node, nil, network.WorldIPv4)
	require.NotContains(t, led[0].Gateways, "green")
	require.Contains(t, found[1].Message, "does not lead outside to "+network.WorldIPv4)
	require.Empty(t, found[1].Gateways)
}

// Hosts with several NICs often route by the address that a packet comes from.
func TestRulesOfPolicyRoutingSayWhichGatewayLeadsOutside(t *testing.T) {
	lab, node := inWorld(t)
	configure(t, lab,
		"route del default dev green", "-6 route del default dev green",
		"route add default via 10.21.0.253 dev green table 101", "-6 route add default via fd00:21::fd dev green table 101",
		"rule add from 10.21.0.1 table 101", "-6 rule add from fd00:21::1 table 101")
	_, led := leadOutside(t, node, nil, network.WorldIPv4, network.WorldIPv6)
	require.Equal(t, netip.MustParseAddr("10.21.0.253"), led[0].Gateways["green"].Address)
	require.Equal(t, netip.MustParseAddr("fd00:21::fd"), led[1].Gateways["green"].Address)
}

// The kernel says that a gateway does not answer; whoever watches hears of it.
func TestAGatewayThatDoesNotAnswerIsTold(t *testing.T) {
	lab, node := inWorld(t)
	changes, err := node.Watch(t.Context())
	require.NoError(t, err)
	leadOutside(t, node, map[string]string{"green": "10.21.0.99"}, network.WorldIPv4)
	time.Sleep(100 * time.Millisecond)
	for len(changes) > 0 {
		<-changes
	}
	configure(t, lab, "neigh replace 10.21.0.99 dev green use")
	select {
	case <-changes:
	case <-time.After(5 * time.Second):
		t.Fatal("nothing was told")
	}
	found, led := leadOutside(t, node, map[string]string{"green": "10.21.0.99"}, network.WorldIPv4)
	require.False(t, led[0].Gateways["green"].Answers)
	require.Contains(t, found[1].Message, "its gateway 10.21.0.99 does not answer")
	require.Empty(t, found[1].Gateways)
}

// A NIC by which a default route leads out is an uplink where something outside is named: packets
// are steered from there.
func TestTheNICOfTheRouteOutsideIsAnUplink(t *testing.T) {
	lab, node := inWorld(t)
	blue, err := lab.Nodes[0].Index("blue")
	require.NoError(t, err)
	for _, c := range []struct {
		outside []netip.Prefix
		want    int
	}{{nil, 0}, {Prefixes([]v1alpha1.CIDR{network.WorldIPv4}), blue}} {
		resolution, err := node.Resolve(Query{Outside: c.outside, Paths: []v1alpha1.PlanPath{{Name: "green", Interfaces: []v1alpha1.InterfacePattern{"green"}}}})
		require.NoError(t, err)
		at := 0
		for _, uplink := range resolution.Uplinks {
			at = uplink.Index
		}
		require.Equal(t, c.want, at)
	}
}
