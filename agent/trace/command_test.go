// SPDX-License-Identifier: Apache-2.0

package trace_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/agent/trace"
)

func TestAPacketIsReplayedByFlags(t *testing.T) {
	l := newLab(t)
	pod, other := l.ends(4, 40000, refusedPort)
	var out bytes.Buffer
	command := trace.Command()
	command.SetOut(&out)
	command.SetArgs([]string{
		"--pin-path", l.options.PinPath, "--state-path", l.options.StatePath, "--pod", "team/web-0",
		"--address", pod.Addr().String(), "--to", other.String(), "--type", "DSS", "--bytes", "10",
	})
	require.NoError(t, l.Nodes[0].Do(func() error { return command.ExecuteContext(t.Context()) }))
	for _, text := range []string{pod.String() + " -> " + other.String() + " ACK DSS 10 bytes", "from_endpoint", "rule refuse", "MPTCPPolicy/team/web"} {
		if !strings.Contains(out.String(), text) {
			t.Errorf("the output has no %q:\n%s", text, out.String())
		}
	}
}

func TestAPacketThatCannotBeMadeIsRefused(t *testing.T) {
	for name, test := range map[string]struct{ arguments, says string }{
		"without an address":             {"--to 10.9.0.2:80", "--address"},
		"without an other end":           {"--address 10.9.0.1", "--to or --pcap"},
		"of two versions":                {"--address 10.9.0.1 --to [fd00::1]:80", "not both of IPv4"},
		"of an unknown type":             {"--address 10.9.0.1 --to 10.9.0.2:80 --type SYN", `no type "SYN"`},
		"of an unknown direction":        {"--address 10.9.0.1 --to 10.9.0.2:80 --direction up", "--direction"},
		"with a token that is none":      {"--address 10.9.0.1 --to 10.9.0.2:80 --token abc", "--token"},
		"from a capture that is missing": {"--address 10.9.0.1 --pcap /nowhere", "opening the capture"},
	} {
		t.Run(name, func(t *testing.T) {
			command := trace.Command()
			command.SetArgs(append([]string{"--pin-path", t.TempDir(), "--state-path", t.TempDir()}, strings.Fields(test.arguments)...))
			if err := command.Execute(); err == nil || !strings.Contains(err.Error(), test.says) {
				t.Errorf("the error is %v, wanted one that says %q", err, test.says)
			}
		})
	}
}
