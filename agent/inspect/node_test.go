// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"context"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/agent/datapath"
	"braid.dev/braid/internal/agentapi"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/mptcpnl"
	"braid.dev/braid/internal/testutil"
)

func at(text string) netip.AddrPort { return netip.MustParseAddrPort(text) }

func TestASocketsPathIsThatOfItsFlow(t *testing.T) {
	flows := datapath.IndexFlows([]datapath.Flow{
		{Local: at("10.0.0.1:1000"), Remote: at("10.0.0.2:80"), Path: "blue", Initiator: true},
		{Local: at("10.0.0.1:1001"), Remote: at("10.0.0.2:80"), Path: "green", Initiator: true},
		{Local: at("10.0.0.1:1002"), Remote: at("10.0.0.2:80"), Path: "green", Initiator: true, Ended: true},
		{Local: at("10.0.0.1:1003"), Remote: at("10.0.0.2:80"), Path: "blue", Initiator: true},
		{Local: at("10.0.0.1:1003"), Remote: at("10.0.0.3:80"), Path: "red", Initiator: true},
		{Local: at("10.0.0.1:80"), Remote: at("10.0.0.4:2000"), Path: "red"},
	})
	tests := map[string]struct{ local, remote, want string }{
		"to a pod":                               {"10.0.0.1:1000", "10.0.0.2:80", "blue"},
		"to a Service":                           {"10.0.0.1:1001", "10.96.0.1:80", "green"},
		"whose flow has ended":                   {"10.0.0.1:1002", "10.0.0.2:80", ""},
		"to a Service, as one of several":        {"10.0.0.1:1003", "10.96.0.1:80", ""},
		"that a peer began":                      {"10.0.0.1:80", "10.0.0.4:2000", "red"},
		"that another peer of a server began":    {"10.0.0.1:80", "10.0.0.5:2000", ""},
		"that no uplink has carried a packet of": {"10.0.0.1:3000", "10.0.0.2:80", ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := pathOf(flows, &mptcpnl.Subflow{Local: at(test.local), Remote: at(test.remote)}); got != test.want {
				t.Errorf("the path is %q, want %q", got, test.want)
			}
		})
	}
}

func TestASubflowTellsByWhichPathsItsPacketsLeaveAndCome(t *testing.T) {
	flows := datapath.IndexFlows([]datapath.Flow{
		{Local: at("10.0.0.1:1000"), Remote: at("10.0.0.2:80"), Path: "green", StandIn: "blue", Initiator: true},
		{Local: at("10.0.0.1:1001"), Remote: at("10.0.0.2:80"), Path: "green", Initiator: true},
		{Local: at("10.0.0.1:1003"), Remote: at("10.0.0.2:80"), Path: "red", Incoming: "blue", Initiator: true},
		{Local: at("10.0.0.1:1004"), Remote: at("10.0.0.2:80"), Path: "red", Incoming: "red", Initiator: true},
		{Local: at("10.0.0.1:1002"), Remote: at("10.0.0.2:80"), Path: "green", StandIn: "blue", Initiator: true, Ended: true},
	})
	tests := map[string]struct{ local, remote, path, standIn, incoming string }{
		"whose path does not answer":               {"10.0.0.1:1000", "10.0.0.2:80", "green", "blue", ""},
		"to a Service, whose path does not answer": {"10.0.0.1:1000", "10.96.0.1:80", "green", "blue", ""},
		"whose path answers":                       {"10.0.0.1:1001", "10.0.0.2:80", "red", "", ""},
		"that receives by another path":            {"10.0.0.1:1003", "10.0.0.2:80", "red", "", "blue"},
		"that receives by its own path":            {"10.0.0.1:1004", "10.0.0.2:80", "red", "", ""},
		"that has ended":                           {"10.0.0.1:1002", "10.0.0.2:80", "red", "", ""},
		"that no uplink has carried a packet of":   {"10.0.0.1:3000", "10.0.0.2:80", "red", "", ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			subflow := agentapi.Subflow{Local: at(test.local), Remote: at(test.remote), Path: "red"}
			noteWays(&subflow, flows)
			require.Equal(t, []string{test.path, test.standIn, test.incoming}, []string{subflow.Path, subflow.StandIn, subflow.Incoming})
		})
	}
}

