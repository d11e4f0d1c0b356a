// SPDX-License-Identifier: Apache-2.0

package faults_test

import (
	"context"
	"net"
	"strconv"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/e2e/testlab"
	"braid.dev/braid/hack/lab"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

// traffics are pods whose traffic is not spread, each with a policy of its own name.
var traffics = []fault{
	{name: "programs open plain TCP sockets", make: sending("tcp", "server", network.TCP, ""), pod: "tcp", told: notSpread("tcp", v1alpha1.ReasonPlainTCP),
		remedy: `have both ends open MPTCP sockets`, do: "[sockets.md](sockets.md)"},
	{name: "no policy selects the other end", make: inTurn(takeNoSubflows("stranger"), sending("lonely", "stranger", network.MPTCP, "")), pod: "lonely", told: notSpread("lonely", v1alpha1.ReasonPeerNotSelected),
		remedy: `select the pods at the other end by a policy too`, do: "a policy for it too, or `subflows.manager: Agent`"},
	{name: "a policy allows one path only", make: sending("bound", "server", network.MPTCP, "  paths: {allowed: [green]}"), pod: "bound", told: notSpread("bound", v1alpha1.ReasonNoSecondPath),
		remedy: `spec.paths`, do: "`spec.paths`, guardrails, annotations"},
	{name: "the kernel cannot upgrade sockets", unless: canUpgrade, make: sending("old", "server", network.TCP, "  sockets: {upgrade: true}"), pod: "old", told: notSpread("old", v1alpha1.ReasonUpgradeUnsupported),
		remedy: `take another way to MPTCP sockets`, do: "another of [four ways](sockets.md), or another kernel"},
	{name: "a firewall drops further subflows", make: inTurn(dropJoins("walled"), sending("walled", "server", network.MPTCP, "")), pod: "walled", told: notSpread("walled", v1alpha1.ReasonOnePathUsed),
		remedy: `see that no firewall or NetworkPolicy drops further subflows`, do: "let the announced ports through, or `manager: Agent` ([above](#there-is-one-subflow))"},
	{name: "MPTCP is switched off in a pod", make: inTurn(switchOff("muted"), apply(policy("muted", "muted", ""))), pod: "muted", told: map[channel]string{
		byStatus: `policy shop/muted: EndpointFailed\s+.*net.mptcp.enabled`, byExplain: `on the node: Failed: .*net.mptcp.enabled`,
		byEvent: `Warning EndpointFailed MPTCPPolicy/muted: .*net.mptcp.enabled`, byAlert: `BraidPolicyNotProgrammed kind=MPTCPPolicy namespace=shop policy=muted`,
	}, remedy: `net.mptcp.enabled`, do: "`net.mptcp.enabled=1` there"},
}

// notSpread is what is told of a pod whose policy has its name.
func notSpread(name, reason string) map[channel]string {
	return map[channel]string{
		byStatus: `policy shop/` + name + `: ` + reason + `\s+.*\n.*`, byExplain: `traffic: not spread: ` + reason,
		byEvent: `Warning ` + reason + ` MPTCPPolicy/` + name, byAlert: `BraidTrafficNotSpread kind=MPTCPPolicy namespace=shop policy=` + name + ` reason=` + reason,
	}
}

func canUpgrade(s *scene) string {
	var node v1alpha1.MPTCPNode
	if err := s.Client.Get(context.Background(), client.ObjectKey{Name: "node1"}, &node); err != nil {
		return err.Error()
	}
	for _, feature := range node.Status.Features {
		if feature.Name == "SocketUpgrade" && feature.Supported {
			return "this kernel can"
		}
	}
	return ""
}

func inTurn(all ...func(*testing.T, *scene)) func(*testing.T, *scene) {
	return func(t *testing.T, s *scene) {
		for _, one := range all {
			one(t, s)
		}
	}
}

// sending has a pod send to another, once its policy is programmed.
func sending(from, to string, protocol network.Protocol, spec string) func(*testing.T, *scene) {
	return func(t *testing.T, s *scene) {
		apply(policy(from, from, spec))(t, s)
		s.WaitProgrammed(t, &v1alpha1.MPTCPPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: shop, Name: from}}, 1)
		s.send(t, from, to, protocol, 8)
	}
}

// send has a pod send so much to another until the scene is mended.
func (s *scene) send(t *testing.T, from, to string, protocol network.Protocol, mbit float64) {
	t.Helper()
	address := net.JoinHostPort(s.Network.Pod(to).IPv4, strconv.Itoa(lab.TrafficPort))
	dial := func(ctx context.Context) (net.Conn, error) {
		return s.Network.Pod(from).DialBy(ctx, protocol, "tcp", address)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	s.mend(func() {
		cancel()
		<-done
	})
	go func() {
		defer close(done)
		_, _ = traffic.Run(ctx, dial, traffic.Options{Duration: 2 * time.Minute, OfferedMbit: mbit}) // that it is cut short is no failure
	}()
}

// takeNoSubflows has a pod that no policy selects take no further subflow, as others' hosts do.
func takeNoSubflows(name string) func(*testing.T, *scene) {
	return func(t *testing.T, s *scene) {
		of := s.Network.Pod(name)
		s.mend(func() {
			testlab.RunIn(t, of, "ip", "mptcp", "limits", "set", "subflows", "2", "add_addr_accepted", "0")
		})
		testlab.RunIn(t, of, "ip", "mptcp", "limits", "set", "subflows", "0", "add_addr_accepted", "0")
	}
}

// dropJoins drops what a pod sends to ports that others announce.
func dropJoins(name string) func(*testing.T, *scene) {
	return func(t *testing.T, s *scene) {
		of := s.Network.Pod(name)
		firewall(of.Node.NodeName(), "joins", "ip saddr "+of.IPv4+" tcp dport 61001-61016")(t, s)
	}
}

func switchOff(name string) func(*testing.T, *scene) {
	return func(t *testing.T, s *scene) {
		of := s.Network.Pod(name)
		s.mend(func() { check(t, of.Sysctl("net.mptcp.enabled", "1")) })
		check(t, of.Sysctl("net.mptcp.enabled", "0"))
	}
}
