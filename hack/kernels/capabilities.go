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
	// tests and except are what the tests' own -run and -skip take; "" stands for all
	// and for none.
	tests, except string
	// needs names a line without which this one is not tested.
	needs string
}

// The verifier's line of the rules, without which nothing of them can be tested.
const rulesVerified = "Rules: the verifier takes the programs, with room left"

// A few of the tests of rules: each loads the programs anew, which takes long.
const rulesTests = "^(TestSelectorsOfASubflow|TestCountersCountWhatMatches|TestTheLargestChain|TestBackupIsToldInAnAcknowledgement|" +
	"TestAnAnnouncementIsHidden|TestAWindowIsLoweredInEachPacket|TestRecords|TestReportsComeOncePerConnectionAndSubflow)$"

var capabilities = []capability{
	{name: "Steering: the verifier takes the programs, with room left", packageName: "bpf/uplink", tests: "TestTheVerifierHasLittleWork"},
	{name: "Steering: what the programs do with packets", packageName: "bpf/uplink", except: "TestTheVerifierHasLittleWork"},
	{name: "Ceilings and own addresses: the programs", packageName: "bpf/guard"},
	{name: "Programs attached by TCX", packageName: "agent/datapath", tests: "TestRemovalLeavesNothing/^tcx$"},
	{name: "Programs attached by clsact", packageName: "agent/datapath", tests: "TestRemovalLeavesNothing/^clsact$"},
	{name: "Subflows of one connection fill all paths", packageName: "agent/datapath", tests: "TestSubflowsOfOneConnectionFillAllPaths"},
	{name: "Likewise in overlays: VXLAN, Geneve and IP in IP", packageName: "agent/datapath", tests: "TestConnectionsInAnOverlayFillAllPaths|TestConnectionsInOtherTunnelsFillAllPaths"},
	{name: "Likewise in an overlay of Open vSwitch", packageName: "agent/datapath", tests: "TestConnectionsThroughOpenVSwitchFillAllPaths"},
	{name: "Connections to Services of IPVS in an overlay", packageName: "agent/datapath", tests: "TestConnectionsToAServiceOfIPVSFillAllPathsOfAnOverlay"},
	{name: "An overlay that encrypts (WireGuard) keeps its route", packageName: "agent/datapath", tests: "TestWhatWireGuardEncryptsKeepsItsRoute"},
	{name: "Failover", packageName: "agent/datapath", tests: "TestADeadPathsFlowsUseTheOthersAndComeBack"},
	{name: "NICs that come and go", packageName: "agent/datapath", tests: "TestANICIsRemovedAndAdded"},
	{name: "Paths on VLANs", packageName: "agent/datapath", tests: "TestPathsAreVLANs"},
	{name: "VMs whose routes lead to VLANs on their taps", packageName: "agent/endpoints", tests: "TestAVMWhoseNetworkIsAVLANIsFound"},
	{name: "A restarted agent takes over", packageName: "agent/datapath", tests: "TestARestartedAgentTakesOver"},
	{name: "Announcements that wait (openAfter): the verifier takes the program", packageName: "bpf/announcements", tests: "TestTheVerifierHasLittleWork"},
	{name: "Announcements that wait, on real connections", packageName: "agent/announcements", needs: "Announcements that wait (openAfter): the verifier takes the program"},
	{name: "Young connections wait in the kernel (manager: Agent): the verifier takes the filter", packageName: "bpf/pathmanager", tests: "TestTheVerifierHasLittleWork"},
	{name: "Socket upgrade", packageName: "agent/sockets", tests: "TestUpgrade/^(sockets|the_upgrade|listed)"},
	{name: "Where there is no socket upgrade, the agent says so", packageName: "agent/sockets", tests: "TestUpgrade/^what"},
	{name: "Pacing of new connections", packageName: "agent/pace", tests: "TestEachSubflowIsPacedAtItsRate|TestANewSubflowIsPacedFromItsFirstByte"},
	{name: "Pacing of connections that exist, and its end", packageName: "agent/pace", tests: "TestAnEndpointThatIsNoLongerOneIsPutBack|TestTheNextAgentTakesOverAndRemovesEverything"},
	{name: "Choice of the congestion control", packageName: "agent/pace", tests: "TestCongestionControlIsChosenAndGivenBack"},
	{name: "The room that segments leave for TCP options is as documented", packageName: "agent/transport", tests: "TestOptionsOfSegmentsLeaveTheRoomThatIsKnown"},
	{name: "Transport settings that peers ask for in TCP options", packageName: "agent/transport", tests: "TestAServerDoesWhatAClientAsksForAndItAccepts|TestASubflowDoesWhatThePeerAsksForAndGoesBackWhenThePolicyGoes"},
	{name: "Rates and congestion controls that rules ask of peers", packageName: "agent/pace", tests: "TestARuleAsksWithoutAnAgent|TestARuleAsksForTheSubflowsThatItMatchesAlone|TestATenantsRuleDoesNotAskForAnotherCongestionControlThanTheClusters"},
	{name: "Transport settings of sockets, and their end", packageName: "agent/transport", tests: "TestNewConnectionsGetWhatThePolicyGives|TestConnectionsThatExistGetItAndHaveTheirOwnBack|TestEachSubflowGetsIt"},
	{name: "Congestion controls of one's own", packageName: "agent/programs", tests: "TestACongestionControlIsRegisteredWhileItsBlockIsWanted"},
	{name: "Maps that programs of a policy share, and that others read", packageName: "agent/programs", tests: "TestTheExamplesThatShareAMapAreTaken|TestProgramsOfAPolicyShareTheMapThatTheyName|TestAnotherPolicyReadsAMapAndCannotWriteIt"},
	{name: "A ceiling on the wire", packageName: "agent/guard", tests: "^TestACeilingHoldsOnTheWire$"},
	{name: "Ceilings and own addresses in an overlay", packageName: "agent/guard", tests: "TestACeilingHoldsOnTheWireInAnOverlay|TestACeilingHoldsBehindOpenVSwitch|TestForgedSourcesDoNotGetIntoAnOverlay"},
	{name: rulesVerified, packageName: "bpf/endpoint", tests: "TestTheVerifierHasLittleWork"},
	{name: "Rules: selectors, actors, records and reports, a few tests of each", packageName: "bpf/endpoint", tests: rulesTests, needs: rulesVerified},
	{name: "Rules: what each action does to packets", packageName: "bpf/endpoint/actiontest", needs: rulesVerified},
	{name: "Dropping at the NIC (agent.xdp): veth", packageName: "agent/atnic", except: "NICOfVirtio|NICWhoseDriver", needs: rulesVerified},
	{name: "Dropping at the NIC (agent.xdp): virtio_net, and e1000, which refuses", packageName: "agent/atnic", tests: "NICOfVirtio|NICWhoseDriver", needs: rulesVerified},
	{name: "Rules on real connections", packageName: "agent/chains", tests: "^(TestRulesCountWhatTheyMatch|TestARestartedAgentTakesOver)$", needs: rulesVerified},
}

