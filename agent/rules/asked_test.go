// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"context"
	"io"
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"

	"braid.dev/braid/agent/pace"
	"braid.dev/braid/agent/transport/numbers"
	"braid.dev/braid/api/v1alpha1"
)

// What the packets' records say is all that is known of a guest's subflow.
func TestOfAVMItIsKnownWhatRulesAskOnTheSubflowsThatTheyMatch(t *testing.T) {
	l := newRuleLab(t)
	atPeer := func(name string, remotePort int32, action v1alpha1.Action) v1alpha1.PlanRule {
		rule := planRule(name, action)
		rule.Actions[0].At = v1alpha1.ActionAtPeer
		rule.Match = &v1alpha1.Match{Selectors: v1alpha1.Selectors{Destination: &v1alpha1.Side{Ports: []v1alpha1.PortRange{{Port: remotePort}}}}}
		return rule
	}
	plan := planOf(
		atPeer("rate", 5001, v1alpha1.Action{Type: v1alpha1.ActionRateLimit, RateLimit: &v1alpha1.RateLimit{Rate: resource.MustParse("20M")}}),
		atPeer("elsewhere", 5002, v1alpha1.Action{Type: v1alpha1.ActionCongestion, Congestion: &v1alpha1.Congestion{Algorithm: "reno"}}),
		atPeer("choice", 5001, v1alpha1.Action{Type: v1alpha1.ActionCongestion, Congestion: &v1alpha1.Congestion{Algorithm: "cubic"}}),
	)
	plan.Spec.Endpoints[0].Guest = &v1alpha1.PlanGuest{}
	_, status := l.apply(t, plan)
	for _, rule := range status.Rules {
		require.False(t, rule.Failed, rule.Message)
	}
	client, server := l.Nodes[0].Pods[0], l.Nodes[1].Pods[0]
	listener, err := server.Listen(context.Background(), "tcp", net.JoinHostPort(server.IPv4, "5001"))
	require.NoError(t, err)
	defer listener.Close()
	connection, err := client.Dial(t.Context(), "tcp", listener.Addr().String())
	require.NoError(t, err)
	defer connection.Close()
	accepted, err := listener.Accept()
	require.NoError(t, err)
	defer accepted.Close()
	_, err = accepted.Write(make([]byte, 100_000))
	require.NoError(t, err)
	_, err = io.ReadFull(connection, make([]byte, 100_000))
	require.NoError(t, err)

	local, remote := netip.MustParseAddrPort(connection.LocalAddr().String()), netip.MustParseAddrPort(listener.Addr().String())
	asked, err := l.rules.AskedBy("client")(local, remote)
	require.NoError(t, err)
	require.Equal(t, pace.Request{Rate: numbers.OfRate(20_000_000), CongestionControl: numbers.OfName("cubic")}, asked)
	asked, err = l.rules.AskedBy("client")(local, netip.AddrPortFrom(remote.Addr(), 9))
	require.NoError(t, err)
	require.Zero(t, asked)
	require.Nil(t, l.rules.AskedBy("another"))
}
