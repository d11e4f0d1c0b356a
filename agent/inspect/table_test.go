// SPDX-License-Identifier: Apache-2.0

package inspect_test

import (
	"bytes"
	"flag"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"braid.dev/braid/agent/inspect"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/agentapi"
)

var update = flag.Bool("update", false, "write golden files")

// golden compares with a file, whose lines must fit a terminal.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	goldenAnyWidth(t, name, got)
	expectWidth(t, string(got))
}

func goldenAnyWidth(t *testing.T, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, got, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("the output is\n%s\nand not, as in %s,\n%s", got, file, want)
	}
}

type tester interface {
	Helper()
	Errorf(string, ...any)
}

func expectWidth(t tester, text string) {
	t.Helper()
	for line := range strings.Lines(text) {
		if length := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); length > 100 {
			t.Errorf("a line of %d columns: %s", length, line)
		}
	}
}

func sample() []agentapi.Subflow {
	ipv4, ipv6 := netip.MustParseAddrPort, netip.MustParseAddrPort
	return []agentapi.Subflow{
		{
			Endpoint: "team/web-0", Token: 0x1a2b3c4d, InitiatorToken: 7, Path: "blue", StandIn: "green", RTTMicroseconds: 184,
			Local: ipv4("10.9.0.1:43210"), Remote: ipv4("10.9.0.2:80"),
			Sent:     agentapi.Traffic{Bytes: 1234567890, Packets: 85432, Retransmissions: 12},
			Received: agentapi.Traffic{Bytes: 90210, Packets: 43210, Reordered: 3},
			Limits: []agentapi.Limit{{
				Policy: "MPTCPPolicy/team/web", Rule: "slow", Direction: v1alpha1.DirectionFromEndpoint, BitsPerSecond: 20e6,
				Per: v1alpha1.RateLimitPerSubflow, Asked: v1alpha1.RateLimitAuto, InUse: v1alpha1.RateLimitPace, Why: agentapi.WhyOwnSocket,
			}, {
				Direction: v1alpha1.DirectionToEndpoint, BitsPerSecond: 1500e3, Per: v1alpha1.RateLimitPerConnection,
				Asked: v1alpha1.RateLimitWindow, Why: agentapi.WhyNoSYN,
			}},
		},
		{
			Endpoint: "team/web-0", InitiatorToken: 0xff, Path: "a-very-long-name-of-a-path", Backup: true, RTTMicroseconds: 40123,
			Local: ipv6("[fd09:1111:2222:3333:4444:5555:6666:7777]:43211"), Remote: ipv6("[fd09:1111:2222:3333:4444:5555:6666:8888]:65001"),
		},
		{
			Endpoint: "team/web-1", Local: ipv4("10.9.0.3:80"), Remote: ipv4("10.9.0.4:50000"), RTTMicroseconds: 12e6,
			Limits: []agentapi.Limit{{
				Policy: "MPTCPPolicy/team/web", Rule: "slow-on-the-green-path", Direction: v1alpha1.DirectionFromEndpoint, BitsPerSecond: 20e6,
				Per: v1alpha1.RateLimitPerSubflow, InUse: v1alpha1.RateLimitPolice, Why: agentapi.WhyShortRTT,
			}},
		},
	}
}

func TestATableOfSubflows(t *testing.T) {
	var output bytes.Buffer
	if err := inspect.WriteSubflows(&output, sample()); err != nil {
		t.Fatal(err)
	}
	golden(t, "subflows.txt", output.Bytes())
}