func TestTokensAreTheRespondersAndTheInitiators(t *testing.T) {
	tests := map[string]struct {
		sockets []mptcpnl.Subflow
		want    tokenPair
	}{
		"of a connection that the pod began": {
			[]mptcpnl.Subflow{{Token: 1, First: true, Initiator: true}}, tokenPair{0, 1},
		},
		"of one that it began and joined": {
			[]mptcpnl.Subflow{{Token: 1, First: true, Initiator: true}, {Token: 1, RemoteToken: 2, Initiator: true}}, tokenPair{2, 1},
		},
		"of one that it answered": {
			[]mptcpnl.Subflow{{Token: 1, First: true}}, tokenPair{1, 0},
		},
		"of one that it answered and joined": {
			[]mptcpnl.Subflow{{Token: 1, RemoteToken: 2, Initiator: true}, {Token: 1, First: true}}, tokenPair{1, 2},
		},
		"of one whose first subflow is closed": {
			[]mptcpnl.Subflow{{Token: 1, RemoteToken: 2, Initiator: true}}, tokenPair{2, 1},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := connectionsOf(test.sockets)[1]; got != test.want {
				t.Errorf("the tokens are %+v, want %+v", got, test.want)
			}
		})
	}
}

// TestPodsWithoutRulesAreShownByTheirSockets has a pod without rules talk to its
// node.
func TestPodsWithoutRulesAreShownByTheirSockets(t *testing.T) {
	pod, host := network.NamespaceForTest(t), network.NamespaceForTest(t)
	require.NoError(t, network.Connect(pod, "eth0", host, "pod0", network.Options{
		AddressesA: []string{"10.9.0.1/24"}, AddressesB: []string{"10.9.0.2/24"},
	}))
	names, err := OpenDirectory("")
	require.NoError(t, err)
	var local, remote netip.AddrPort
	node := &Node{Pins: NewPins(filepath.Join(t.TempDir(), "none"), t.TempDir(), names), Flows: func() ([]datapath.Flow, error) {
		return []datapath.Flow{{Local: local, Remote: remote, Path: "blue", Initiator: true}}, nil
	}}
	node.SetPods([]Pod{{"team/web", pod.Path()}, {"team/gone", filepath.Join(t.TempDir(), "gone")}})
	connection := exchange(t, pod, host, "10.9.0.2:0")
	local, remote = at(connection.LocalAddr().String()), at(connection.RemoteAddr().String())

	var got []agentapi.Subflow
	testutil.Eventually(t, 20*time.Second, "the subflow has received all", func() bool {
		got, err = node.Subflows()
		require.NoError(t, err)
		return len(got) == 1 && got[0].Received.Bytes == exchanged
	})
	if len(got) != 1 || got[0].InitiatorToken == 0 || got[0].RTTMicroseconds == 0 {
		t.Fatalf("the subflows are %+v", got)
	}
	want := agentapi.Subflow{
		Endpoint: "team/web", Local: local, Remote: remote, Path: "blue",
		Sent: agentapi.Traffic{Bytes: exchanged}, Received: agentapi.Traffic{Bytes: exchanged},
	}
	got[0].Token, got[0].InitiatorToken, got[0].RTTMicroseconds = 0, 0, 0
	if !reflect.DeepEqual(got[0], want) {
		t.Errorf("the subflow is %+v, want %+v", got[0], want)
	}
	node.SetPods(nil)
	if got, err := node.Subflows(); len(got) > 0 || err != nil {
		t.Errorf("a pod that is no longer managed has %+v, %v", got, err)
	}
}

const exchanged = 100000

// exchange sends some bytes from one namespace to another, and back.
func exchange(t *testing.T, from, to *network.Namespace, address string) net.Conn {
	t.Helper()
	listener, err := to.Listen(context.Background(), "tcp", address)
	require.NoError(t, err)
	defer listener.Close()
	connection, err := from.Dial(context.Background(), "tcp", listener.Addr().String())
	require.NoError(t, err)
	served, err := listener.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { connection.Close(); served.Close() })
	go func() { _, _ = io.Copy(served, served) }()
	require.NoError(t, connection.SetDeadline(time.Now().Add(time.Minute)))
	go func() { _, _ = connection.Write(make([]byte, exchanged)) }()
	_, err = io.ReadFull(connection, make([]byte, exchanged))
	require.NoError(t, err)
	return connection
}
