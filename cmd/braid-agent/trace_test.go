// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"strings"
	"testing"
)

func TestAPacketIsReplayedByFlags(t *testing.T) {
	n := build(t)
	out, err := n.run("trace", "--pod", "team/web-0", "--address", "10.9.0.1", "--to", "10.9.0.2:80", "--type", "DSS", "--bytes", "10")
	check(t, err)
	for _, text := range []string{"10.9.0.1:40000 -> 10.9.0.2:80 ACK DSS 10 bytes", "from_endpoint", "rule slow", "MPTCPPolicy/team/web"} {
		if !strings.Contains(out, text) {
			t.Errorf("the output has no %q:\n%s", text, out)
		}
	}
	out, err = n.run("leftovers")
	check(t, err)
	for _, text := range []string{"Pin", "endpoints", "Program    from_endpoint  pod0 ingress", "Program    to_endpoint  pod0 egress"} {
		if !strings.Contains(out, text) {
			t.Errorf("the leftovers have no %q:\n%s", text, out)
		}
	}
	if _, err := n.run("leftovers", "--check"); !errors.Is(err, errLeft) {
		t.Errorf("checking leftovers: %v", err)
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
			command := command()
			command.SetArgs(append([]string{"trace", "--pin-path", t.TempDir(), "--state-path", t.TempDir()}, strings.Fields(test.arguments)...))
			if err := command.Execute(); err == nil || !strings.Contains(err.Error(), test.says) {
				t.Errorf("the error is %v, wanted one that says %q", err, test.says)
			}
		})
	}
}
