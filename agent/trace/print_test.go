// SPDX-License-Identifier: Apache-2.0

package trace_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"braid.dev/braid/agent/trace"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/output"
)

var update = flag.Bool("update", false, "write the golden files anew")

// sample is a report with everything that a step can tell.
func sample() *trace.Report {
	return &trace.Report{
		Pod: "shop/web-0", Address: netip.MustParseAddr("10.244.1.2"), Interface: "veth1",
		Packets: []trace.PacketReport{
			{
				Number: 1, Packet: "10.244.1.2:40000 -> 10.244.2.7:80 SYN MP_JOIN", Direction: v1alpha1.DirectionFromEndpoint,
				Outcome: "leaves by path green (ens2)", Path: "green",
				Steps: []trace.Step{
					{Program: "own_source", Interface: "veth1", Hook: "ingress", Verdict: trace.NotAttached},
					{
						Program: "from_endpoint", Interface: "veth1", Hook: "ingress", ID: 7, Tag: "abc", Verdict: trace.Pass,
						Rules:   []trace.RuleHit{{Policy: "MPTCPPolicy/shop/web", Name: "slow", Acted: true}, {Name: "#2"}},
						Changes: []trace.Change{{Offset: 48, Field: "TCP window", Before: "ffff", After: "0100"}, {Offset: 54, Field: "TCP options", Before: strings.Repeat("01", 20), After: "1e"}},
						Notes:   []string{"the pod has no chain: nothing is looked at"},
					},
					{
						Program: "to_uplink", Interface: "ens1", Hook: "egress", ID: 9, Tag: "def", Verdict: trace.Redirect,
						Path: "green", NIC: "ens2", NextHop: "10.2.0.2", Flow: &trace.Flow{New: true, Initiator: true, Path: "green", Token: 0xabc},
					},
				},
			},
			{Number: 2, Packet: "10.244.2.7:80 -> 10.244.1.2:40000 ACK", Direction: v1alpha1.DirectionToEndpoint, Outcome: "reaches the pod", Steps: []trace.Step{
				{Program: "from_uplink", Interface: "ens2", Hook: "ingress", Verdict: trace.Pass, Flow: &trace.Flow{Path: "blue", Avoided: []string{"blue", "red"}}},
			}},
			{Number: 3, Outcome: "not replayed: only 60 of its 1500 bytes were captured", Steps: []trace.Step{}},
		},
	}
}

func TestAReportIsATableForEachPacket(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, trace.Print(&out, output.Text, sample()))
	const golden = "testdata/report.golden"
	if *update {
		require.NoError(t, os.WriteFile(golden, out.Bytes(), 0o600))
	}
	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	require.Equal(t, string(want), out.String())
}

func TestProgramsReadTheWholeReport(t *testing.T) {
	for format, unmarshal := range map[output.Format]func([]byte, any) error{
		output.JSON: json.Unmarshal, output.YAML: func(data []byte, value any) error { return yaml.Unmarshal(data, value) },
	} {
		var out bytes.Buffer
		require.NoError(t, trace.Print(&out, format, sample()))
		var read trace.Report
		require.NoError(t, unmarshal(out.Bytes(), &read), out.String())
		require.Equal(t, sample(), &read)
	}
}

// full is a disk without room.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space left") }

func TestAReportThatCannotBeWrittenIsAnError(t *testing.T) {
	for _, format := range []output.Format{output.Text, output.JSON, output.YAML} {
		require.ErrorContains(t, trace.Print(full{}, format, sample()), "no space left", "as %q", format)
	}
}
