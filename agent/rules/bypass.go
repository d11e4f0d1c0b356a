// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"braid.dev/braid/api/v1alpha1"
)

// bypass is what is wrong with rules where a cluster network's programs put packets into
// the pod and past its interface, as Cilium's do with eBPF host routing.
const bypass = "what the pod receives does not pass its interface (bpf_redirect_peer, as with Cilium's eBPF host routing): " +
	"the rule does not see it"

// addBypassed says so of the rules that are for what is received alone. Those for both
// directions do half of what they are for, or all of it, as paced rates.
func addBypassed(statuses []v1alpha1.RuleStatus, rules []v1alpha1.PlanRule, bypassed bool) []v1alpha1.RuleStatus {
	for i := range rules {
		match := rules[i].Match
		if bypassed && match != nil && match.Direction == v1alpha1.DirectionToEndpoint {
			statuses = addProblem(statuses, &rules[i], bypass)
		}
	}
	return statuses
}

// enoughSent packets of a pod are answered by some, unless the answers come another way.
const enoughSent, answeredOnce = 1000, 100

// isBypassed is whether the host's end of a pod's interface sends the pod next to nothing,
// though the pod sends and a program of Cilium's takes what it sends.
func isBypassed(index int) bool {
	device, err := netlink.LinkByIndex(index)
	if err != nil || device.Attrs().Statistics == nil {
		return false
	}
	counted := device.Attrs().Statistics
	return counted.RxPackets >= enoughSent && counted.TxPackets < counted.RxPackets/answeredOnce && isCiliums(index)
}

// isCiliums is whether Cilium has a program at the interface.
func isCiliums(index int) bool {
	query, err := link.QueryPrograms(link.QueryOptions{Target: index, Attach: ebpf.AttachTCXIngress})
	if err != nil {
		return false
	}
	for _, attached := range query.Programs {
		opened, err := ebpf.NewProgramFromID(attached.ID)
		if err != nil {
			continue
		}
		info, err := opened.Info()
		opened.Close()
		if err == nil && strings.HasPrefix(info.Name, "cil_") {
			return true
		}
	}
	return false
}
