// SPDX-License-Identifier: Apache-2.0

// Package product has the experiments about what Braid gives its users and what it
// costs them.
package product

import (
	"slices"

	"braid.dev/braid/hack/bench/rig"
	"braid.dev/braid/internal/lab/network"
)

// Experiments is the table of the product's experiments. What a user chooses of the one
// with the controller is read when it runs.
func Experiments(chosen *Fleet) []rig.Measurer {
	return append(slices.Clone(experiments), controllerExperiment(chosen))
}

func controllerExperiment(chosen *Fleet) rig.Measurer {
	return rig.Experiment[*fleet]{Setup: newFleet(&chosen.Size), Run: measureController(&chosen.Compared), Info: rig.Info{
		Name: "controller", Measures: "time, requests and memory of the controller of a simulated cluster of 1,000 nodes",
		Figures: []rig.Unit{
			{"controller.*_requests.*", "requests"}, {"controller.*.plans_written", "plans"}, {"controller.*writes_per_pod_change", "plans"},
			{"controller.*last_plan*.nodes", "nodes"}, {"controller.*late_leases", "renewals"},
			{"controller.*_ms", "ms"}, {"controller.*_mib", "MiB"}, {"controller.*_s", "s"},
		},
	}}
}

var experiments = []rig.Measurer{
	rig.Experiment[*uplinkRace]{Setup: newUplinkRace, Run: measureCost, Info: rig.Info{
		Name: "cost", Measures: "time of the uplink half for each packet",
		Figures: []rig.Unit{{"cost.*_ns", "ns/packet"}},
	}},
	rig.Experiment[rig.Nothing]{Setup: rig.NoSetup, Run: measureSpread, Info: rig.Info{
		Name: "spread", Measures: "goodput of one connection over several links, and its processor time",
		Figures: []rig.Unit{
			{"goodput.*", "Mbit/s"}, {"*.ratio", "to links x single path"}, {"spread.*.to_multipath_route", "ratio"}, {"cpu.*", "s/GB"},
		},
	}},
	rig.Experiment[rig.Nothing]{Setup: rig.NoSetup, Run: measureBuffers, Info: rig.Info{
		Name: "buffers", Measures: "goodput of one connection with small and default receive buffers, to plain TCP on the best path",
		Figures: []rig.Unit{{"buffers.*to_tcp", "ratio"}, {"buffers.*stalls", "transfers"}, {"buffers.*", "Mbit/s"}},
	}},
	rig.Experiment[*rig.Lab]{Setup: newBoxed, Run: measureMiddlebox, Info: rig.Info{
		Name: "middlebox", Measures: "goodput of one connection through boxes that change TCP, to plain TCP through the same ones",
		Figures: []rig.Unit{{"middlebox.*to_tcp", "ratio"}, {"middlebox.*lost", "connections"}, {"middlebox.lost_by_braid", "connections"}, {"middlebox.*", "Mbit/s"}},
	}},
	rig.Experiment[*rig.Lab]{Setup: rig.LabOver(3), Run: measureMany, Info: rig.Info{
		Name: "many", Measures: "goodput of up to 5,000 connections at once, to that with one subflow each",
		Figures: []rig.Unit{
			{"many.*.ratio", "to one subflow"}, {"many.*.mbit", "Mbit/s"}, {"many.*.least_share", "of an even share"},
			{"many.*.lost", "connections"}, {"many.*.slowest_tenth_to_*", "ratio"}, {"many.*.slowest", "of the median"}, {"many.*.slowest_tenth", "of the median"},
		},
	}},
	rig.Experiment[rig.Nothing]{Setup: rig.NoSetup, Run: measureOverlay, Info: rig.Info{
		Name: "overlay", Measures: "goodput of one connection over three links in overlays, and gaps when a NIC fails",
		Figures: []rig.Unit{
			{"overlay.*.ratio", "to links x single path"}, {"overlay.*_mbit", "Mbit/s"}, {"overlay.*_ms", "ms"}, {"overlay.checksum_errors", "segments"}, {"overlay.others*", "packets"},
		},
	}},
	rig.Experiment[*rig.Lab]{Setup: inRacks, Run: measureRouted, Info: rig.Info{
		Name: "routed", Measures: "goodput of one connection over three links between racks that routers join, and gaps when one dies",
		Figures: []rig.Unit{
			{"routed.ratio", "to links x single path"}, {"routed.*.ratio", "to links x single path"}, {"routed.*_mbit", "Mbit/s"}, {"routed.*_ms", "ms"}, {"routed.checksum_errors", "segments"},
		},
	}},
	rig.Experiment[*rig.Lab]{Setup: inNativeRacks, Run: measureNativeRouted, Info: rig.Info{
		Name: "routed_native", Measures: "the same as routed, of pods that are routed natively: Braid encapsulates",
		Figures: []rig.Unit{
			{"routed.native.ratio", "to links x single path"}, {"routed.native.*.ratio", "to links x single path"}, {"routed.native.*_mbit", "Mbit/s"},
			{"routed.native.*_ms", "ms"}, {"routed.native.checksum_errors", "segments"},
		},
	}},
	rig.Experiment[*rig.Lab]{Setup: inWorld, Run: measureOutside, Info: rig.Info{
		Name: "outside", Measures: "goodput of one connection over three links to a server outside of the cluster, and gaps when a gateway dies",
		Figures: []rig.Unit{
			{"outside.ratio", "to links x single path"}, {"outside.*.ratio", "to links x single path"}, {"outside.masqueraded.*.ratio", "to links x single path"},
			{"outside.single_mbit", "Mbit/s"}, {"outside.*.single_mbit", "Mbit/s"}, {"outside.failover_ms", "ms"},
		},
	}},
	rig.Experiment[*rig.Lab]{
		Setup: rig.LabOn(network.Spec{Paths: rig.Paths[:3], PathMbit: unequalMbit}), Run: measureWeights, Info: rig.Info{
			Name: "weights", Measures: "goodput over paths of 300, 100 and 10 Mbit/s, to what they carry together",
			Figures: []rig.Unit{
				{"weights.*.ratio", "of all paths"}, {"weights.*.to_best", "to the best path"}, {"weights.*.mbit", "Mbit/s"},
				{"weights.*.used", "of the path's rate"},
			},
		},
	},
	rig.Experiment[*rig.Lab]{Setup: rig.LabOver(3), Run: measureOutage, Info: rig.Info{
		Name: "outage", Measures: "gaps when a NIC fails or agents are killed",
		Figures: []rig.Unit{{"failover.gap_ms", "ms"}, {"failback.ms", "ms"}, {"agent_restart.*_ms", "ms"}},
	}},
	rig.Experiment[*rig.Lab]{Setup: rig.LabOver(3), Run: measureNoAgent, Info: rig.Info{
		Name: "no_agent", Measures: "gaps when a NIC fails while no agent runs",
		Figures: []rig.Unit{{"failover.no_agent*_ms", "ms"}},
	}},
	rig.Experiment[*rig.Pair]{Setup: rig.PairOver(3), Run: measureHotswap, Info: rig.Info{
		Name: "hotswap", Measures: "goodput during 1,000 changes of a pod's rules",
		Figures: []rig.Unit{{"hotswap.goodput_ratio", "ratio"}},
	}},
	rig.Experiment[*rig.Lab]{Setup: newShare, Run: measureShare, Info: rig.Info{
		Name: "share", Measures: "what two tenants get of a full path that they share 3:1",
		Figures: []rig.Unit{{"share.*error_pct", "%"}, {"share.*path_used", "of its rate"}},
	}},
	rig.Experiment[rig.Nothing]{Setup: rig.NoSetup, Run: measureTransport, Info: rig.Info{
		Name: "transport", Measures: "what a receiver's requests do at its peer: a rate on one path, a user timeout, an initial window",
		Figures: []rig.Unit{
			{"transport.*_pct", "%"}, {"transport.*_ratio", "of its own"}, {"transport.*_s", "s"}, {"transport.iw.*ms", "ms"},
		},
	}},
	rig.Experiment[*hypervisors]{Setup: newHypervisors, Run: measureVM, Info: rig.Info{
		Name: "vm", Measures: "goodput of VMs whose subflows their hosts make, to all links, and of seed 001's eight VMs to that without Braid",
		Figures: []rig.Unit{
			{"vm.*nics_used", "NICs"}, {"vm.joins", "subflows"}, {"vm.*ratio", "to links x single path"},
			{"vm.uc2.*.gain", "to MPTCP without Braid"}, {"vm.uc2.*_mbit", "Mbit/s"}, {"vm.proxy.*_ms_added", "ms"},
		},
	}},
	rig.Experiment[*migrated]{Setup: newMigrated, Run: measureMigration, Info: rig.Info{
		Name: "migration", Measures: "what the server of a VM's connection misses while QEMU moves the VM to another node",
		Figures: []rig.Unit{{"vm.migration.*_ms", "ms"}},
	}},
	rig.Experiment[*rig.Lab]{Setup: newNewPod, Run: measureNewPod, Info: rig.Info{
		Name: "newpod", Measures: "what new pods send in their first second beyond their ceiling",
		Figures: []rig.Unit{{"newpod.*_kb", "kB"}},
	}},
	rig.Experiment[*rig.Lab]{
		Setup: rig.LabOn(network.Spec{Paths: rig.Paths[:3], LinkMbit: manyLinkMbit}), Run: measureFailover1000, Info: rig.Info{
			Name: "failover1000", Measures: "what 1,000 connections lose when one NIC of three fails",
			Figures: []rig.Unit{
				{"failover1000.*lost", "connections"}, {"failover1000.*recover_ms", "ms"}, {"failover1000.*kept", "of the goodput before"},
			},
		},
	},
	rig.Experiment[*rig.Cluster]{Setup: rig.NewCluster, Run: measurePod, Info: rig.Info{
		Name: "pod", Measures: "time from a new pod's address to its policy being programmed",
		Figures: []rig.Unit{{"pod.*_ms", "ms"}},
	}},
	rig.Experiment[*rig.Cluster]{Setup: rig.NewCluster, Run: measureAgentMemory, Info: rig.Info{
		Name: "agent_memory", Measures: "memory of the agent of a node with 110 pods and 10,000 subflows",
		Figures: []rig.Unit{{"agent.*_mib", "MiB"}},
	}},
	rig.Experiment[*web]{Setup: newWeb, Run: measureHTTP, Info: rig.Info{
		Name: "http", Measures: "requests that a web server answers in a second",
		Figures: []rig.Unit{{"http.*_rps", "requests/s"}, {"http.*_resets", "connections"}, {"http.*_to_tcp", "ratio"}, {"http.*_to_mptcp", "ratio"}, {"http.*_to_braid", "ratio"}, {"http.*_to_bond*", "ratio"}},
	}},
	rig.Experiment[*web]{Setup: newFastWeb, Run: measureFastHTTP, Info: rig.Info{
		Name: "http_fast", Measures: "requests for small files that a web server answers in a second over links of 1 Gbit/s",
		Figures: []rig.Unit{{"http_fast.*_rps", "requests/s"}, {"http_fast.*_resets", "connections"}, {"http_fast.*_to_tcp", "ratio"}, {"http_fast.*_to_mptcp", "ratio"}, {"http_fast.*_to_braid", "ratio"}, {"http_fast.*_to_bond*", "ratio"}},
	}},
	rig.Experiment[*unevenWeb]{Setup: slowLink.build, Run: measureUneven, Info: rig.Info{
		Name: "http_slow", Measures: "requests that a web server answers in a second where one link of three is fifty times slower",
		Figures: []rig.Unit{{"http_slow.*_rps", "requests/s"}, {"http_slow.*_resets", "connections"}, {"http_slow.*_to_tcp", "ratio"}, {"http_slow.*_to_mptcp", "ratio"}, {"http_slow.*_to_braid", "ratio"}, {"http_slow.*_to_bond*", "ratio"}},
	}},
	rig.Experiment[*unevenWeb]{Setup: farLink.build, Run: measureUneven, Info: rig.Info{
		Name: "http_far", Measures: "requests that a web server answers in a second where one link of three has a round trip of 1 ms",
		Figures: []rig.Unit{{"http_far.*_rps", "requests/s"}, {"http_far.*_resets", "connections"}, {"http_far.*_to_tcp", "ratio"}, {"http_far.*_to_mptcp", "ratio"}, {"http_far.*_to_braid", "ratio"}, {"http_far.*_to_bond*", "ratio"}},
	}},
	rig.Experiment[*unevenWeb]{Setup: lossyLink.build, Run: measureUneven, Info: rig.Info{
		Name: "http_lossy", Measures: "requests that a web server answers in a second where one link of three loses 2 % of what is sent",
		Figures: []rig.Unit{{"http_lossy.*_rps", "requests/s"}, {"http_lossy.*_resets", "connections"}, {"http_lossy.*_to_tcp", "ratio"}, {"http_lossy.*_to_mptcp", "ratio"}, {"http_lossy.*_to_braid", "ratio"}, {"http_lossy.*_to_bond*", "ratio"}},
	}},
	rig.Experiment[*rig.Lab]{Setup: newKeptLab, Run: measureKept, Info: rig.Info{
		Name: "kept", Measures: "answers on connections that are kept, where one path of three has a round trip of 10 ms",
		Figures: []rig.Unit{{"kept.*_ms", "ms"}, {"kept.*_to_tcp", "ratio"}},
	}},
	rig.Experiment[*rig.Lab]{Setup: newKeptBusyLab, Run: measureKeptBusy, Info: rig.Info{
		Name: "kept_busy", Measures: "answers on connections that are kept, where traffic that Braid leaves alone fills one path of three",
		Figures: []rig.Unit{{"kept_busy.*_ms", "ms"}, {"kept_busy.*_to_tcp", "ratio"}},
	}},
	rig.Experiment[*webAgents]{Setup: newWebAgents, Run: measureHTTPAgents, Info: rig.Info{
		Name: "http_agents", Measures: "what agents cost short connections: requests over links of 1 Gbit/s while they run and while they are stopped, by turns of a second",
		Figures: []rig.Unit{{"http_agents.1k.*_rps", "requests/s"}, {"http_agents.1k.running_to_stopped", "ratio"}, {"http_agents.1k.busiest_agent_pct", "%"}},
	}},
	rig.Experiment[*webTurns]{Setup: newWebTurns, Run: measureHTTPTurns, Info: rig.Info{
		Name: "http_turns", Measures: "what transport costs short connections: requests in a second of the same two pods, whose policy changes in turns of a second",
		Figures: []rig.Unit{{"http_turns.1k.*_rps", "requests/s"}, {"http_turns.1k.*_to_braid", "ratio"}},
	}},
	rig.Experiment[rig.Nothing]{
		Setup: rig.NoSetup, Run: inCluster("TestUpgradeAndRollbackLoseNoConnectionAndNoRequest"), Info: rig.Info{
			Name: "upgrade", Measures: "connections and requests lost by upgrades, rollbacks and changes of what is pinned",
			Figures: []rig.Unit{{"upgrade.lost", ""}},
		},
	},
	rig.Experiment[rig.Nothing]{
		Setup: rig.NoSetup, Run: inCluster("TestChaosLosesNothingOnOtherNodesAndPasses", "BRAID_E2E_CHAOS=5m"), Info: rig.Info{
			Name: "chaos", Measures: "connections and requests lost while agents, the API server and a node are killed",
			Figures: []rig.Unit{{"chaos.lost", ""}, {"chaos.converged_s", "s"}},
		},
	},
	rig.Experiment[rig.Nothing]{
		Setup: rig.NoSetup, Run: inCluster("TestFourCommandsLeadToAConnectionOnEveryNIC"), Info: rig.Info{
			Name: "ux", Measures: "how long it takes from a cluster without Braid to the first connection on every NIC",
			Figures: []rig.Unit{{"ux.*_s", "s"}},
		},
	},
	rig.Experiment[rig.Nothing]{
		Setup: rig.NoSetup, Run: inLab("./e2e/faults", "TestEveryFaultIsTold"), Info: rig.Info{
			Name: "faults", Measures: "faults of networks, nodes and policies that users are told of, with what to do",
			Figures: []rig.Unit{{"ux.faults", ""}, {"ux.faults_told", ""}},
		},
	},
	rig.Experiment[rig.Nothing]{
		Setup: rig.NoSetup, Run: inLab("./plugin", "TestCommandsAnswerForAThousandNodes"), Info: rig.Info{
			Name: "answers", Measures: "how long commands of kubectl braid take in a simulated cluster of 1,000 nodes",
			Figures: []rig.Unit{{"answers.*_ms", "ms"}},
		},
	},
	rig.Experiment[rig.Nothing]{
		Setup: rig.NoSetup, Run: measureSecurity, Info: rig.Info{
			Name: "security", Measures: "attempts of hostile pods, tenants, nodes and neighbours, and which succeed", Figures: securityFigures,
		},
	},
	rig.Experiment[rig.Nothing]{
		Setup: rig.NoSetup, Run: measureSoak, Info: rig.Info{
			Name: "soak", Measures: "what is left after half an hour of pods that die, floods and restarts, and of others' goodput (BRAID_SOAK=10m)",
			Figures: []rig.Unit{{"soak.cycles", ""}, {"soak.connections", ""}, {"soak.*_pct", "%"}, {"soak.flows_left", "flows"}, {"soak.programmed_ms", "ms"}, {"soak.others_pod_*ms", "ms"}},
		},
	},
}
