// SPDX-License-Identifier: Apache-2.0

package agentapi_test

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/agentapi"
)

func TestWhatTrafficDoesIsToldInOneLine(t *testing.T) {
	for want, status := range map[string]v1alpha1.SpreadingStatus{
		"not looked at yet":         {},
		"spread over several paths": {State: v1alpha1.SpreadingSpread, Reason: v1alpha1.ReasonSpread},
		"not spread: PlainTCP: its sockets are plain TCP": {
			State: v1alpha1.SpreadingNotSpread, Reason: v1alpha1.ReasonPlainTCP, Message: "its sockets are plain TCP",
		},
		"unknown: NothingSent":              {State: v1alpha1.SpreadingUnknown, Reason: v1alpha1.ReasonNothingSent},
		"OfANewerAgent: SomeReason: and so": {State: "OfANewerAgent", Reason: "SomeReason", Message: "and so"},
	} {
		require.Equal(t, want, agentapi.Told(&status))
	}
}

func TestATextOfTrafficHasALineForEachPath(t *testing.T) {
	s := agentapi.Spreading{
		SpreadingStatus: v1alpha1.SpreadingStatus{State: v1alpha1.SpreadingSpread}, Seconds: 10.2, Connections: 2, PlainConnections: 1,
		Paths: []agentapi.PathTraffic{{Path: "blue", Subflows: 3, SentBytes: 7, ReceivedBytes: 8}, {Subflows: 1, SentBytes: 9}},
	}
	require.Equal(t, strings.Join([]string{
		"  traffic: spread over several paths",
		"  in the last 10 s: connections of MPTCP that moved bytes 2, of plain TCP 1",
		"    path blue: subflows 3, bytes sent 7, received 8",
		"    by the cluster network's route: sockets 1, bytes sent 9, received 0",
		"",
	}, "\n"), s.Text("  "))
}

// An agent that was just started has no interval behind it.
func TestATextOfTrafficThatWasNotMeasuredHasNoNumbers(t *testing.T) {
	s := agentapi.Spreading{SpreadingStatus: v1alpha1.SpreadingStatus{State: v1alpha1.SpreadingUnknown, Reason: v1alpha1.ReasonLittleSent}}
	require.Equal(t, "traffic: unknown: LittleSent\n", s.Text(""))
}

func TestThePathOfASubflowIsTheOneThatItsPacketsTake(t *testing.T) {
	for name, tc := range map[string]struct{ path, standIn, incoming, carrier, bringer string }{
		"its own where it answers":                         {"blue", "", "", "blue", "blue"},
		"another that stands in for it, in both ways":      {"blue", "green", "", "green", "green"},
		"another by which alone the peer's packets come":   {"blue", "", "red", "blue", "red"},
		"one that stands in, and one that packets come by": {"blue", "green", "red", "green", "red"},
		"none while it is not known":                       {},
	} {
		t.Run(name, func(t *testing.T) {
			rate := agentapi.Rate{Path: tc.path, StandIn: tc.standIn, Incoming: tc.incoming}
			require.Equal(t, []string{tc.carrier, tc.bringer}, []string{rate.Carrier(), rate.Bringer()})
			subflow := agentapi.Subflow{Path: tc.path, StandIn: tc.standIn, Incoming: tc.incoming}
			require.Equal(t, tc.carrier, subflow.Carrier())
		})
	}
}

func TestARateIsWhatACountGrewByInATime(t *testing.T) {
	for name, tc := range map[string]struct {
		now, before uint64
		elapsed     time.Duration
		want        uint64
	}{
		"in bits a second":                        {3000, 1000, 2 * time.Second, 8000},
		"of less than a second":                   {1000, 0, 100 * time.Millisecond, 80_000},
		"of a count that stands still":            {1000, 1000, time.Second, 0},
		"of a count that began anew, since then":  {500, 1 << 40, time.Second, 4000},
		"of no time there is none":                {1000, 0, 0, 0},
		"of a clock that went back there is none": {1000, 0, -time.Second, 0},
		"of counts near the end of their numbers": {1<<64 - 1, 1<<64 - 126, time.Second, 1000},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, tc.want, agentapi.BitsPerSecond(tc.now, tc.before, tc.elapsed))
		})
	}
}

// An admin's plugin may be older or newer than the agents.
func TestWhatANodeIsKeepsItsWords(t *testing.T) {
	address := netip.MustParseAddr("10.0.0.9")
	survey := agentapi.Survey{
		Time: noon, Kernel: "6.1.0", MPTCP: "net.mptcp.enabled is 0",
		NICs: []agentapi.NIC{{
			Name: "eth1", Kind: "device", SetUp: true, MTU: 1500, SpeedMbit: 1000, Addresses: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/24")},
			ReversePathFilter: 1, Gateways: []netip.Addr{netip.MustParseAddr("10.0.0.254")}, SentBytes: 3,
		}},
		Answers: []agentapi.Answer{{NIC: "eth1", Address: address, Answered: true}, {NIC: "eth2", Address: address, PathMTU: 1400, Message: "no route"}},
		Routes:  []agentapi.Route{{To: address, NIC: "flannel.1", Tunnel: true, Overlay: "VXLAN", Steered: true}},
	}
	text, err := json.Marshal(&survey)
	require.NoError(t, err)
	require.JSONEq(t, `{"time":"2026-11-22T12:00:00Z","kernel":"6.1.0","mptcp":"net.mptcp.enabled is 0",
		"nics":[{"name":"eth1","kind":"device","setUp":true,"carrier":false,"mtu":1500,"speedMbit":1000,"addresses":["10.0.0.1/24"],
			"reversePathFilter":1,"gateways":["10.0.0.254"],"sentBytes":3,"receivedBytes":0}],
		"answers":[{"nic":"eth1","address":"10.0.0.9","answered":true},
			{"nic":"eth2","address":"10.0.0.9","answered":false,"pathMTU":1400,"message":"no route"}],
		"routes":[{"to":"10.0.0.9","nic":"flannel.1","tunnel":true,"overlay":"VXLAN","steered":true}]}`, string(text))
	var read agentapi.Survey
	require.NoError(t, json.Unmarshal(text, &read))
	require.Equal(t, survey, read)
}

func TestWhatATransferDidIsReadAsItIsWritten(t *testing.T) {
	for want, transfer := range map[string]agentapi.Transfer{
		`{"milliseconds":5,"sentBytes":6,"longestStandstillMilliseconds":1,"multipath":true}`: {
			Milliseconds: 5, SentBytes: 6, LongestStandstillMilliseconds: 1, Multipath: true,
		},
		`{"milliseconds":0,"sentBytes":0,"longestStandstillMilliseconds":0,"multipath":false,"error":"connection refused"}`: {Error: "connection refused"},
	} {
		text, err := json.Marshal(transfer)
		require.NoError(t, err)
		require.Equal(t, want, string(text))
		var read agentapi.Transfer
		require.NoError(t, json.Unmarshal(text, &read))
		require.Equal(t, transfer, read)
	}
}
