// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
)

var guestModules = []string{"veth", "bridge", "br_netfilter", "nf_conntrack", "nft_chain_nat", "sch_fq", "sch_htb", "sch_tbf", "sch_netem", "8021q", "bonding", "mptcp_diag", "tcp_diag", "inet_diag", "cls_bpf", "act_police"}

func packages() []string { return []string{"bpf", "bpf/endpoint", "bpf/guard", "bpf/actors", "bpf/block", "agent/datapath", "agent/sockets", "agent/pace", "agent/guard"} }

func report(results []result, o options) error {
	for _, r := range results {
		n := map[outcome]int{}
		for _, t := range r.tests {
			n[t.outcome]++
			if t.outcome == failed {
				fmt.Println(r.release, t.packageName, t.name)
				for _, l := range t.output { fmt.Println("      ", l) }
			}
		}
		fmt.Println(r.release, n, r.broken)
	}
	return nil
}
