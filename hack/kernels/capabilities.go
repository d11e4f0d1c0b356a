// SPDX-License-Identifier: Apache-2.0

package main

import (
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
}

var capabilities = []capability{
	{"Steering: the verifier takes the programs, with room left", "bpf", "TestTheVerifierHasLittleWork", ""},
	{"Steering: what the programs do with packets", "bpf", "", "TestTheVerifierHasLittleWork"},
	{"Rules: the verifier takes the programs, with room left", "bpf/endpoint", "TestTheVerifierHasLittleWork", ""},
	{"Rules: what the programs do with packets", "bpf/endpoint", "", "TestTheVerifierHasLittleWork"},
	{"Ceilings and own addresses: the programs", "bpf/guard", "", ""},
	{"Programs attached by TCX", "agent/datapath", "TestRemovalLeavesNothing/^tcx$", ""},
	{"Programs attached by clsact", "agent/datapath", "TestRemovalLeavesNothing/^clsact$", ""},
	{"Subflows of one connection fill all paths", "agent/datapath", "TestSubflowsOfOneConnectionFillAllPaths", ""},
	{"Failover", "agent/datapath", "TestADeadPathsFlowsUseTheOthersAndComeBack", ""},
	{"NICs that come and go", "agent/datapath", "TestANICIsRemovedAndAdded", ""},
	{"Paths on VLANs", "agent/datapath", "TestPathsAreVLANs", ""},
	{"A restarted agent takes over", "agent/datapath", "TestARestartedAgentTakesOver", ""},
	{"Socket upgrade", "agent/sockets", "TestUpgrade/^(sockets|the_upgrade|listed)", ""},
	{"Where there is no socket upgrade, the agent says so", "agent/sockets", "TestUpgrade/^what", ""},
	{"Pacing of new connections", "agent/pace", "TestEachSubflowIsPacedAtItsRate|TestANewSubflowIsPacedFromItsFirstByte", ""},
	{"Pacing of connections that exist, and its end", "agent/pace", "TestAnEndpointThatIsNoLongerOneIsPutBack|TestTheNextAgentTakesOverAndRemovesEverything", ""},
	{"Choice of the congestion control", "agent/pace", "TestCongestionControlIsChosenAndGivenBack", ""},
	{"Congestion controls of one's own", "agent/blocks", "TestACongestionControlIsRegisteredWhileItsBlockIsWanted", ""},
	{"A ceiling on the wire", "agent/guard", "TestACeilingHoldsOnTheWire", ""},
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

// packages are those that the table needs.
func packages() (names []string) {
	seen := map[string]bool{}
	for _, c := range capabilities {
		if !seen[c.packageName] {
			seen[c.packageName] = true
			names = append(names, c.packageName)
		}
	}
	return names
}

// testsOf names the tests of a package that the table needs, in the form of -run.
func testsOf(packageName string) string {
	var names []string
	for _, c := range capabilities {
		if c.packageName != packageName {
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
