// SPDX-License-Identifier: Apache-2.0

package survey

import (
	"bytes"
	"context"
	"encoding/json"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/internal/agentapi"
	"braid.dev/braid/internal/lab/network"
)

// inNamespace has this program look in a namespace, all of it: sockets are opened by several
// threads.
const inNamespace = "BRAID_TEST_SURVEY"

func TestMain(m *testing.M) {
	if os.Getenv(inNamespace) == "" {
		os.Exit(m.Run())
	}
	var question Question
	if err := json.Unmarshal([]byte(os.Getenv(inNamespace)), &question); err != nil {
		panic(err)
	}
	found, err := Look(context.Background(), question)
	if err != nil {
		panic(err)
	}
	if err := json.NewEncoder(os.Stdout).Encode(found); err != nil {
		panic(err)
	}
}

func look(t *testing.T, in *network.Namespace, question Question) agentapi.Survey {
	t.Helper()
	asked, err := json.Marshal(question)
	require.NoError(t, err)
	program, err := os.Executable()
	require.NoError(t, err)
	command := in.Command(t.Context(), program)
	command.Env = append(os.Environ(), inNamespace+"="+string(asked))
	var stderr bytes.Buffer
	command.Stderr = &stderr
	out, err := command.Output()
	require.NoError(t, err, stderr.String())
	var found agentapi.Survey
	require.NoError(t, json.Unmarshal(out, &found))
	return found
}