// guestModules are what a node's admin or other software has loaded.
var guestModules = []string{
	"veth", "bridge", "br_netfilter", "nf_conntrack", "nft_chain_nat", "8021q", "bonding", "tun", "virtio_net", "e1000",
	"vxlan", "geneve", "ipip", "sit", "ip6_tunnel", "openvswitch", "wireguard", "ip_vs", "ip_vs_rr",
	"sch_htb", "sch_tbf", "sch_fq", "sch_netem", "sch_ingress", "cls_bpf",
	"inet_diag", "tcp_diag", "mptcp_diag", "tcp_bbr",
}

// choose are the lines of the table that match.
func choose(pattern string) (lines []capability, err error) {
	chosen, err := regexp.Compile(pattern)
	if err != nil {
		return nil, fmt.Errorf("choosing lines of the table: %w", err)
	}
	for _, c := range capabilities {
		if chosen.MatchString(c.name) {
			lines = append(lines, c)
		}
	}
	return lines, nil
}

// linesOf are lines for packages that were named instead.
func linesOf(packages, tests string) (lines []capability) {
	for name := range strings.SplitSeq(packages, ",") {
		name = strings.TrimPrefix(name, "./")
		lines = append(lines, capability{name: name, packageName: name, tests: tests})
	}
	return lines
}