func TestATableOfRules(t *testing.T) {
	var output bytes.Buffer
	err := inspect.WriteRules(&output, []agentapi.Rule{
		{Endpoint: "team/web-0", Policy: "ClusterMPTCPPolicy/all", Name: "refuse", Hits: 3, Bytes: 0, Acted: 3},
		{Endpoint: "team/web-0", Policy: "MPTCPPolicy/team/web", Name: "slow", Hits: 1234567, Bytes: 9876543210, Acted: 999949},
		{Endpoint: "vethab12", Name: "#1", Hits: 9999, Bytes: 99949, Acted: 10000},
		{
			Endpoint: strings.Repeat("namespace", 7) + "/" + strings.Repeat("name", 30),
			Policy:   "MPTCPPolicy/" + strings.Repeat("n", 63) + "/web", Name: strings.Repeat("r", 63), Hits: math.MaxUint64,
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "rules.txt", output.Bytes())
}

func TestATableOfEvents(t *testing.T) {
	local := time.Local
	time.Local = time.UTC
	t.Cleanup(func() { time.Local = local })
	begin := time.Date(2026, 11, 21, 18, 0, 0, 123456000, time.UTC)
	var output bytes.Buffer
	table := inspect.NewEventWriter(&output)
	for _, event := range []agentapi.Event{
		{
			Time: begin, Type: agentapi.EventConnection, Endpoint: "team/web-0", Token: 0x1a2b3c4d, InitiatorToken: 9,
			Local: netip.MustParseAddrPort("10.9.0.1:43210"), Remote: netip.MustParseAddrPort("10.9.0.2:80"),
		},
		{Time: begin.Add(time.Second), Type: agentapi.EventLost, Count: 17},
		{
			Time: begin.Add(2 * time.Second), Type: agentapi.EventSubflow, Endpoint: "team/" + strings.Repeat("web", 20), Token: 0x1a2b3c4d, Path: "blue",
			Local:  netip.MustParseAddrPort("[fd09:1111:2222:3333:4444:5555:6666:7777]:43211"),
			Remote: netip.MustParseAddrPort("[fd09:1111:2222:3333:4444:5555:6666:8888]:65001"),
		},
	} {
		if err := table.Write(event); err != nil {
			t.Fatal(err)
		}
	}
	golden(t, "events.txt", output.Bytes())
}

func TestATableOfNothingSaysSo(t *testing.T) {
	var output bytes.Buffer
	if err := inspect.WriteSubflows(&output, nil); err != nil || output.String() != "no subflows\n" {
		t.Errorf("no subflows give %q (%v)", output.String(), err)
	}
	output.Reset()
	if err := inspect.WriteRules(&output, nil); err != nil || output.String() != "no rules\n" {
		t.Errorf("no rules give %q (%v)", output.String(), err)
	}
}

func traffic(t *rapid.T, label string) agentapi.Traffic {
	number := rapid.Uint64()
	return agentapi.Traffic{
		Bytes: number.Draw(t, label+" bytes"), Packets: number.Draw(t, label+" packets"),
		Retransmissions: number.Draw(t, label+" retransmissions"), Reordered: number.Draw(t, label+" reordered"),
	}
}

func TestTablesFitWhateverTheyHold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		address := netip.AddrPortFrom(netip.AddrFrom16([16]byte(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "address"))), 65535)
		text := rapid.StringN(0, 200, -1)
		subflow := agentapi.Subflow{
			Endpoint: text.Draw(t, "endpoint"), Path: text.Draw(t, "path"), Local: address, Remote: address,
			Token: agentapi.Token(rapid.Uint32().Draw(t, "token")), RTTMicroseconds: uint64(rapid.Uint32().Draw(t, "RTT")),
			Sent: traffic(t, "sent"), Received: traffic(t, "received"),
			Limits: []agentapi.Limit{{
				Rule: text.Draw(t, "rule"), Direction: v1alpha1.DirectionFromEndpoint, BitsPerSecond: rapid.Uint64().Draw(t, "rate"),
				Per: v1alpha1.RateLimitPerConnection, InUse: v1alpha1.RateLimitWindow, Why: agentapi.WhyShortRTT,
			}},
		}
		var output bytes.Buffer
		if err := inspect.WriteSubflows(&output, []agentapi.Subflow{subflow}); err != nil {
			t.Fatal(err)
		}
		expectWidth(t, output.String())
	})
}