func TestASurveyHasTheNICsWhoAnswersAndTheWayToPods(t *testing.T) {
	here, there := network.NamespaceForTest(t), network.NamespaceForTest(t)
	require.NoError(t, network.Connect(here, "blue", there, "blue", network.Options{
		AddressesA: []string{"192.0.2.1/24", "2001:db8::1/64"}, AddressesB: []string{"192.0.2.2/24", "2001:db8::2/64"},
	}))
	require.NoError(t, network.Connect(here, "green", there, "green", network.Options{AddressesA: []string{"198.51.100.1/24"}, MTU: 1400}))
	require.NoError(t, here.AddRoute(network.Route{Destination: "10.244.2.0/24", Gateway: "192.0.2.2", Interface: "blue"}))
	require.NoError(t, there.SetDown("green"))

	found := look(t, here, Question{
		Ask: []Target{
			{netip.MustParseAddr("192.0.2.2"), "blue"}, {netip.MustParseAddr("2001:db8::2"), "blue"},
			{netip.MustParseAddr("192.0.2.9"), "blue"}, {netip.MustParseAddr("198.51.100.2"), "nosuch"},
		},
		Route: []netip.Addr{netip.MustParseAddr("10.244.2.7"), netip.MustParseAddr("203.0.113.1")},
	})
	byName := map[string]agentapi.NIC{}
	for _, nic := range found.NICs {
		byName[nic.Name] = nic
	}
	require.Len(t, byName, 2, "%+v", found)
	blue, green := byName["blue"], byName["green"]
	require.Equal(t, []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24"), netip.MustParsePrefix("2001:db8::1/64")}, blue.Addresses)
	require.True(t, blue.SetUp && blue.Carrier && green.SetUp && !green.Carrier, "%+v", found)
	require.Equal(t, 1400, green.MTU)
	require.Zero(t, blue.SpeedMbit, "what a virtual link says of its speed is made up")
	require.Positive(t, blue.SentBytes)

	require.Len(t, found.Answers, 4)
	require.True(t, found.Answers[0].Answered && found.Answers[1].Answered, "%+v", found.Answers)
	require.False(t, found.Answers[2].Answered, "nobody has that address")
	require.NotEmpty(t, found.Answers[3].Message)
	require.Equal(t, agentapi.Route{To: netip.MustParseAddr("10.244.2.7"), NIC: "blue", Gateway: netip.MustParseAddr("192.0.2.2")}, found.Routes[0])
	require.NotEmpty(t, found.Routes[1].Message, "there is no default route")
}

// A kernel answers a closed port a few times a second and host, and a firewall never; what is
// known of a neighbour may be old by then.
func TestANeighbourThatAnswersNoClosedPortIsSeen(t *testing.T) {
	here, there := network.NamespaceForTest(t), network.NamespaceForTest(t)
	require.NoError(t, network.Connect(here, "blue", there, "blue", network.Options{
		AddressesA: []string{"192.0.2.1/24", "2001:db8::1/64"}, AddressesB: []string{"192.0.2.2/24", "2001:db8::2/64"},
	}))
	for _, sysctl := range []string{"net.ipv4.icmp_ratelimit=1000000", "net.ipv6.icmp.ratelimit=1000000"} {
		_, err := there.Run("sysctl", "-q", "-w", sysctl)
		require.NoError(t, err)
	}
	ask := Question{Ask: []Target{{netip.MustParseAddr("192.0.2.2"), "blue"}, {netip.MustParseAddr("2001:db8::2"), "blue"}}}
	for range 10 {
		found := look(t, here, ask)
		require.True(t, found.Answers[0].Answered && found.Answers[1].Answered, "%+v", found.Answers)
		for _, target := range ask.Ask {
			_, err := here.Run("ip", "neigh", "change", target.Address.String(), "dev", target.NIC, "nud", "stale")
			require.NoError(t, err)
		}
	}
	require.NoError(t, there.SetDown("blue"))
	found := look(t, here, ask)
	require.False(t, found.Answers[0].Answered || found.Answers[1].Answered, "%+v", found.Answers)
}

func TestWhatIsBeyondARouterIsFoundByTheNICsOwnRoutes(t *testing.T) {
	for name, routes := range map[string][]string{
		"in the main table": {"route add 192.0.2.128/25 via 192.0.2.126", "-6 route add 2001:db8:2::/64 via 2001:db8:1::fe"},
		"in one of the NIC's own": {
			"rule add from 192.0.2.1 lookup 101", "route add 192.0.2.128/25 via 192.0.2.126 table 101",
			"-6 rule add from 2001:db8:1::1 lookup 101", "-6 route add 2001:db8:2::/64 via 2001:db8:1::fe table 101",
		},
	} {
		t.Run(name, func(t *testing.T) {
			here, router, there := network.NamespaceForTest(t), network.NamespaceForTest(t), network.NamespaceForTest(t)
			require.NoError(t, network.Connect(here, "blue", router, "one", network.Options{
				AddressesA: []string{"192.0.2.1/25", "2001:db8:1::1/64"}, AddressesB: []string{"192.0.2.126/25", "2001:db8:1::fe/64"},
			}))
			require.NoError(t, network.Connect(there, "blue", router, "two", network.Options{
				AddressesA: []string{"192.0.2.129/25", "2001:db8:2::1/64"}, AddressesB: []string{"192.0.2.254/25", "2001:db8:2::fe/64"},
			}))
			runIP(t, there, "route add 192.0.2.0/25 via 192.0.2.254", "-6 route add 2001:db8:1::/64 via 2001:db8:2::fe")
			runIP(t, here, routes...)
			ask := Question{Ask: []Target{{netip.MustParseAddr("192.0.2.129"), "blue"}, {netip.MustParseAddr("2001:db8:2::1"), "blue"}}}
			expect := func(answered bool, pathMTU int) {
				t.Helper()
				require.Equal(t, []agentapi.Answer{
					{NIC: "blue", Address: ask.Ask[0].Address, Router: netip.MustParseAddr("192.0.2.126"), Answered: answered, PathMTU: pathMTU},
					{NIC: "blue", Address: ask.Ask[1].Address, Router: netip.MustParseAddr("2001:db8:1::fe"), Answered: answered, PathMTU: pathMTU},
				}, look(t, here, ask).Answers)
			}
			expect(false, 0) // it forwards nothing yet
			for _, sysctl := range []string{"net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"} {
				_, err := router.Run("sysctl", "-q", "-w", sysctl)
				require.NoError(t, err)
			}
			expect(true, 0)
			runIP(t, router, "link set two mtu 1400")
			expect(true, 1400)
		})
	}
}

// Where there is no route the kernel takes an IPv4 address to be on the NIC's link.
func TestThereIsNoRouterWhereTheNICHasNoRoute(t *testing.T) {
	here, there := network.NamespaceForTest(t), network.NamespaceForTest(t)
	require.NoError(t, network.Connect(here, "blue", there, "blue", network.Options{AddressesA: []string{"192.0.2.1/25"}, AddressesB: []string{"192.0.2.129/25"}}))
	found := look(t, here, Question{Ask: []Target{{netip.MustParseAddr("192.0.2.129"), "blue"}}})
	require.False(t, found.Answers[0].Router.IsValid(), "%+v", found.Answers)
}

func runIP(t *testing.T, in *network.Namespace, commands ...string) {
	t.Helper()
	for _, command := range commands {
		_, err := in.Run("ip", strings.Fields(command)...)
		require.NoError(t, err, command)
	}
}

func TestTargetsAreAddressesByANIC(t *testing.T) {
	target, err := ParseTarget("2001:db8::2%ens1f0")
	require.NoError(t, err)
	require.Equal(t, Target{netip.MustParseAddr("2001:db8::2"), "ens1f0"}, target)
	for _, wrong := range []string{"192.0.2.1", "192.0.2.1%", "blue%blue"} {
		_, err := ParseTarget(wrong)
		require.Error(t, err, wrong)
	}
}
