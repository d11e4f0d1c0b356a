// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"regexp"
	"strings"
)

// capability is one line of the table: what Braid does, and the tests that show it.
type capability struct {
	name string
	// packageName is relative to the repository.
	packageName string
	// tests names tests with their subtests, each element of the path a regular
	// expression; "" stands for all.
	tests string
	// except are tests that another line has.
	except string
	// left out of this run
	left bool
}

var capabilities = []capability{
	{"Steering: the verifier takes the programs, with room left", "bpf", "TestTheVerifierHasLittleWork", "", false},
	{"Steering: what the programs do with packets", "bpf", "", "TestTheVerifierHasLittleWork", false},
	{"Rules: the verifier takes the programs, with room left", "bpf/endpoint", "TestTheVerifierHasLittleWork", "", false},
	{"Rules: what the programs do with packets", "bpf/endpoint", "", "TestTheVerifierHasLittleWork", false},
	{"Ceilings and own addresses: the programs", "bpf/guard", "", "", false},
	{"Programs attached by TCX", "agent/datapath", "TestRemovalLeavesNothing/^tcx$", "", false},
	{"Programs attached by clsact", "agent/datapath", "TestRemovalLeavesNothing/^clsact$", "", false},
	{"Subflows of one connection fill all paths", "agent/datapath", "TestSubflowsOfOneConnectionFillAllPaths", "", false},
	{"Failover", "agent/datapath", "TestADeadPathsFlowsUseTheOthersAndComeBack", "", false},
	{"NICs that come and go", "agent/datapath", "TestANICIsRemovedAndAdded", "", false},
	{"Paths on VLANs", "agent/datapath", "TestPathsAreVLANs", "", false},
	{"A restarted agent takes over", "agent/datapath", "TestARestartedAgentTakesOver", "", false},
	{"Socket upgrade", "agent/sockets", "TestUpgrade/^(sockets|the_upgrade|listed)", "", false},
	{"Where there is no socket upgrade, the agent says so", "agent/sockets", "TestUpgrade/^what", "", false},
	{"Pacing of new connections", "agent/pace", "TestEachSubflowIsPacedAtItsRate|TestANewSubflowIsPacedFromItsFirstByte", "", false},
	{"Pacing of connections that exist, and its end", "agent/pace", "TestAnEndpointThatIsNoLongerOneIsPutBack|TestTheNextAgentTakesOverAndRemovesEverything", "", false},
	{"Choice of the congestion control", "agent/pace", "TestCongestionControlIsChosenAndGivenBack", "", false},
	{"Congestion controls of one's own", "agent/blocks", "TestACongestionControlIsRegisteredWhileItsBlockIsWanted", "", false},
	{"A ceiling on the wire", "agent/guard", "TestACeilingHoldsOnTheWire", "", false},
}

// guestModules are what a node's admin or other software has loaded.
var guestModules = []string{
	"veth", "bridge", "br_netfilter", "nf_conntrack", "nft_chain_nat", "8021q", "bonding",
	"sch_htb", "sch_tbf", "sch_fq", "sch_netem", "sch_ingress", "cls_bpf",
	"inet_diag", "tcp_diag", "mptcp_diag",
}

// covers tells whether the test is one of this line.
func (c capability) covers(test *tested) bool {
	return c.packageName == test.packageName && matches(c.tests, test.name) && (c.except == "" || !matches(c.except, test.name))
}

// matches tells whether a test, or one around it, has such a name.
func matches(pattern, name string) bool {
	names := strings.Split(strings.ReplaceAll(name, " ", "_"), "/")
	for i, part := range strings.Split(pattern, "/") {
		if i >= len(names) || !regexp.MustCompile(part).MatchString(names[i]) {
			return false
		}
	}
	return true
}

// choose leaves out the lines that do not match.
func choose(lines string) error {
	chosen, err := regexp.Compile(lines)
	if err != nil {
		return fmt.Errorf("choosing lines of the table: %w", err)
	}
	for i := range capabilities {
		capabilities[i].left = !chosen.MatchString(capabilities[i].name)
	}
	return nil
}

// packages are those that the chosen lines need.
func packages() (names []string) {
	seen := map[string]bool{}
	for _, c := range capabilities {
		if !c.left && !seen[c.packageName] {
			seen[c.packageName] = true
			names = append(names, c.packageName)
		}
	}
	return names
}

// testsOf names the tests of a package that the chosen lines need, in the form of -run.
func testsOf(packageName string) string {
	var names []string
	for _, c := range capabilities {
		if c.left || c.packageName != packageName {
			continue
		}
		if c.tests == "" {
			return ""
		}
		top, _, _ := strings.Cut(c.tests, "/")
		for name := range strings.SplitSeq(top, "|") {
			names = append(names, "^"+name+"$")
		}
	}
	return strings.Join(names, "|")
}
