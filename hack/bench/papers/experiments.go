// SPDX-License-Identifier: Apache-2.0

// Package papers has the experiments of the papers that Braid builds on, repeated with
// it: seeds 000, 001 and 004.
package papers

import "braid.dev/braid/hack/bench/rig"

// Experiments is the table of the papers' experiments.
var Experiments = []rig.Measurer{
	rig.Experiment[*chainRace]{Setup: newChainRace, Run: measureChain, Info: rig.Info{
		Name: "chain", Measures: "time of the endpoint half for each packet, to that of eMPTCP's design (seed 001, figure 5)",
		Figures: []rig.Unit{{"chain.*ns", "ns/packet"}, {"chain.*to_baseline*", "ratio"}},
	}},
	rig.Experiment[*chainRace]{Setup: newChainRace, Run: measureDesigns, Info: rig.Info{
		Name: "designs", Measures: "time for each packet of ways to run a chain, and of single actions",
		Figures: []rig.Unit{{"designs.*_ns", "ns/packet"}},
	}},
	rig.Experiment[rig.Nothing]{Setup: rig.NoSetup, Run: measureFCT, Info: rig.Info{
		Name: "fct", Measures: "time in the endpoint half to flow completion times (seed 001, figures 5b and 5c)",
		Figures: []rig.Unit{{"chain.fct_*empty_ns.*", "ns/run"}, {"chain.fct_*_pct.*", "%"}},
	}},
	rig.Experiment[rig.Nothing]{Setup: rig.NoSetup, Run: measureRate, Info: rig.Info{
		Name: "rate", Measures: "how exactly rate limits are met, and what they leave the other subflow",
		Figures: []rig.Unit{{"rate.*", "%"}},
	}},
	rig.Experiment[rig.Nothing]{Setup: rig.NoSetup, Run: measureBackup, Info: rig.Info{
		Name: "backup", Measures: "what a subflow still carries as a backup, and how soon it takes over",
		Figures: []rig.Unit{{"backup.leak_pct", "%"}, {"backup.takeover_ms", "ms"}},
	}},
	rig.Experiment[*ecf]{Setup: newECF, Run: measureECF, Info: rig.Info{
		Name: "ecf", Measures: "goodput with the strategy EarliestCompletionFirst to that without",
		Figures: []rig.Unit{{"ecf.*gain_ratio", "ratio"}},
	}},
	rig.Experiment[rig.Nothing]{Setup: rig.NoSetup, Run: measureSmallFlows, Info: rig.Info{
		Name: "small", Measures: "completion times of flows of 10 to 220 kB (seed 001, use case 3)",
		Figures: []rig.Unit{{"fct.small.*_ms", "ms"}, {"fct.small_ratio_*", "ratio"}, {"fct.small_*to_mptcp.*", "ratio"}},
	}},
	rig.Experiment[rig.Nothing]{Setup: rig.NoSetup, Run: measureSmallPrograms, Info: rig.Info{
		Name: "small_programs", Measures: "time in the nodes' packet programs for a flow of 10 to 220 kB",
		Figures: []rig.Unit{{"fct.small_programs.*_us", "us/flow"}, {"fct.small_programs.*_runs", "runs/flow"}},
	}},
	rig.Experiment[*hints]{Setup: newHints, Run: measureHint, Info: rig.Info{
		Name: "hint", Measures: "what a tenant's hint costs and how soon it is followed (seed 004, A, C, D, figures 8 and 9)",
		Figures: []rig.Unit{{"hint.overhead_pct", "%"}, {"hint.*_ms", "ms"}, {"hint.*on_*_pct*", "% of the bytes"}},
	}},
	rig.Experiment[*hints]{Setup: newHints, Run: measureBlocked, Info: rig.Info{
		Name: "blocked", Measures: "gaps while the preferred path loses everything (seed 004, B)",
		Figures: []rig.Unit{{"hint.*_ms", "ms"}},
	}},
	rig.Experiment[*hints]{Setup: newHints, Run: measureRecover, Info: rig.Info{
		Name: "recover", Measures: "gaps when one of two paths is dropped (seed 004, E)",
		Figures: []rig.Unit{{"recover.kernel.stopped", ""}, {"recover.*_ms", "ms"}},
	}},
	rig.Experiment[rig.Nothing]{Setup: rig.NoSetup, Run: measureManagers, Info: rig.Info{
		Name: "managers", Measures: "path managers as policies, and paths that share a bottleneck (seed 000, section 7)",
		Figures: []rig.Unit{
			{"manager.*.subflows", "subflows"}, {"manager.*mbit", "Mbit/s"}, {"manager.*.on_one_path_pct", "% of the bytes"},
			{"manager.refreshing.resets", "subflows"}, {"manager.refreshing.longest_gap_ms", "ms"},
			{"manager.*.joins_of_short_flows", "for each flow"}, {"manager.*.subflows_of_long_flow", "subflows"},
			{"shared.*_mbit", "Mbit/s"}, {"shared.removed_ratio", "to both"},
		},
	}},
	rig.Experiment[rig.Nothing]{Setup: rig.NoSetup, Run: measureIncast, Info: rig.Info{
		Name: "incast", Measures: "retransmissions and the slowest of many flows to one receiver, with credits and without",
		Figures: []rig.Unit{
			{"incast.*.retransmitted_pct", "%"}, {"incast.*.slowest", "of the ideal time"}, {"incast.*mbit", "Mbit/s"}, {"incast.*.jain", "Jain's index"},
			{"incast.*.lesser_path_pct", "% of the bytes"},
		},
	}},
}
